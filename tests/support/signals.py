"""Signals of processes that tests start."""

from __future__ import annotations

import signal


def receive_signals() -> None:
    """Let a new process receive the signals that end a run, whatever the tests' own process ignores.

    A shell's background job ignores Ctrl-C, and `nohup` ignores SIGHUP; children inherit both. `preexec_fn` of
    `subprocess.Popen`.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
