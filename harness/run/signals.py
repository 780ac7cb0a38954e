"""SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first signal shuts a run down in order; a second one ends it at once.

A run that has not shut down after `GRACE` seconds ends at once too. That is safe: finished samples are on disk, and an
engine ends when its parent process does (`harness.gated.watchdog`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, NoReturn

GRACE = 30.0  # seconds for an orderly shutdown; the shutdown of an engine takes up to 10
_NAMES = {signal.SIGINT: "Ctrl-C"}


class Stopped(KeyboardInterrupt):
    """A signal ended the run. `code`: the exit status that shells expect, 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.code = 128 + signum
        self.name = _NAMES.get(signal.Signals(signum), signal.Signals(signum).name)


@contextlib.contextmanager
def stop_on_signals(final_message: Callable[[str], str]) -> Iterator[None]:
    """Within this context, SIGINT, SIGTERM and SIGHUP raise `Stopped` in the main thread.

    `final_message`: takes the signal's name; returns what to print when the process ends at once, at a second signal or
    after `GRACE` seconds (a library may swallow the exception; an interrupted import does). Engines that start within
    the context do not receive the terminal's Ctrl-C: this process stops them. A signal that is ignored already (nohup,
    a shell's background job) stays ignored. Outside the main thread this changes nothing: only the main thread can
    handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[Stopped] = []
    stderr = os.dup(2)  # while an engine starts, descriptor 2 leads to the engine's log

    def end_at_once() -> NoReturn:
        with contextlib.suppress(Exception):  # what `final_message` needs may be what hangs
            _print_unbuffered(stderr, final_message(received[0].name))
        os._exit(received[0].code)

    def handle(signum: int, frame: FrameType | None) -> None:
        received.append(Stopped(signum))
        if len(received) > 1:
            end_at_once()
        _print_unbuffered(stderr, f"\n{received[0].name}: stopping; once more to stop at once")
        timer.start()
        raise received[0]

    timer = threading.Timer(GRACE, end_at_once)
    timer.daemon = True
    signals = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    before = {s: signal.signal(s, handle) for s in signals}
    try:
        with _sigint_blocked_in_children():
            yield
    except KeyboardInterrupt:
        if received:  # a library may have put its own in place of ours (Ray does)
            raise received[0] from None
        raise
    finally:
        timer.cancel()
        for s, handler in before.items():
            signal.signal(s, handler)
        os.close(stderr)


@contextlib.contextmanager
def _sigint_blocked_in_children() -> Iterator[None]:
    """Within this context, processes that multiprocessing starts have SIGINT blocked, and so have their children.

    A terminal sends Ctrl-C to all its foreground processes. An engine that receives it aborts its requests, or dies in
    an import with a traceback, before this process shuts it down. Blocked and not ignored, because vLLM installs
    handlers of its own.
    """
    start = BaseProcess.start

    def start_blocked(process: Any) -> None:
        resource_tracker.ensure_running()  # `start` would start it, and that unblocks SIGINT
        old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            start(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)

    BaseProcess.start = start_blocked  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]


def _print_unbuffered(descriptor: int, line: str) -> None:
    """Write a line without Python's buffers: the interrupted code may be writing to them."""
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{line}\n".encode())
