"""Kill a writing process at an instant of the test's choice."""

from __future__ import annotations

import signal
import subprocess
import time


def killed_after(process: subprocess.Popen[str] | subprocess.Popen[bytes], seconds: float) -> bool:
    """kill -9 `process` some `seconds` after its first line of output; whether that ended it, and not its own end."""
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(seconds)
    process.kill()
    ended = process.wait()
    process.stdout.close()
    return ended == -signal.SIGKILL
