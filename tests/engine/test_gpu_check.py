"""`make gpu-check`: on a CPU, what can run there says yes, and what cannot is skipped by name with a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.engine

NEEDS_A_GPU = {"headwise_bfloat16_compiled", "prompt_of_128k_tokens", "gate_overhead", "harness_overhead"}


def gpu_check(tmp_path: Path, shared: Path, *arguments: str) -> tuple[int, dict[str, dict], str]:
    """Exit code, rows by name, and the printed table."""
    import os

    target = tmp_path / "gpu.json"
    command = [sys.executable, str(ROOT / "scripts/gpu_check.py"), "--json", str(target), *arguments]
    environment = {**os.environ, "GATEDEVAL_SHARED": str(shared)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert target.exists(), done.stderr
    return done.returncode, {row["check"]: row for row in json.loads(target.read_text())["checks"]}, done.stdout


@pytest.mark.slow
def test_gpu_check_passes_on_a_cpu_and_names_what_it_skips(tmp_path: Path, shared: Path) -> None:
    from harness.engine import vllm_api

    if vllm_api.on_gpu():
        pytest.skip("this machine has a GPU: run make gpu-check")
    code, rows, table = gpu_check(tmp_path, shared)
    assert {name for name, row in rows.items() if row["status"] == "no"} == set(), table
    assert code == 0
    skipped = {name for name, row in rows.items() if row["status"] == "skipped"}
    assert NEEDS_A_GPU <= skipped <= NEEDS_A_GPU | {"two_ranks"}
    assert all(rows[name]["numbers"]["reason"] in table for name in skipped)


@pytest.mark.extended
def test_a_check_that_fails_is_a_no_and_the_exit_code_1(tmp_path: Path) -> None:
    """A folder without oracles' files: the check cannot read them, says so, and the others are not disturbed."""
    (tmp_path / "oracles/c_elementwise_gqa").mkdir(parents=True)
    code, rows, table = gpu_check(tmp_path, tmp_path, "--only", "gate_overhead,oracles")
    assert code == 1
    assert rows["oracles"]["status"] == "no"
    assert "FileNotFoundError" in rows["oracles"]["numbers"]["error"]
    assert rows["gate_overhead"]["status"] == "skipped"
    assert table.splitlines()[-1] == "0 yes, 1 no, 1 skipped"
