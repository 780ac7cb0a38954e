"""A watchdog that kills an engine process when the process that started it has ended, for whatever reason.

vLLM's engine core waits for its client without a time limit. If the client is killed with SIGKILL (out of memory, a
batch system's time limit), the engine keeps running and keeps its memory, the GPU's included, so that the next start
finds none.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import wait

ENGINE_OF = "GATEDEVAL_ENGINE_OF"
"""Environment variable: id of the gatedeval process whose engine processes end with it. Not set: no watchdog."""

_SPAWNED = "--multiprocessing-fork"  # on the command line of every process that multiprocessing has spawned
_watching = False
_follows_forks = False
_forking = 0  # id of the process that forks


def follow_parent() -> None:
    """Start the watchdog, if this is an engine process of gatedeval: it kills this process when its parent has ended.

    Every vLLM process watches its own parent: a worker ends with its engine core, the core with the gatedeval process.
    Does nothing in the gatedeval process itself, and nothing if `ENGINE_OF` is not set (plain `vllm serve`).

    vLLM calls this function several times. First as a platform plugin, while a process imports vLLM; the result None
    means "not this platform". The watchdog must start that early: the startup handshake blocks up to 5 minutes if the
    parent died. Then again from the general plugins (with `VLLM_TARGET_DEVICE=cpu` vLLM does not call platform
    plugins), and when a worker imports our extension (`VLLM_PLUGINS` may exclude the plugins).
    """
    global _watching
    owner = os.environ.get(ENGINE_OF)
    if owner is None:
        return
    follow_forks()
    is_child = multiprocessing.parent_process() is not None or _SPAWNED in sys.orig_argv
    if _watching or not is_child or owner == str(os.getpid()):
        return
    _watching = True
    threading.Thread(target=_die_with_parent, name="follow-parent", daemon=True).start()


def follow_forks() -> None:
    """From now on, every process that this one forks starts the watchdog by itself, and so do those that it forks.

    A forked engine core never calls `follow_parent`: vLLM has loaded its plugins before the fork and does not load them
    again. gatedeval asks vLLM to spawn its processes; this is for a user who asks for fork. Idempotent.
    """
    global _follows_forks
    if not _follows_forks:
        _follows_forks = True
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _before_fork() -> None:
    global _forking
    _forking = os.getpid()


def _after_fork() -> None:
    """In the child: watch the process that forked it. The thread of an inherited watchdog was not forked with it."""
    global _watching
    _watching = os.environ.get(ENGINE_OF) is not None
    if _watching:
        threading.Thread(target=_die_with, args=(_forking,), name="follow-parent", daemon=True).start()


def _die_with_parent() -> None:
    while (parent := multiprocessing.parent_process()) is None:  # not unpickled yet
        time.sleep(0.05)
    # The sentinel is a pipe that the system closes when the parent ends. A process id could be reused.
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def _die_with(parent: int) -> None:
    """Wait until the process `parent`, which forked this one, has ended; then kill this process."""
    try:
        descriptor = os.pidfd_open(parent)
    except (AttributeError, OSError):  # no Linux, a kernel before 5.3, a container that forbids it, or no such process
        descriptor = None
    # While it is still our parent, its id was not reused, so the descriptor is the right process.
    if descriptor is not None and os.getppid() == parent:
        wait([descriptor])
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
