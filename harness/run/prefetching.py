"""Produces samples ahead of the engine, in a process of its own (`harness.run.producer`), within bounded memory.

Two pipes carry pickled messages (`multiprocessing.connection`), but the process is a plain subprocess:
`multiprocessing.Process` would import the caller's main module in the child. The child ends when its stdin is closed,
however the parent died. When the child dies, its output pipe is closed, and the parent sees that at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from harness.engine.requests import SampleRequest
from harness.run.plan import Plan
from harness.run.producer import AssignmentFinished, CellNotPicklable, ProducerCrashed
from harness.run.producing import Assignment, CellFailed, CellFinished, Event, produce

AHEAD = 4_000_000
"""Prompt tokens that the parent holds at most, 4 bytes each. The child holds one window of `harness.run.order` more."""
_TICK = 0.25  # seconds of a wait in which other threads work
_ROOT = str(Path(__file__).resolve().parents[2])  # the child must find this `harness`, whatever else is on the path
_COMMAND = "import sys; sys.path[:] = {path!r}; from harness.run.producer import main; main({incoming}, {outgoing})"


class ProducerError(RuntimeError):
    """Producing samples failed because of a bug, not because of the user's input. The message has the traceback."""


class Prefetcher:
    """Produces the samples of a plan's cells in one process, which starts with the first assignment.

    `ahead`: prompt tokens that may wait here for the engine. `waiting`: a context in which the next event is waited
    for, a quarter of a second at a time (`harness.run.at_once`); None: nothing else goes on in this process.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        ahead: int = AHEAD,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
    ) -> None:
        self.plan, self.ahead, self._waiting = plan, ahead, waiting
        self._process: _ProducerProcess | None = None
        self._assignment: Assignment | None = None  # what the process works on

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        return None if self._process is None else self._process.pid

    def prefetch(self, assignment: Assignment) -> None:
        """Start to produce `assignment`; `events` takes its events later. Any other assignment is cancelled."""
        self._process_for(assignment)

    def events(self, assignment: Assignment, busy: Callable[[], bool] = lambda: False) -> Iterator[Event | None]:
        """The events of `assignment`, as `harness.run.producing.produce` yields them.

        `busy`: whether the caller has other work to do meanwhile. If so, None says that no event is ready yet; if not,
        this waits for the next event. When the process is killed, the cell that it was producing fails, and a new
        process produces the cells that are left.

        Raises:
            ProducerError: a bug in producing the samples.
        """
        left = dict.fromkeys(assignment.cells)
        finished = False
        try:
            process = self._process_for(assignment)
            while not finished:
                message = self._take(process, wait=not busy())
                match message:
                    case AssignmentFinished():
                        finished = True
                    case ProducerCrashed(trace):
                        raise ProducerError(f"producing the samples failed:\n{trace}")
                    case CellNotPicklable(cell):
                        left.pop(cell)
                        yield from produce(self.plan, replace(assignment, cells=(cell,)))
                    case _ProcessDied():
                        how = self.close()
                        if left:  # else it died after its last event
                            left.pop(cell := next(iter(left)))
                            yield CellFailed(cell, f"the process that produces the samples died ({how}); run again")
                        if not left:
                            return
                        assignment = replace(assignment, cells=tuple(left))
                        process = self._process_for(assignment)
                    case _:
                        if isinstance(message, CellFinished | CellFailed):
                            left.pop(message.cell, None)
                        yield message
        finally:
            if finished:
                self._assignment = None
            else:  # nobody needs what the process still produces
                self.close()

    def _take(self, process: _ProducerProcess, *, wait: bool) -> Any:
        if self._waiting is None or not wait:
            return process.take(wait=wait)
        message = None
        while message is None:
            with self._waiting():
                message = process.take(wait=True, seconds=_TICK)
        return message

    def close(self) -> str:
        """Stop the process, if one runs; returns how it ended. The next assignment starts a new one."""
        process, self._process, self._assignment = self._process, None, None
        return "stopped" if process is None else process.stop()

    def _process_for(self, assignment: Assignment) -> _ProducerProcess:
        """The process that produces `assignment`, started where necessary."""
        if self._process is not None and self._assignment == assignment:
            return self._process
        if self._assignment is not None:
            self.close()
        if self._process is None:
            self._process = _ProducerProcess(self.plan, self.ahead)
        self._assignment = assignment
        self._process.send(assignment)
        return self._process


@dataclass(frozen=True)
class _ProcessDied:
    """The last message: the process has closed its output pipe."""


class _ProducerProcess:
    """A running producer. A thread reads its messages while no more than `ahead` prompt tokens wait to be taken."""

    def __init__(self, plan: Plan, ahead: int) -> None:
        self._ahead = ahead
        child_input, self._outgoing = Pipe(duplex=False)
        self._incoming, child_output = Pipe(duplex=False)
        self._process = _start(child_input.fileno(), child_output.fileno())
        child_input.close()
        child_output.close()
        self.pid = self._process.pid
        self._messages: deque[Any] = deque()
        self._tokens = 0  # of the prompts in `_messages`
        self._died = self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.send(plan)

    def send(self, message: Plan | Assignment) -> None:
        """Send to the process. One that died is noticed by the end of its output, not here."""
        with contextlib.suppress(BrokenPipeError):
            self._outgoing.send(message)

    def take(self, wait: bool, seconds: float | None = None) -> Any:
        """The next message; None where none is there and `wait` is false, or after so many `seconds`."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._messages, timeout=seconds)
            if not self._messages:
                return None
            message = self._messages.popleft()
            self._tokens -= _tokens(message)
            self._changed.notify_all()
            return message

    def stop(self) -> str:
        """Kill the process and wait for it; how it ended: "signal 9" or "exit code 1"."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that is ending by itself keeps its own exit code
            self._process.wait(timeout=1 if self._died else 0)
        self._process.kill()
        code = self._process.wait()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        self._incoming.close()
        self._outgoing.close()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _read(self) -> None:
        while not self._died and not self._stopped:
            message = self._receive()
            with self._changed:
                self._changed.wait_for(lambda: self._has_room(message))  # noqa: B023 - called before the next message
                self._died = isinstance(message, _ProcessDied)
                self._messages.append(message)
                self._tokens += _tokens(message)
                self._changed.notify_all()

    def _has_room(self, message: Any) -> bool:
        return self._stopped or not self._messages or self._tokens + _tokens(message) <= self._ahead

    def _receive(self) -> Any:
        try:
            return self._incoming.recv()
        except (EOFError, OSError):
            return _ProcessDied()
        except Exception:
            return ProducerCrashed(traceback.format_exc())


def _tokens(message: Any) -> int:
    return message.prompt_tokens if isinstance(message, SampleRequest) else 0


def _start(incoming: int, outgoing: int) -> subprocess.Popen[bytes]:
    """Start a producer that reads and writes these file descriptors. What a library prints in it goes to stderr."""
    command = [
        sys.executable, "-c", _COMMAND.format(path=[_ROOT, *sys.path], incoming=incoming, outgoing=outgoing)
    ]  # fmt: skip
    env = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", **os.environ}  # leave the cores to the engine
    # SIGINT stays blocked in the child from its start on: a terminal's Ctrl-C reaches it too, but we stop it ourselves.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(incoming, outgoing), env=env)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
