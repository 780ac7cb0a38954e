"""Start the next model's engine while the present one works: most of a start is one core's work, importing vLLM."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.config import ContextSetting
from harness.cost.beside import options_beside
from harness.engine.requests import EngineError
from harness.engine.vllm_api import CORE_PROCESS
from harness.run.plan import Plan
from harness.run.session import RunEngine

Start = Callable[[str, Sequence[ContextSetting]], RunEngine]
"""Starts the engine of a model, by its label, for some of its context settings. Raises EngineError."""


def fit_side_by_side(plan: Plan, one: str, other: str) -> bool:
    """Whether the engines of two models may run at once: on a CPU whose memory surely has room for both.

    On GPUs each would have to be started with a part of the memory. Two engines whose ranks run in this process
    exclude each other.
    """
    memories = [plan.longest_memory(label) for label in (one, other)]
    known = [memory for memory in memories if memory is not None]
    if len(known) < 2 or known[0].devices.kind != "cpu" or os.environ.get(CORE_PROCESS) == "0":
        return False
    return options_beside(known, plan.config.engine) is not None


@dataclass
class _Begun:
    """One start in a thread."""

    key: tuple[str, tuple[ContextSetting, ...]]
    thread: threading.Thread | None = None
    engine: RunEngine | None = None
    error: BaseException | None = None
    abandoned: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Ahead:
    """Starts engines for the caller, and one more in a thread: `begin` it, and `take` it when it is needed.

    One start at a time: while an engine starts, the output of the process goes to that engine's log.

    Leaving the `with` does not wait for a start that goes on (an import cannot be interrupted): its engine is stopped
    as soon as it runs, and the end of this process ends it at once (`harness.gated.watchdog`).
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._starting = threading.Lock()
        self._begun: _Begun | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *exc: object) -> None:
        self._abandon()

    def begin(self, label: str, settings: Sequence[ContextSetting]) -> None:
        """Start the engine of another model in a thread; nothing where it is begun already. One start is kept."""
        if self._begun is not None and self._begun.key == (label, tuple(settings)):
            return
        self._abandon()
        begun = self._begun = _Begun((label, tuple(settings)))
        begun.thread = threading.Thread(target=self._run, args=(begun,), name="start-ahead", daemon=True)
        begun.thread.start()

    def take(self, label: str, settings: Sequence[ContextSetting]) -> RunEngine:
        """The engine of a model: the one that was begun for it, else a new one.

        One that could not start beside the other engine is started again, now that the other one has stopped.

        Raises:
            EngineError: it could not start.
        """
        if (begun := self._begun) is not None and begun.key == (label, tuple(settings)):
            self._begun = None
            assert begun.thread is not None
            begun.thread.join()
            if begun.engine is not None:
                return begun.engine
            if not isinstance(begun.error, EngineError):
                assert begun.error is not None
                raise begun.error
        with self._starting:
            return self._start(label, settings)

    def _run(self, begun: _Begun) -> None:
        try:
            with self._starting:
                engine = self._start(*begun.key)
        except BaseException as error:  # `take` raises it in the thread that asks
            begun.error = error
            return
        with begun.lock:
            if not begun.abandoned:
                begun.engine = engine
                return
        engine.close()

    def _abandon(self) -> None:
        """Stop the engine that was begun and not taken, or let it stop when it has started."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        with begun.lock:
            begun.abandoned, engine = True, begun.engine
        if engine is not None:
            engine.close()
