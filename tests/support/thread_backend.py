"""A pool's processes as threads of the test: deaths, slowness and late nodes come when the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from harness.cluster.backend import ActorLost
from harness.cluster.worker import EngineWorker

ENGINE = "tests.support.pool_engine:PoolEngine"


class Process:
    """Holds a worker. `delay`: seconds that every reply takes. `describes`: entries that `describe` says otherwise."""

    def __init__(self, slot: int, engine: str, delay: float, describes: dict[str, Any]) -> None:
        self.slot, self.delay, self.describes = slot, delay, describes
        self.worker = EngineWorker(engine)
        self.pending: list[Future[Any]] = []
        self.alive = True
        self.placed = False  # a node has room for it
        self._waiting: list[tuple[Future[Any], str, tuple[Any, ...]]] = []

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.pending.append(future)
        if self.alive and not self.placed:
            self._waiting.append((future, method, arguments))
            return future
        threading.Thread(target=self._run, args=(future, method, arguments), daemon=True).start()
        if not self.alive:
            _fail(future)
        return future

    def place(self) -> None:
        """A node has room for it: what was called meanwhile is done."""
        self.placed = True
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            threading.Thread(target=self._run, args=call, daemon=True).start()

    def _run(self, future: Future[Any], method: str, arguments: tuple[Any, ...]) -> None:
        try:
            if method == "submit":
                time.sleep(self.delay)
            value = getattr(self.worker, method)(*arguments)
            if method == "describe":
                value = {**value, **self.describes}
            if not future.done():
                future.set_result(value)
        except Exception as error:
            if not future.done():
                future.set_exception(error)

    def die(self) -> None:
        self.alive = False
        for future in self.pending:
            _fail(future)


def _fail(future: Future[Any]) -> None:
    if not future.done():
        future.set_exception(ActorLost("signal 9"))


class ThreadBackend:
    """`engines`: how many are wanted; a test may change it. `delays`: slot -> seconds per batch.

    `room`: processes that the nodes have room for; None: for all. Others wait until one ends.
    """

    cores = 0

    def __init__(self, engines: int = 2, *, delays: dict[int, float] | None = None, engine: str = ENGINE) -> None:
        self.engines, self.delays, self.engine = engines, delays or {}, engine
        self.describes: dict[int, dict[str, Any]] = {}
        self.processes: list[Process] = []
        self.room: int | None = None
        self.on_spawn: Callable[[Process], None] = lambda process: None

    def wanted(self) -> int:
        return self.engines

    def spawn(self, slot: int) -> Process:
        process = Process(slot, self.engine, self.delays.get(slot, 0.0), self.describes.get(slot, {}))
        self.processes.append(process)
        self._place()
        self.on_spawn(process)
        return process

    def _place(self) -> None:
        for process in self.alive():
            used = sum(other.placed for other in self.alive())
            if not process.placed and (self.room is None or used < self.room):
                process.place()

    def call(self, handle: Process, method: str, *arguments: Any) -> Future[Any]:
        return handle.call(method, *arguments)

    def wait(self, refs: Sequence[Future[Any]], seconds: float) -> list[Future[Any]]:
        if not refs:
            time.sleep(seconds)
        return list(wait(refs, timeout=seconds, return_when=FIRST_COMPLETED).done)

    def result(self, ref: Future[Any]) -> Any:
        return ref.result()

    def further_arguments(self) -> dict[str, Any]:
        return {}

    def kill(self, handle: Process) -> None:
        handle.die()
        self._place()

    def close(self) -> None:
        for process in self.processes:
            process.die()

    def alive(self) -> list[Process]:
        """The processes that no test and no pool has ended."""
        return [process for process in self.processes if process.alive]
