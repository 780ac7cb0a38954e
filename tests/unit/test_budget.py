"""`--budget`: a run that is killed goes on with the numbers that it has begun with, in rounds and with plain counts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.commands.evaluate import plan as plan_command
from harness.commands.evaluate import within_budget
from harness.commands.planning import fitted
from harness.config import Config, from_dict, to_dict
from harness.config.sampling import Sampling
from harness.cost.known import write_speeds
from harness.cost.work import Work
from harness.run import runner
from harness.run.budget import Budget, EqualPrecision, asked
from harness.run.costs import Costs
from harness.run.plan import build
from harness.run.progress import Progress
from harness.stats.sequential import INFLATION
from harness.store import Store
from harness.types import Cell, GatedevalError
from tests.support import ROOT
from tests.support.fake_engine import Cut, CutEngine, InlineProducer

RULE = {"precision": 2.0, "at_least": 10, "at_most": 500}
SECONDS = 60.0


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Prefetcher", InlineProducer)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    CutEngine.after = None


def config(tiny: Path, results: Path, samples: Any) -> Config:
    """RULER at 512 tokens in rounds or not, and choices with a plain count."""
    facts = {
        "name": "budget",
        "results": str(results),
        "models": [{"label": "baseline", "path": str(tiny / "baseline")}],
        "contexts": [{"label": "native", "max_length": 512}],
        "benchmarks": [
            {"ruler": ["niah_single_1", "niah_single_2"], "lengths": [512], "samples": samples, "profile": "fair",
             "answer_tokens": 24},
            {"lm_eval": "demo_choice", "shots": 0, "samples": 40},
        ],
        "data": str(ROOT / "tasks/demo/data"),
    }  # fmt: skip
    return from_dict(facts)


def a_machine(config: Config, seconds_per_token: float) -> None:
    """Write its speed into the results folder: what each prompt token takes; a start takes 10 s."""
    [model] = Costs(build(config)).models.values()
    seen = {"benchmark": "ruler", "task": "niah_single_1", "length": 512, "samples": 4,
            "seconds": 2000 * seconds_per_token, "answer": 24.0, "work": Work(computed=2000.0).to_plain()}  # fmt: skip
    speed = {"key": dict(model.key), "starts": [10.0], "switches": [0.0], "observations": [seen]}
    write_speeds(config.results, speed)


def run(config: Config, budget: Budget, path: Path) -> None:
    plan = build(config)
    plan.budget = dataclasses.asdict(budget)
    runner.run(plan, path, progress=Progress(plan, quiet=True), engine_factory=CutEngine)


def ids(path: Path) -> dict[Cell, list[str]]:
    store = Store.read(path)
    return {cell: list(store.scores(cell).ids) for cell in store.cells}


@pytest.mark.parametrize("samples", [RULE, 500], ids=["rounds", "count"])
def test_a_budgeted_run_that_was_killed_takes_the_same_allocation(tiny: Path, tmp_path: Path, samples: Any) -> None:
    asked_for = config(tiny, tmp_path / "results", samples)
    a_machine(asked_for, seconds_per_token=2e-3)
    whole, budget = within_budget(asked_for, tmp_path / "whole", SECONDS, quiet=True)
    ruler, choice = budget.samples
    assert 10 < ruler < 100 > choice > 10, "the budget lowers both numbers"
    assert budget.half_width is not None
    run(whole, budget, tmp_path / "whole")
    expected = ids(tmp_path / "whole")
    assert {len(found) for found in expected.values()} <= {*range(10, ruler + 1), choice}

    path = asked_for.results / "run"
    for after in (5, 20):  # answers of this session, then it is killed
        smaller, again = within_budget(asked_for, path, SECONDS, quiet=True)
        assert again == budget
        CutEngine.after = after
        with pytest.raises(Cut):
            run(smaller, again, path)
    a_machine(asked_for, seconds_per_token=5e-4)  # meanwhile another run has told another speed
    assert fitted(build(asked_for), SECONDS, path).samples != budget.samples
    CutEngine.after = None
    smaller, again = within_budget(asked_for, path, SECONDS, quiet=True)
    assert again == budget
    run(smaller, again, path)
    assert ids(path) == expected
    assert Store.read(path).manifest["state"] == "complete"
    assert Store.read(path).manifest["budget"]["samples"] == [*budget.samples]


def test_a_budget_lowers_the_most_of_a_rule_but_not_its_first_round(tiny: Path, tmp_path: Path) -> None:
    rule = {"precision": 2.0, "at_least": 20}
    plan = build(config(tiny, tmp_path, rule))
    assert asked(plan.config) == (500, 40), "RULER's own number is the most where the rule has none"
    sizes = EqualPrecision(plan)
    assert sizes.samples(50) == (28, 40), "rounds' intervals are 1.05 times as wide; the config asks for 40 questions"
    assert sizes.samples(3) == (20, 3)
    counts = {cell: 20 for cell in plan.cells if cell.benchmark == "ruler"}
    alone = plan.config.model_copy(update={"benchmarks": plan.config.benchmarks[:1]})
    assert EqualPrecision(build(alone)).half_width(counts) == pytest.approx(98 * INFLATION / 40**0.5, rel=0.01)
    smaller = Budget(seconds=1.0, half_width=None, samples=sizes.samples(3), asked=(500, 40)).apply(plan.config)
    first, second = (getattr(entry, "samples", None) for entry in smaller.benchmarks)
    assert first == Sampling(precision=2.0, at_least=20, at_most=20)
    assert second == 3
    assert build(smaller).cells == sizes.counts(3)
    assert max(sizes.counts(3).values()) == 20


def test_every_number_of_a_budget_gets_the_same_precision(tiny: Path, tmp_path: Path) -> None:
    """RULER's mean of two tasks needs half of the samples in each; its tasks may stand in two entries."""
    plan = build(config(tiny, tmp_path, 500))
    sizes = EqualPrecision(plan)
    for size in (10, 20, 35):
        by_task = {cell.task: n for cell, n in sizes.counts(size).items()}
        assert by_task["niah_single_1"] == by_task["niah_single_2"] == -(-size // 2)
        assert sizes.half_width(sizes.counts(size)) == pytest.approx(98 / size**0.5, rel=0.01)
    assert sizes.counts(sizes.largest) == plan.cells
    facts = to_dict(plan.config)
    both, choice = facts["benchmarks"]
    facts["benchmarks"] = [*({**both, "ruler": [task]} for task in both["ruler"]), choice]
    apart = build(from_dict(facts))
    assert EqualPrecision(apart).samples(20) == (10, 10, sizes.samples(20)[1])


@pytest.mark.parametrize("small", [8, {"precision": 2.0, "at_least": 10, "at_most": 12}], ids=["count", "rounds"])
def test_no_entry_of_a_number_gets_more_than_it_asks_for(tiny: Path, tmp_path: Path, small: Any) -> None:
    """A number may be made up of several entries: none draws for the sake of another one what it does not ask for."""
    facts = to_dict(config(tiny, tmp_path, 500))
    both, _ = facts["benchmarks"]
    facts["benchmarks"] = [{**both, "ruler": both["ruler"][:1]}, {**both, "ruler": both["ruler"][1:], "samples": small}]
    plan = build(from_dict(facts))
    most = asked(plan.config)
    sizes = EqualPrecision(plan)
    for size in (10, 60, sizes.largest):
        samples = sizes.samples(size)
        assert samples[1] <= most[1] < 20
        budget = Budget(seconds=1.0, half_width=None, samples=samples, asked=most)
        assert build(budget.apply(plan.config)).cells == sizes.counts(size), "what is predicted is what is run"


def test_a_budget_says_nothing_about_the_points_of_a_perplexity(tiny: Path, tmp_path: Path) -> None:
    facts = to_dict(config(tiny, tmp_path, 500))
    facts["benchmarks"] = [{"lm_eval": "demo_prose"}]
    prose = from_dict(facts)
    a_machine(prose, seconds_per_token=1e-6)
    found = fitted(build(prose), SECONDS, tmp_path / "run")
    assert found.half_width is None
    assert "points" not in found.text(prose)


def test_a_budget_needs_samples_to_choose(tiny: Path, tmp_path: Path) -> None:
    facts = to_dict(config(tiny, tmp_path, 500))
    del facts["benchmarks"]
    plan = build(from_dict({**facts, "probe": {"lengths": [64]}}))
    with pytest.raises(GatedevalError, match="no benchmark that has any"):
        fitted(plan, SECONDS, tmp_path / "run")


@pytest.mark.parametrize(
    "option", [("--device-memory", "nan"), ("--device-memory", "inf"), ("--budget", "9" * 400 + "h")]
)
def test_numbers_without_an_end_are_bad_input(option: tuple[str, str]) -> None:
    found = CliRunner().invoke(plan_command, ["any.yaml", *option])
    assert found.exit_code == 2
    assert "should be" in found.output
