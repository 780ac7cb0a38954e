"""An engine process ends with the process that started it, however that one ended.

vLLM's engine core waits for its client for ever: killed with -9 (out of memory, an impatient batch system), the client
would leave the engine behind with its memory, the GPU's included, and the next start would find none.
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
"""Environment variable: process id of the gatedeval process whose engines follow it. Not set: nothing is changed."""

_SPAWNED = "--multiprocessing-fork"  # on the command line of every process that multiprocessing has spawned
_following = False


def follow_parent() -> None:
    """In a process that multiprocessing started below a gatedeval process: watch the parent, die when it is gone.

    Each vLLM process watches its own parent, so a worker follows its engine core. Does nothing in the gatedeval process
    itself, and nothing where `ENGINE_OF` is not set (plain `vllm serve`).

    vLLM calls it first while a process imports vLLM, as a platform plugin that is never the platform (None says so):
    the general plugins come only after the engine has shaken hands with its parent, and for a dead parent's hand it
    waits five minutes. They call it again, for where `VLLM_TARGET_DEVICE=cpu` skips the question for a platform.
    """
    global _following
    owner = os.environ.get(ENGINE_OF)
    a_child = multiprocessing.parent_process() is not None or _SPAWNED in sys.orig_argv
    if _following or not a_child or owner is None or owner == str(os.getpid()):
        return
    _following = True
    threading.Thread(target=_die_with_parent, name="follow-parent", daemon=True).start()


def _die_with_parent() -> None:
    while (parent := multiprocessing.parent_process()) is None:  # not known before the process is unpickled
        time.sleep(0.05)
    # The sentinel is a pipe that the system closes with the parent: no process id that may be reused.
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
