"""What a person sees on a terminal while a real run goes on: whole bars, the start's clock, the closing line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support import ROOT
from tests.support.in_process import shared_engine
from tests.support.terminal import in_terminal

pytestmark = [pytest.mark.engine, pytest.mark.extended]

OURS = (
    re.compile(r"(plan|baseline, native, (niah_single_1|fwe) 512) +\d+%\|.*\|.*"),
    re.compile(r"making the first samples"),
    re.compile(r"starting vLLM on baseline, \d+ s"),
    re.compile(r"baseline: vLLM started in \d+ s"),
    re.compile(r"found \d+ of 12 samples finished"),
)


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_bars_of_a_real_run_stay_whole_and_the_clock_of_the_start_goes_on(
    tiny: Path, shared: Path, tmp_path: Path, columns: int
) -> None:
    shared_engine.close()
    config = {
        "name": "screens",
        "models": [{"label": "baseline", "path": str(tiny / "baseline"), "dtype": "float32"}],
        "contexts": [{"label": "native", "max_length": 512}],
        "benchmarks": [{"ruler": ["niah_single_1", "fwe"], "lengths": [512], "samples": 6, "answer_tokens": 16}],
        "engine": {"kv_cache_gib": 1},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    command = [str(ROOT / "cli.py"), "run", "c.yaml", "-o", "out"]
    screens, code = in_terminal(command, cwd=tmp_path, columns=columns, env={"GATEDEVAL_DATA": str(shared / "data")})
    assert code == 0, "\n".join(screens[-1])
    running = [[row for row in screen if row] for screen in screens]
    running = [rows for rows in running if any(row.startswith("plan ") for row in rows) and not closed(rows)]
    assert {row for rows in running for row in rows if not any(line.fullmatch(row) for line in OURS)} == set()
    assert all(len(row) <= columns for rows in running for row in rows)
    clocks = {row for rows in running for row in rows if row.startswith("starting vLLM on baseline, ")}
    assert len(clocks) > 1, "the clock goes on while the engine starts"
    assert any(row.startswith("plan 100%|") for row in running[-1])
    assert "12/12 samples" in "\n".join(running[-1])
    last = "\n".join(screens[-1])
    assert "complete; 12 samples answered, 0 found finished" in last
    assert re.search(r"^took .*tokens/s while answering, \d+% of [\d,]+ prompt tokens came from", last, re.MULTILINE)
    screens, code = in_terminal(command, cwd=tmp_path, columns=columns, env={"GATEDEVAL_DATA": str(shared / "data")})
    assert (code, "found 12 of 12 samples finished" in "\n".join(screens[-1])) == (0, True)


def closed(rows: list[str]) -> bool:
    """Whether the run has ended: its last lines and the table follow the bars."""
    return any("complete; 12 samples" in row for row in rows)
