"""Signals of processes that tests start."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


def receive_signals() -> None:
    """Let a new process receive the signals that end a run, whatever the tests' own process ignores.

    A shell's background job ignores Ctrl-C, and `nohup` ignores SIGHUP; children inherit both. `preexec_fn` of
    `subprocess.Popen`.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


@contextlib.contextmanager
def ctrl_c_received() -> Iterator[None]:
    """Within this, Ctrl-C raises KeyboardInterrupt in this process, also in a shell's background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
