"""`python reaper.py PID FOLDER`: ends the processes of a Ray that the process PID has started, when that one has ended.

Ray's own processes end when their parent does, but some only after a minute: a batch system would wait for them, and
the next run could find ports taken. This script runs beside the driver. It looks once a second which processes are
below those children of PID whose command line names FOLDER (Ray's), and kills what of them is left when its standard
input is closed: by `end`, or because PID was killed.
"""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import sys
import time

_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 1.0  # for processes that end by themselves


def start(pid: int, folder: str) -> subprocess.Popen[bytes]:
    """Start the script beside the process `pid`, whose standard input it takes as a sign of life."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a terminal's Ctrl-C is not for it
    try:
        command = [sys.executable, __file__, str(pid), folder]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end(process: subprocess.Popen[bytes]) -> None:
    """Let it end what is left, and wait for that."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)


def main(pid: int, folder: str) -> None:
    """The script."""
    import psutil

    for signum in (signal.SIGTERM, signal.SIGHUP):  # sent to the whole group; the driver may need longer
        signal.signal(signum, signal.SIG_IGN)
    known: set[psutil.Process] = set()
    this = psutil.Process()  # names FOLDER too
    while True:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(pid).children():
                with contextlib.suppress(psutil.Error):
                    if child != this and any(folder in part for part in child.cmdline()):
                        known |= {child, *child.children(recursive=True)}
        known = {process for process in known if process.is_running()}
        if select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
            break
    time.sleep(_GRACE_SECONDS)
    for process in known:
        with contextlib.suppress(psutil.Error):
            known = known | set(process.children(recursive=True))
    for process in known:
        with contextlib.suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
