"""Samples made ahead of the engine, in a process of their own: what `making` yields, through a pipe, in bounded memory.

Plain pipes instead of `multiprocessing`: the child never imports the caller's main module; it ends when its stdin does,
however the parent died; and when the child dies, its stdout ends, which the parent sees: never a hang.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from harness.engine.requests import SampleRequest
from harness.run.plan import Plan
from harness.run.producing import Assignment, CellFailed, CellFinished, Event, produce
from harness.types import Cell

AHEAD = 4_000_000
"""Prompt tokens that wait in the parent at most, 4 bytes each; the child holds one window of `ordering` besides."""
_START = "import sys; sys.path[:] = {path!r}; from harness.run.prefetching import child; child()"
_ROOT = str(Path(__file__).resolve().parents[2])  # the child must find this `harness`, whatever else is on the path
_LENGTH = struct.Struct("<Q")


class FeedError(RuntimeError):
    """Making samples failed in a way that is no user's mistake: a bug, told with its traceback."""


@dataclass(frozen=True)
class _End:
    """All of the work is made."""


@dataclass(frozen=True)
class _Crash:
    """An error that is not a GatedevalError."""

    trace: str


@dataclass(frozen=True)
class _Here:
    """A cell to be made in the parent: its samples hold what cannot be sent (an lm-eval task with live objects)."""

    cell: Cell


@dataclass(frozen=True)
class _Gone:
    """The child's output has ended: it is dead."""


class Feed:
    """The samples of a plan's cells as events, made ahead in one process, which starts with the first work."""

    def __init__(self, plan: Plan, *, ahead: int = AHEAD) -> None:
        self.plan, self.ahead = plan, ahead
        self._process: subprocess.Popen[bytes] | None = None
        self._inbox: _Inbox | None = None
        self._working: Assignment | None = None

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process' id, while there is one."""
        return None if self._process is None else self._process.pid

    def begin(self, work: Assignment) -> None:
        """Let `work` be made from now on; its events are taken later. Other work that was begun is given up."""
        if self._working is work:
            return
        if self._working is not None:
            self.close()
        self._working = work
        if self._process is None:
            self._start()
        self._send(work)

    def events(self, work: Assignment, busy: Callable[[], bool] = lambda: False) -> Iterator[Event | None]:
        """The events of `work`, as `producing.produce` yields them.

        `busy`: whether the caller has something else to do meanwhile. If so, None says that no event is ready yet; if
        not, the next one is waited for. When the process is killed, the cell that it was making fails, and another
        process makes the cells that are left.

        Raises:
            FeedError: a bug in making the samples.
        """
        left = dict.fromkeys(work.cells)
        ended = False
        try:
            self.begin(work)
            while not ended:
                assert self._inbox is not None
                message = self._inbox.take(wait=not busy())
                match message:
                    case _End():
                        ended = True
                    case _Crash(trace):
                        raise FeedError(f"making the samples failed:\n{trace}")
                    case _Here(cell):
                        left.pop(cell)
                        yield from produce(self.plan, replace(work, cells=(cell,)))
                    case _Gone():
                        how = self.close()
                        if not left:  # it died after its last word
                            return
                        left.pop(cell := next(iter(left)))
                        yield CellFailed(cell, f"the process that makes the samples died ({how}); run again to go on")
                        work = replace(work, cells=tuple(left))
                        if not left:
                            return
                        self.begin(work)
                    case _:
                        if isinstance(message, CellFinished | CellFailed):
                            left.pop(message.cell, None)
                        yield message
        finally:
            if ended:
                self._working = None
            else:  # what is still being made is for nobody
                self.close()

    def _start(self) -> None:
        command = [sys.executable, "-c", _START.format(path=[_ROOT, *sys.path])]
        env = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", **os.environ}  # the cores are the engine's
        # A terminal's Ctrl-C reaches it too, from its first moment on: it is ours to stop.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        assert self._process.stdout is not None
        self._inbox = _Inbox(self._process.stdout, self.ahead)
        self._send(self.plan)

    def _send(self, message: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a dead child is told by the end of its output
            pickle.dump(message, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()

    def close(self) -> str:
        """Stop the process; how it ended, in words. Idempotent; more work starts another one."""
        process, inbox = self._process, self._inbox
        self._process = self._inbox = self._working = None
        if process is None or inbox is None:
            return "stopped"
        with contextlib.suppress(subprocess.TimeoutExpired):  # whoever is dying may still tell how
            process.wait(timeout=1 if inbox.gone else 0)
        process.kill()
        code = process.wait()
        inbox.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # type: ignore[union-attr]
        process.stdout.close()  # type: ignore[union-attr]
        return f"signal {-code}" if code < 0 else f"exit code {code}"


class _Inbox:
    """Messages of a child, read by a thread as long as no more than `ahead` prompt tokens wait."""

    def __init__(self, pipe: IO[bytes], ahead: int) -> None:
        self.gone = False
        self._pipe, self._ahead = pipe, ahead
        self._waiting: deque[Any] = deque()
        self._tokens = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self.gone and not self._closed:
            message = self._receive()
            size = message.prompt_tokens if isinstance(message, SampleRequest) else 0
            with self._changed:
                while not self._closed and self._waiting and self._tokens + size > self._ahead:
                    self._changed.wait()
                self.gone = isinstance(message, _Gone)
                self._tokens += size
                self._waiting.append(message)
                self._changed.notify_all()

    def _receive(self) -> Any:
        try:
            header = self._pipe.read(_LENGTH.size)
            if len(header) < _LENGTH.size:
                return _Gone()
            [length] = _LENGTH.unpack(header)
            body = self._pipe.read(length)
            return pickle.loads(body) if len(body) == length else _Gone()
        except Exception:
            return _Gone() if self._closed else _Crash(traceback.format_exc())

    def take(self, wait: bool) -> Any:
        """The next message; None where there is none and `wait` is false."""
        with self._changed:
            while wait and not self._waiting:
                self._changed.wait()
            if not self._waiting:
                return None
            message = self._waiting.popleft()
            self._tokens -= message.prompt_tokens if isinstance(message, SampleRequest) else 0
            self._changed.notify_all()
            return message

    def close(self) -> None:
        """Let the thread end; the child must be dead."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()


# --- the child ----------------------------------------------------------------------------------------------------


def child() -> None:
    """What the process does: make the work that comes in on stdin; end when stdin does."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the messages
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(inbox,), daemon=True).start()
    plan = inbox.get()
    if all(b.kind != "lm_eval" for b in plan.config.benchmarks):  # lm-eval's other tasks may want torch for themselves
        _tokenizers_without_torch()
    with contextlib.suppress(BrokenPipeError):
        while True:
            _work(plan, inbox.get(), out)
    os._exit(0)


def _tokenizers_without_torch() -> None:
    """Import transformers' tokenizers as where torch is not installed: a third of the time and memory."""
    if "torch" in sys.modules or "transformers" in sys.modules:
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would say that there is no torch
    sys.modules["torch"] = None  # type: ignore[assignment] # find_spec's word for "there is none"
    try:
        from transformers import AutoTokenizer  # noqa: F401
    finally:
        del sys.modules["torch"]


def _listen(inbox: queue.SimpleQueue[Any]) -> None:
    while True:
        try:
            inbox.put(pickle.load(sys.stdin.buffer))
        except EOFError:
            os._exit(0)
        except Exception:
            traceback.print_exc()
            os._exit(1)


def _work(plan: Plan, work: Assignment, out: IO[bytes]) -> None:
    """Send every event of `work`, then its end."""
    skipped: Cell | None = None  # made in the parent
    sent: set[Cell] = set()  # cells of which a sample was sent
    try:
        for event in produce(plan, work):
            if event.cell == skipped:
                continue
            try:
                data = _packed(event)
            except Exception as error:  # pickle raises whatever an object's own method raises
                skipped = event.cell
                data = _packed(
                    CellFailed(event.cell, f"a sample cannot be sent from process to process ({error})")
                    if event.cell in sent
                    else _Here(event.cell)  # type: ignore[arg-type]
                )
            if isinstance(event, SampleRequest):
                sent.add(event.cell)  # type: ignore[arg-type]
            _write(out, data)
        _write(out, _packed(_End()))
    except BrokenPipeError:
        raise
    except Exception:
        _write(out, _packed(_Crash(traceback.format_exc())))


def _packed(message: Any) -> bytes:
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def _write(out: IO[bytes], data: bytes) -> None:
    out.write(_LENGTH.pack(len(data)))
    out.write(data)
    out.flush()
