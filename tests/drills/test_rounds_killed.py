"""kill -9 of a run with `--budget` whose decision comes in rounds, with real engines side by side.

Killed in its first round, later, and once more, it takes the same steps as a run that nobody has killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from harness.config import load
from harness.run.budget import EqualPrecision
from harness.run.costs import Costs
from harness.run.plan import build
from harness.store import Store
from harness.store.rounds import Rounds
from tests.support import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3600)]

DEMO = ROOT / "tasks" / "demo"
CONFIG = {
    "name": "decide",
    "models": [{"label": label, "path": str(DEMO / f"models/{label}/long")} for label in ("baseline", "elementwise")],
    "contexts": [{"label": "base 1M", "rope_theta": 1_000_000, "max_length": 1024}],
    "benchmarks": [
        {"ruler": ["niah_single_2", "niah_multikey_1", "niah_multikey_2"], "lengths": [512], "profile": "fair",
         "samples": {"at_least": 12, "at_most": 60}, "answer_tokens": 16},
    ],
    "decide": {"candidate": "elementwise", "baseline": "baseline", "margin": 1.0},
    "data": str(DEMO / "data"),
    "results": "known",
    "engine": {"dtype": "float32"},
}  # fmt: skip


def start(folder: Path, run: str, *more: str) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, str(ROOT / "cli.py"), "run", "decide.yaml", "-o", run, *more]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(arguments, cwd=folder, stdout=log, stderr=log, start_new_session=True)


def finish(folder: Path, run: str, *more: str) -> Store:
    process = start(folder, run, *more)
    assert process.wait(1200) == 0, (folder / "log").read_text()[-3000:]
    return Store.read(folder / run)


def entry(store: Store) -> Rounds:
    [found] = [Rounds.from_dict(e) for e in store.manifest["rounds"]]
    return found


def lines(run: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in run.glob("samples/*.jsonl"))


def test_a_decision_within_a_budget_that_is_killed_takes_the_same_steps(tmp_path: Path) -> None:
    file = tmp_path / "decide.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    known = finish(tmp_path, "known/first")
    facts = known.manifest["models"]
    assert len(entry(known).samples) >= 3, "there should be rounds"
    starts = [len(cost["starts"]) for cost in known.manifest["cost"]["models"].values()]
    assert starts == [1, 1], "both engines stay until the end"
    assert all(facts[label]["engine"]["device"] for label in ("baseline", "elementwise"))

    plan = build(load(file, [f"results={tmp_path / 'known'}"]))
    costs = Costs(plan)
    assert costs.measured
    seconds = f"{round(costs.total(EqualPrecision(plan).counts(120)) + 1)}s"
    whole = finish(tmp_path, "whole/run", "--budget", seconds)
    assert 12 < whole.manifest["budget"]["samples"][0] < 60
    expected, run = entry(whole), tmp_path / "killed" / "run"
    assert len(expected.samples) >= 3

    first = 2 * sum(expected.samples[0])  # answers of both models' first round
    for wanted in (first // 3, first + 3, 2 * sum(expected.samples[1]) + 3):
        process = start(tmp_path, "killed/run", "--budget", seconds)
        deadline = time.monotonic() + 900
        while lines(run) < wanted and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, "the kill came too late"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert lines(run) >= wanted
    last = finish(tmp_path, "killed/run", "--budget", seconds)
    assert last.manifest["budget"] == whole.manifest["budget"]
    assert entry(last) == expected
    for cell in whole.cells:
        assert last.scores(cell).ids == whole.scores(cell).ids
        assert list(last.scores(cell).scores) == list(whole.scores(cell).scores)
