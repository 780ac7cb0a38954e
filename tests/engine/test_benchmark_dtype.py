"""`dtype:` of one benchmark on real engines: the run has the samples of the two runs with `engine.dtype` set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.store import Store
from tests.support import ROOT
from tests.support.in_process import gatedeval

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FWE = {"ruler": ["fwe"], "lengths": [512], "samples": 12}
NEEDLE = {"ruler": ["niah_single_1"], "lengths": [512], "samples": 6}
CHOICE = {"lm_eval": "demo_choice", "shots": 0, "samples": 12}


def run(tiny: Path, folder: Path, name: str, dtype: str, *benchmarks: dict[str, Any]) -> tuple[Path, str]:
    """Run the tiny models; the run directory, and what was printed."""
    facts = {
        "name": name,
        "models": [{"label": label, "path": str(tiny / label)} for label in ("baseline", "headwise")],
        "contexts": [{"label": "native", "max_length": 1024}],
        "benchmarks": list(benchmarks),
        "data": str(ROOT / "tasks/demo/data"),
        "engine": {"dtype": dtype, "enforce_eager": True},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(facts))
    done = gatedeval("run", f"{name}.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "results" / name, done.stdout + done.stderr


def samples_of(path: Path, *names: str) -> dict[str, Any]:
    """Cell and sample -> hash, response, scores, log-probabilities, of some tasks or benchmarks."""
    store = Store.read(path)
    return {
        f"{cell.key} {s.id}": (s.hash, s.response, s.response_tokens, s.scores, s.extra.get("logprobs"))
        for cell in store.cells
        if cell.task in names or cell.benchmark in names
        for s in store.samples(cell)
    }


def test_it_has_the_samples_of_the_runs_in_one_dtype(tiny: Path, tmp_path: Path) -> None:
    in_32 = [{**entry, "dtype": "float32"} for entry in (NEEDLE, CHOICE)]
    mixed, said = run(tiny, tmp_path, "mixed", "bfloat16", FWE, *in_32)
    of_16, _ = run(tiny, tmp_path, "of-16", "bfloat16", FWE)
    of_32, _ = run(tiny, tmp_path, "of-32", "float32", NEEDLE, CHOICE)
    assert samples_of(mixed, "fwe") == samples_of(of_16, "fwe")
    assert samples_of(mixed, "niah_single_1", "demo_choice") == samples_of(of_32, "niah_single_1", "demo_choice")
    assert len(samples_of(mixed, "fwe", "niah_single_1", "demo_choice")) == 2 * 30

    assert said.count("vLLM started in") == 4
    assert "baseline in float32: vLLM started in" in said
    caption = " ".join(said.split())
    assert "bfloat16; RULER (niah_single_1) at 512 and demo_choice in float32." in caption
    models = json.loads((mixed / "run.json").read_text())["models"]
    for entry in models.values():
        assert entry["engine"]["arithmetic"]["dtype"] == "bfloat16"
        assert entry["other_engines"]["float32"]["arithmetic"]["dtype"] == "float32"

    # the same command starts nothing; without the key, the benchmark is in the model's dtype again
    assert "vLLM started" not in run(tiny, tmp_path, "mixed", "bfloat16", FWE, *in_32)[1]
    again, said = run(tiny, tmp_path, "mixed", "bfloat16", FWE, NEEDLE)
    assert said.count("vLLM started in") == 2
    assert samples_of(again, "niah_single_1").keys() == samples_of(of_32, "niah_single_1").keys()
    assert all(samples_of(again, "niah_single_1")[k][0] != v[0] for k, v in samples_of(of_32, "niah_single_1").items())


def test_measured_and_budgeted_with_both_engines(tiny: Path, tmp_path: Path) -> None:
    facts = {
        "name": "small",
        "models": [{"label": "baseline", "path": str(tiny / "baseline")}],
        "contexts": [{"label": "native", "max_length": 1024}],
        "benchmarks": [FWE, {**CHOICE, "dtype": "float32"}],
        "data": str(ROOT / "tasks/demo/data"),
        "engine": {"dtype": "bfloat16", "enforce_eager": True},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(facts))
    done = gatedeval("plan", "small.yaml", "--measure", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "a calibration" in line]
    assert [row.split("  ")[0] for row in rows] == ["baseline", "baseline in float32"]
    speeds = json.loads((tmp_path / "results/speeds.json").read_text())
    assert [record["key"]["dtype"] for record in speeds] == ["bfloat16", "float32"]
    done = gatedeval("run", "small.yaml", "--budget", "10min", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "predicted to take about" in done.stderr
