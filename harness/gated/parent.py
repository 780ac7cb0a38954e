"""An engine process ends with the process that started it, however that one ended.

vLLM's engine core waits for its client for ever: killed with -9 (out of memory, an impatient batch system), the client
would leave the engine behind with its memory, the GPU's included, and the next start would find none.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

ENGINE_OF = "GATEDEVAL_ENGINE_OF"
"""Environment variable: process id of the gatedeval process whose engines follow it. Not set: nothing is changed."""

_following = False


def follow_parent() -> None:
    """In a process that multiprocessing started below a gatedeval process: watch the parent, die when it is gone.

    The plugin calls it in every vLLM process; each watches its own parent, so a worker follows its engine core. Does
    nothing in the gatedeval process itself, and nothing where `ENGINE_OF` is not set (plain `vllm serve`).
    """
    global _following
    parent, owner = multiprocessing.parent_process(), os.environ.get(ENGINE_OF)
    if _following or parent is None or owner is None or owner == str(os.getpid()):
        return
    _following = True
    # The sentinel is a pipe that the system closes with the parent: nothing to poll, no process id that may be reused.
    threading.Thread(target=_die_after, args=(parent.sentinel,), name="follow-parent", daemon=True).start()


def _die_after(sentinel: int) -> None:
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
