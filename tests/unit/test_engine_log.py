"""What an engine and its processes print goes to the engine's log; standard error of our own stays whole."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

from harness.engine.log import EngineLog
from tests.support import ROOT

PROGRAM = """
import os, subprocess, sys, logging
from pathlib import Path
sys.path.insert(0, {root!r})
from harness.engine.log import EngineLog
from harness.run.progress import own_stderr

own = own_stderr()
log = EngineLog(Path("engine.log"), "a title")
with log.redirected():
    print("python, stdout"); print("python, stderr", file=sys.stderr)
    os.write(1, b"descriptor 1\\n"); os.write(2, b"descriptor 2\\n")
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); print('child')"], stdin=-1)
    print("a bar", file=own)
child.communicate(b"")  # the child writes after the engine has started
print("data"); print("message", file=sys.stderr)
log.close()
"""


def test_only_our_own_lines_reach_the_terminal(tmp_path: Path) -> None:
    """Lines of vLLM, Triton and NUMA tore the bars apart, and what went to standard output was among the data."""
    command = [sys.executable, "-c", PROGRAM.format(root=str(ROOT))]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == "data\n"
    assert result.stderr == "a bar\nmessage\n"
    title, *lines = (tmp_path / "engine.log").read_text().splitlines()
    assert title.endswith("a title")
    assert sorted(lines) == sorted(["python, stdout", "python, stderr", "descriptor 1", "descriptor 2", "child"])


def test_vllms_logger_of_this_process_writes_to_the_log_until_it_is_closed(tmp_path: Path) -> None:
    logger, handler = logging.getLogger("vllm"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        log = EngineLog(tmp_path / "engine.log", "title")
        with log.redirected():
            pass
        logger.error("an engine process died")
        assert "an engine process died" in log.text()
        log.close()
        assert handler.stream is sys.stderr
    finally:
        logger.removeHandler(handler)


def test_a_log_is_appended_to_and_its_text_is_the_present_engines(tmp_path: Path) -> None:
    for number in (1, 2):
        log = EngineLog(tmp_path / "engine.log", f"engine {number}")
        text = log.text()
        log.close()
    assert "engine 2" in text
    assert "engine 1" not in text
    assert len((tmp_path / "engine.log").read_text().splitlines()) == 2


def test_a_temporary_log_stays_only_after_a_failure() -> None:
    for failed in (False, True):
        log = EngineLog(None, "title")
        log.close(failed=failed)
        assert log.path.exists() == failed
    log.path.unlink()
