"""Ctrl-C and its relatives: the first signal ends a run in order, the second, or a long silence, at once.

Ending at once is safe: what is finished is on disk, and no engine outlives us (`harness.gated.watchdog`).
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

GRACE = 30.0  # seconds in which an orderly end must be reached: an engine's shutdown takes up to ten
_NAMES = {signal.SIGINT: "Ctrl-C"}


class Stopped(KeyboardInterrupt):
    """A signal asked us to end. `code` is the exit status that shells expect: 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.code = 128 + signum
        self.name = _NAMES.get(signal.Signals(signum), signal.Signals(signum).name)


@contextlib.contextmanager
def stopping(last_words: Callable[[str], str]) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Stopped`, raised where the main thread is.

    `last_words`: what to print, given the signal's name, when the process ends at once: at a second signal, or after
    `GRACE` seconds, since a library may swallow the exception (an import that is interrupted does). Engines started
    within never see the terminal's Ctrl-C: they are ours to stop. A signal that is ignored already (nohup, a shell's
    background job) stays ignored. Outside the main thread nothing is changed: signals are not a thread's to handle.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[Stopped] = []

    def end_at_once() -> NoReturn:
        with contextlib.suppress(Exception):  # whatever the words need may be what hangs
            _say(last_words(seen[0].name))
        os._exit(seen[0].code)

    def handle(signum: int, frame: FrameType | None) -> None:
        seen.append(Stopped(signum))
        if len(seen) > 1:
            end_at_once()
        _say(f"\n{seen[0].name}: stopping; once more to stop at once")
        timer.start()
        raise seen[0]

    timer = threading.Timer(GRACE, end_at_once)
    timer.daemon = True
    signals = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    before = {s: signal.signal(s, handle) for s in signals}
    try:
        with _deaf_children():
            yield
    finally:
        timer.cancel()
        for s, handler in before.items():
            signal.signal(s, handler)


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that multiprocessing starts meanwhile have SIGINT blocked, and so has whatever they start.

    A terminal sends Ctrl-C to all processes in front of it. An engine that hears it aborts its requests, or dies in
    an import with a traceback, before we have asked it to. Blocked, not ignored: vLLM installs handlers of its own.
    """
    start = BaseProcess.start

    def start_deaf(process: Any) -> None:
        resource_tracker.ensure_running()  # started by `start` otherwise, and then it unblocks SIGINT
        old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            start(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)

    BaseProcess.start = start_deaf  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]


def _say(line: str) -> None:
    """A line on stderr past Python's buffers, which the interrupted code may be in the middle of."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())
