"""`plan --measure` and `--budget` with a real engine: speeds are kept, a run keeps to its budget and continues it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from harness.cost.known import SPEEDS
from tests.support import ROOT
from tests.support.in_process import gatedeval

pytestmark = [pytest.mark.engine, pytest.mark.extended]

DEMO = ROOT / "tasks" / "demo"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    facts = {
        "name": "small",
        "models": [{"label": "headwise", "path": str(DEMO / "models/headwise/long")}],
        "contexts": [{"label": "base 1M", "rope_theta": 1_000_000, "max_length": 1024}],
        "benchmarks": [
            {"ruler": ["niah_single_2"], "lengths": [512, 1024], "samples": 6, "profile": "fair", "answer_tokens": 16},
            {"lm_eval": "demo_choice", "shots": 3, "samples": 16},
        ],
        "data": str(DEMO / "data"),
        "results": str(tmp_path / "results"),
        "engine": {"dtype": "float32"},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(facts))
    return path


def test_measured_planned_budgeted_run_and_continued(config: Path, tmp_path: Path) -> None:
    unknown = gatedeval("plan", config, "--budget", "1h", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "the speed of headwise on this machine is not known; add --measure" in unknown.stderr
    wrong = gatedeval("plan", config, "--budget", "soon", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "should be a time with its unit" in wrong.stderr

    measured = gatedeval("plan", config, "--measure", cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    assert "a calibration" in measured.stdout
    [record] = json.loads((tmp_path / "results" / SPEEDS).read_text())
    lengths = [o["work"]["computed"] / o["samples"] for o in record["observations"] if o.get("benchmark") is None]
    assert max(lengths) == 1023, "the longest prompt that the setting takes"
    assert {o["task"] for o in record["observations"] if o.get("benchmark")} == {"niah_single_2", "demo_choice"}
    again = gatedeval("plan", config, "--measure", cwd=tmp_path)
    assert "starting vLLM" not in again.stderr, "a speed that is known is not measured"

    record["starts"], record["switches"] = [1.0], [0.0]
    for observation in record["observations"]:  # a machine on which a token takes 10 ms and nothing else takes time
        observation["seconds"] = observation["work"]["computed"] * 1e-2
    (tmp_path / "results" / SPEEDS).write_text(json.dumps([record]))
    short = gatedeval("run", config, "--budget", "2s", cwd=tmp_path)
    assert short.returncode == 2
    assert "raise the budget" in short.stderr
    run = gatedeval("run", config, "--budget", "60s", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "time (predicted)" in run.stderr
    assert "predicted to take about" in run.stderr
    manifest = json.loads((tmp_path / "results/small/run.json").read_text())
    [ruler, choice] = manifest["budget"]["samples"]
    assert 1 <= ruler <= 6
    assert 1 <= choice < 16
    assert manifest["budget"]["asked"] == [6, 16]
    assert sorted({c["planned"] for c in manifest["cells"]}) == sorted({ruler, choice})
    assert "every reported number within ±" in run.stderr
    [session] = manifest["cost"]["sessions"]
    assert session["predicted_seconds"] <= 60
    continued = gatedeval("run", config, "--budget", "60s", cwd=tmp_path)
    assert continued.returncode == 0
    assert f"{sum(c['planned'] for c in manifest['cells'])} found finished" in continued.stderr
    assert json.loads((tmp_path / "results/small/run.json").read_text())["budget"] == manifest["budget"]
