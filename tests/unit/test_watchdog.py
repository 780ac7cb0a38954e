"""Forked processes end with the process that forked them, also if that one is killed with SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.support import ROOT

# The script prints the ids of a child and of the child's child, both forked, and waits to be killed.
FORKS = """
import multiprocessing, os, sys, time

def grandchild():
    print(os.getpid(), flush=True)
    time.sleep(600)

def child(method):
    print(os.getpid(), flush=True)
    if method == "os.fork":
        if os.fork() == 0:
            grandchild()
    else:
        multiprocessing.get_context("fork").Process(target=grandchild, daemon=False).start()
    time.sleep(600)

if __name__ == "__main__":
    method, owned, prepare = sys.argv[1:]
    if owned == "owned":
        os.environ["GATEDEVAL_ENGINE_OF"] = str(os.getpid())
    exec(prepare)
    if method == "os.fork":
        if os.fork() == 0:
            child(method)
    else:
        multiprocessing.get_context("fork").Process(target=child, args=(method,)).start()
    time.sleep(600)
"""
WATCHDOG = "from harness.gated.watchdog import follow_parent; follow_parent()"
PLUGINS = "from vllm.plugins import load_general_plugins; load_general_plugins()"


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def survivors(folder: Path, method: str, prepare: str, owned: bool = True, wait: float = 60.0) -> list[bool]:
    """Whether child and grandchild of a killed process are alive, `wait` seconds later or as soon as none is."""
    script = folder / "forks.py"
    script.write_text(textwrap.dedent(FORKS))
    others = {
        k: v for k, v in os.environ.items() if k != "GATEDEVAL_ENGINE_OF"
    }  # an engine test of this process has set it
    with subprocess.Popen(
        [sys.executable, str(script), method, "owned" if owned else "free", prepare],
        env={**others, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        try:
            assert all(map(alive, pids))
            process.kill()
            process.wait()
            deadline = time.monotonic() + wait
            while any(map(alive, pids)) and time.monotonic() < deadline:
                time.sleep(0.05)
            return [alive(pid) for pid in pids]
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("method", ["os.fork", "multiprocessing"])
def test_forked_processes_end_with_a_killed_parent(tmp_path: Path, method: str) -> None:
    assert survivors(tmp_path, method, WATCHDOG) == [False, False]


def test_without_the_system_s_process_descriptors_too(tmp_path: Path) -> None:
    """macOS, old kernels, containers that forbid the call."""
    assert survivors(tmp_path, "os.fork", f"{WATCHDOG}; del os.pidfd_open") == [False, False]


@pytest.mark.extended
def test_an_engine_that_is_forked_after_vllm_has_loaded_its_plugins_ends_too(tmp_path: Path) -> None:
    assert survivors(tmp_path, "multiprocessing", PLUGINS) == [False, False]


def test_processes_that_gatedeval_does_not_own_are_left_alone(tmp_path: Path) -> None:
    """Plain `vllm serve` with our plugin: no watchdog."""
    assert survivors(tmp_path, "os.fork", WATCHDOG, owned=False, wait=2.0) == [True, True]
