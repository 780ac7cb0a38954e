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


def follow_parent() -> None:
    """Start the watchdog, if this is an engine process of gatedeval: it kills this process when its parent has ended.

    Every vLLM process watches its own parent: a worker ends with its engine core, the core with the gatedeval process.
    Does nothing in the gatedeval process itself, and nothing if `ENGINE_OF` is not set (plain `vllm serve`).

    vLLM calls this function twice. First as a platform plugin, while a process imports vLLM; the result None means "not
    this platform". The watchdog must start that early: the startup handshake blocks up to 5 minutes if the parent
    died. Then again from the general plugins: with `VLLM_TARGET_DEVICE=cpu` vLLM does not call platform plugins.
    """
    global _watching
    owner = os.environ.get(ENGINE_OF)
    is_child = multiprocessing.parent_process() is not None or _SPAWNED in sys.orig_argv
    if _watching or not is_child or owner is None or owner == str(os.getpid()):
        return
    _watching = True
    threading.Thread(target=_die_with_parent, name="follow-parent", daemon=True).start()


def _die_with_parent() -> None:
    while (parent := multiprocessing.parent_process()) is None:  # not unpickled yet
        time.sleep(0.05)
    # The sentinel is a pipe that the system closes when the parent ends. A process id could be reused.
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
