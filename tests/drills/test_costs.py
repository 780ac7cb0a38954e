"""What a run records about its time: predicted and real, over sessions, and what the next run makes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.config import Config, from_dict
from harness.cost.work import Work
from harness.run import runner
from harness.run.costs import Costs
from harness.run.plan import build
from harness.run.progress import Progress
from harness.types import Cell
from tests.support.fake_engine import FakeEngine, InlineProducer


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Prefetcher", InlineProducer)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def config(tiny: Path, results: Path, samples: int = 3) -> Config:
    models = [{"label": arm, "path": str(tiny / arm)} for arm in ("baseline", "headwise")]
    contexts = [{"label": "native", "max_length": 1024}, {"label": "base", "rope_theta": 5e5, "max_length": 2048}]
    benchmarks = [{"ruler": ["fwe"], "lengths": [1024, 2048], "samples": samples}]
    facts: dict[str, Any] = {"models": models, "contexts": contexts, "benchmarks": benchmarks}
    return from_dict({"name": "n", "results": str(results), **facts})


def run(made: Config, path: Path) -> dict[str, Any]:
    """`cost` of run.json after one session."""
    plan = build(made)
    runner.run(plan, path, progress=Progress(plan, quiet=True), engine_factory=FakeEngine)
    cost: dict[str, Any] = json.loads((path / "run.json").read_text())["cost"]
    return cost


def test_a_run_keeps_predicted_and_real_time_and_the_next_one_is_predicted(tiny: Path, tmp_path: Path) -> None:
    first = run(config(tiny, tmp_path), tmp_path / "first")
    [session] = first["sessions"]
    assert (session["samples"], session["planned"], session["predicted_seconds"]) == (18, 18, None)
    assert session["seconds"] > 0
    for label in ("baseline", "headwise"):
        of_model = first["models"][label]
        assert len(of_model["starts"]) == 1
        assert len(of_model["switches"]) == 2, "a change of setting each"
        assert {(o["context"], o["length"], o["samples"]) for o in of_model["observations"]} == {
            ("native", 1024, 3), ("base", 1024, 3), ("base", 2048, 3)
        }  # fmt: skip
        assert all(o["seconds"] > 0 and o["answer"] > 0 for o in of_model["observations"])
    work = sum((Work.from_plain(o["work"]) for o in first["models"]["baseline"]["observations"]), Work())
    assert work.requests == 9
    assert 9 * 1000 < work.computed < 3 * 1024 * 2 + 3 * 2048
    second = run(config(tiny, tmp_path), tmp_path / "second")
    [session] = second["sessions"]
    assert session["predicted_seconds"] > 0
    assert all(o["predicted_seconds"] > 0 for m in second["models"].values() for o in m["observations"])


def test_a_resumed_run_predicts_what_is_left_and_forgets_nothing(tiny: Path, tmp_path: Path) -> None:
    run(config(tiny, tmp_path, samples=2), tmp_path / "run")
    more = run(config(tiny, tmp_path, samples=5), tmp_path / "run")
    assert [s["planned"] for s in more["sessions"]] == [12, 18]
    assert [o["samples"] for o in more["models"]["baseline"]["observations"]] == [2, 2, 2, 3, 3, 3]
    assert [len(more["models"]["baseline"][k]) for k in ("starts", "switches")] == [2, 4]
    again = run(config(tiny, tmp_path, samples=5), tmp_path / "run")
    assert again == more, "nothing was answered: nothing is recorded"
    costs = Costs(build(config(tiny, tmp_path, samples=5)))
    whole = costs.plan.cells
    rest = dict.fromkeys(whole, 3)
    assert costs.total(whole) > costs.total(rest) > costs.fixed(whole)


def test_the_time_left_counts_in_predicted_work(tiny: Path, tmp_path: Path) -> None:
    """A cell whose samples take ten times as long is ten times as much of the bar."""
    run(config(tiny, tmp_path), tmp_path / "first")
    plan = build(config(tiny, tmp_path))
    costs = Costs(plan)
    shown = Progress(plan, quiet=True, clock=lambda: 0.0, costs=costs)
    assert shown.total == pytest.approx(sum(costs.seconds(c, n) for c, n in plan.cells.items()))
    assert "left" in shown.standing(), "known before the first answer"
    cell = Cell("baseline", "base", "ruler", "fwe", 2048)
    shown.advance(cell, 2000, 10, reused=True)
    assert shown.done == pytest.approx(costs.seconds(cell, 3) / 3)
