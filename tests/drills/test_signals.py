"""Signals to a running process: an orderly shutdown, an immediate end, and children that do not receive Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.signals import receive_signals

WORKER = """
import multiprocessing, os, sys, time
from harness.run import signals
from harness.gated.watchdog import ENGINE_OF, follow_parent
from harness.run.signals import Stopped

def say(line):
    sys.stdout.write(line + "\\n")  # one write: two processes share this pipe
    sys.stdout.flush()

def child():
    follow_parent()
    blocked = int(next(x for x in open("/proc/self/status") if x.startswith("SigBlk")).split()[1], 16)
    say(f"child receives Ctrl-C: {not blocked & 2}")
    time.sleep(60)

def work(stubborn):
    while True:
        try:
            say("working")
            time.sleep(60)
        except KeyboardInterrupt:
            if not stubborn:
                raise

if __name__ == "__main__":
    os.environ[ENGINE_OF] = str(os.getpid())
    signals.GRACE = float(sys.argv[2])
    process = multiprocessing.get_context("spawn").Process(target=child, daemon=True)
    try:
        with signals.stop_on_signals(lambda name: f"final message after {name}"):
            process.start()
            while not process.is_alive(): pass
            time.sleep(0.1)
            work(stubborn=sys.argv[1] == "stubborn")
    except Stopped as stopped:
        say(f"child alive: {process.is_alive()}")
        print("shut down in order after", stopped.name, file=sys.stderr)
        sys.exit(stopped.code)
"""


class Worker:
    def __init__(self, folder: Path, mode: str, grace: float = 60.0, before: str = "") -> None:
        script = folder / "worker.py"
        script.write_text(textwrap.dedent(WORKER))
        command = [sys.executable, str(script), mode, str(grace)]
        self.process = subprocess.Popen(
            ["sh", "-c", f'{before} exec "$@"', "sh", *command],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=receive_signals,
        )
        assert self.process.stdout is not None
        assert {self.process.stdout.readline() for _ in range(2)} == {"working\n", "child receives Ctrl-C: False\n"}

    def group(self, signum: int) -> None:
        os.killpg(self.process.pid, signum)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


@pytest.mark.parametrize(
    ("signum", "code", "name"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")],
)
def test_the_first_signal_shuts_down_in_order(tmp_path: Path, signum: int, code: int, name: str) -> None:
    worker = Worker(tmp_path, "willing")
    worker.process.send_signal(signum)
    status, _, err = worker.end()
    assert status == code
    assert err.splitlines()[-2:] == [f"{name}: stopping; once more to stop at once", f"shut down in order after {name}"]
    assert "Traceback" not in err


def test_ctrl_c_on_a_terminal_does_not_reach_the_children(tmp_path: Path) -> None:
    worker = Worker(tmp_path, "willing")
    worker.group(signal.SIGINT)
    status, out, err = worker.end()
    assert status == 130
    assert out.splitlines() == ["child alive: True"]
    assert "Traceback" not in err


def test_the_second_signal_ends_at_once(tmp_path: Path) -> None:
    worker = Worker(tmp_path, "stubborn", grace=3600.0)  # by itself it would end after an hour
    assert worker.process.stdout is not None
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.stdout.readline() == "working\n", "the process swallowed the first signal"
    worker.process.send_signal(signal.SIGTERM)
    status, _, err = worker.end()
    assert (status, err.splitlines()[-1]) == (130, "final message after Ctrl-C")


def test_a_swallowed_signal_ends_the_process_after_the_grace_period(tmp_path: Path) -> None:
    worker = Worker(tmp_path, "stubborn", grace=0.5)
    worker.process.send_signal(signal.SIGTERM)
    status, _, err = worker.end()
    assert (status, err.splitlines()[-1]) == (143, "final message after SIGTERM")


def test_a_signal_that_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    worker = Worker(tmp_path, "willing", before="trap '' HUP;")
    worker.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert worker.process.poll() is None
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end()[0] == 143
