"""`make bench`: which benchmarks run, are skipped or fail, and what is appended. Timing is not tested."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

RESULT = 'from common import emit\nemit("gate", "two percent", ratio=1.0200004, starts=2)\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with the benchmarks' runner and no benchmark."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/benchmarks.md").write_text("# Benchmarks\n")
    for name in ("all.py", "common.py"):
        shutil.copyfile(ROOT / "bench" / name, tmp_path / "bench" / name)
    return tmp_path


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "bench/all.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_results_are_appended_under_a_date(folder: Path) -> None:
    (folder / "bench/gate.py").write_text(RESULT)
    (folder / "bench/overhead.py").write_text("print('pair 0: ...')\nprint('median ratio 1.03')\n")  # no JSON line
    done = bench(folder, "--only", "gate,overhead,prefix")
    assert done.returncode == 0, done.stderr
    document = (folder / "docs/benchmarks.md").read_text()
    assert document.startswith("# Benchmarks\n\n## `make bench`, 20")
    assert re.search(r"Machine: .+, \d+ cores, \d+ GiB.*Python 3\.\d+.*torch 2", document)
    assert document.splitlines()[-3:] == [
        "- **gate**: two percent", "- **overhead**: median ratio 1.03", "- **prefix**: skipped: not there yet",
    ]  # fmt: skip
    bench(folder, "--only", "gate")
    assert (folder / "docs/benchmarks.md").read_text().startswith(document)


def test_a_failure_is_a_line_and_an_exit_code(folder: Path) -> None:
    (folder / "bench/gate.py").write_text("raise SystemExit('broken')")
    (folder / "bench/sweep.py").write_text(RESULT.replace("gate", "sweep"))
    done = bench(folder, "--only", "gate,sweep", "--dry")
    assert done.returncode == 1
    assert "- **gate**: failed with exit code 1" in done.stdout
    assert "- **sweep**: two percent" in done.stdout
    assert (folder / "docs/benchmarks.md").read_text() == "# Benchmarks\n"  # --dry


def test_a_benchmark_can_say_why_it_is_skipped(folder: Path) -> None:
    (folder / "bench/choose.py").write_text('from common import skip\nskip("choose", "no model here")\n')
    done = bench(folder, "--only", "choose", "--dry")
    assert done.returncode == 0
    assert "- **choose**: skipped: no model here" in done.stdout


def test_an_unknown_name_is_refused(folder: Path) -> None:
    done = bench(folder, "--only", "gait")
    assert done.returncode == 2
    assert "unknown benchmark 'gait'; there are ruler, choose" in done.stderr


def test_a_result_is_one_line_for_people_and_one_for_programs(folder: Path) -> None:
    (folder / "bench/gate.py").write_text(RESULT)
    done = subprocess.run([sys.executable, str(folder / "bench/gate.py")], capture_output=True, text=True, check=True)
    words, data = done.stdout.splitlines()
    assert words == "gate: two percent"
    facts = json.loads(data)
    assert (facts["bench"], facts["ratio"], facts["starts"], facts["line"]) == ("gate", 1.02, 2, "two percent")


def test_the_benchmarks_that_are_named_are_the_ones_that_are_there() -> None:
    named = set(re.findall(r'^    "(\w+)": \[', (ROOT / "bench/all.py").read_text(), re.MULTILINE))
    there = {file.stem for file in (ROOT / "bench").glob("*.py")} - {"all", "common", "__init__"}
    assert there <= named
    assert {"ruler", "choose", "sweep", "gate", "fewshot", "startup"} <= there
