"""Samples in rounds: the same allocation after any interruption, nested sets, decisions, tables with uneven numbers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.benchmarks.lm_eval import random_order
from harness.config import Config, from_dict
from harness.export import export_run
from harness.export.lm_eval import lm_eval_results
from harness.report import write_report
from harness.report.rounds import rounds_rows
from harness.run import runner
from harness.run.plan import build
from harness.run.progress import Progress
from harness.run.rounds import RoundsPlan
from harness.run.session import Tally
from harness.stats import paired_differences
from harness.stats.decision import critical_value, looks_of
from harness.stats.sequential import INFLATION
from harness.store import Store
from harness.store.merging import _merged_rounds, merge
from harness.store.rounds import Rounds
from harness.tables import table5
from harness.tables.arms import by_arm
from harness.tables.delta import delta_table
from harness.tables.sampled import difference_in_rounds
from harness.types import Cell, GatedevalError
from tests.support import ROOT
from tests.support.fake_engine import Cut, CutEngine, FakeEngine, InlineProducer

RULE = {"precision": 9.0, "at_least": 10, "at_most": 150}
DECIDE = {"candidate": "elementwise", "baseline": "baseline", "margin": 8.0}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Prefetcher", InlineProducer)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    CutEngine.after = None


def config(tiny: Path, *, samples: Any = None, benchmarks: Any = None, models: Any = None, **more: Any) -> Config:
    labels = models or ["baseline"]
    rule = RULE if samples is None else samples
    entries = [{"ruler": ["niah_single_1", "niah_single_2", "niah_multikey_1"], "lengths": [512], "samples": rule,
                "answer_tokens": 24, "profile": "fair"}]  # fmt: skip
    return from_dict(
        {
            "name": "rounds",
            "models": [{"label": label, "path": str(tiny / label)} for label in labels],
            "contexts": [{"label": "native", "max_length": 512}],
            "benchmarks": benchmarks or entries,
            "data": str(ROOT / "tasks/demo/data"),
            **more,
        }
    )


def run(config: Config, path: Path) -> Tally:
    plan = build(config)
    plan.check()
    _, tally = runner.run(plan, path, progress=Progress(plan, quiet=True), engine_factory=CutEngine)
    return tally


def entries(path: Path) -> list[Rounds]:
    return [Rounds.from_dict(entry) for entry in Store.read(path).manifest["rounds"]]


def ids(path: Path) -> dict[Cell, list[str]]:
    store = Store.read(path)
    return {cell: list(store.scores(cell).ids) for cell in store.cells}


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rounds") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Prefetcher", InlineProducer)
        patch.setattr(os, "fsync", lambda descriptor: None)
        run(config(tiny), path)
    return path


def test_a_run_goes_on_until_its_precision_is_reached(finished: Path) -> None:
    store = Store.read(finished)
    [entry] = entries(finished)
    assert store.manifest["state"] == "complete"
    assert entry.ended == "precision reached"
    assert entry.samples[0] == (10, 10, 10)
    assert len(entry.samples) >= 3, "there should be rounds after the pilot"
    assert entry.widths[-1] <= 9.0 < entry.widths[-2]
    assert {len(store.scores(cell).ids) for cell in store.cells} == set(entry.samples[-1])
    for cell, n in entry.counts.items():
        assert store.scores(cell).ids == [str(i) for i in range(n)], "sets are prefixes"
        assert store.planned(cell) == n


def test_what_is_stored_is_not_asked_again(finished: Path, tiny: Path) -> None:
    before = entries(finished)
    tally = run(config(tiny), finished)
    assert (tally.asked, tally.reused) == (0, sum(before[0].samples[-1]))
    assert entries(finished) == before


@pytest.mark.parametrize("after", [0, 7, 30, 31, -1])
def test_a_run_that_was_killed_in_any_round_takes_the_same_steps(
    finished: Path, tiny: Path, tmp_path: Path, after: int
) -> None:
    total = sum(map(len, ids(finished).values()))
    after = after % total
    CutEngine.after = after
    with pytest.raises(Cut):
        run(config(tiny), tmp_path / "run")
    CutEngine.after = None
    assert Store.read(tmp_path / "run").manifest["state"] == "running"
    table5(Store.read(tmp_path / "run"), allow_partial=True)  # a run in its rounds can be shown
    tally = run(config(tiny), tmp_path / "run")
    assert entries(tmp_path / "run") == entries(finished)
    assert ids(tmp_path / "run") == ids(finished)
    assert tally.asked == total - after


@pytest.mark.extended
def test_runs_at_other_precisions_nest(finished: Path, tiny: Path, tmp_path: Path) -> None:
    run(config(tiny, samples={**RULE, "precision": 14.0}), tmp_path / "run")
    coarse = ids(tmp_path / "run")
    assert all(fine[: len(coarse[cell])] == coarse[cell] for cell, fine in ids(finished).items())
    tally = run(config(tiny), tmp_path / "run")
    assert tally.asked == sum(map(len, ids(finished).values())) - sum(map(len, coarse.values()))
    assert ids(tmp_path / "run") == ids(finished)
    tally = run(config(tiny, samples=12), tmp_path / "run")  # a plain count again: its samples are there
    assert tally.asked <= 3 * 2
    assert {len(x) for x in ids(tmp_path / "run").values()} == {12}
    assert Store.read(tmp_path / "run").manifest.get("rounds") is None


@pytest.mark.extended
def test_every_task_to_a_precision_of_its_own(tiny: Path, tmp_path: Path) -> None:
    run(config(tiny, samples={"precision": 15.0, "at_least": 10, "at_most": 60, "per": "task"}), tmp_path / "run")
    found = entries(tmp_path / "run")
    assert [len(entry.tasks) for entry in found] == [1, 1, 1]
    for entry in found:
        assert entry.widths[-1] <= 15.0 or entry.samples[-1] == (60,)
    assert any(
        "Goal: single tasks of RULER ±15 points" in line for line in table5(Store.read(tmp_path / "run")).caption
    )


@pytest.mark.extended
def test_a_goal_out_of_reach_ends_at_the_most_samples(tiny: Path, tmp_path: Path) -> None:
    run(config(tiny, samples={"precision": 0.5, "at_least": 10, "at_most": 20}), tmp_path / "run")
    [entry] = entries(tmp_path / "run")
    assert (entry.ended, entry.samples[-1]) == ("at_most reached", (20, 20, 20))
    store = Store.read(tmp_path / "run")
    assert store.manifest["state"] == "complete"
    assert any("Precision not reached (1)" in line for line in table5(store).caption)


def test_the_table_has_numbers_and_half_widths(finished: Path) -> None:
    table = table5(Store.read(finished))
    [entry] = entries(finished)
    shown = table.rows[0][2]
    assert shown.samples == sum(entry.samples[-1])
    assert shown.interval is not None
    assert (shown.interval[1] - shown.interval[0]) / 2 == pytest.approx(entry.widths[-1], abs=1e-5)
    assert shown.note == f"[±{entry.widths[-1]:.1f}, {sum(entry.samples[-1])}]"
    text = " ".join(table.caption)
    for name in ("Neyman 1934", "Chow & Robbins 1965", "Waudby-Smith & Ramdas 2023", "Goal: RULER ±9 points"):
        assert name in text
    assert "bracket" in text


def test_an_arm_of_checkpoints_with_rounds_has_an_interval_that_allows_for_them(tiny: Path, tmp_path: Path) -> None:
    apart = config(tiny, models=["baseline", "headwise"])
    arm = tuple(model.model_copy(update={"arm": "both"}) for model in apart.models)
    run(apart.model_copy(update={"models": arm}), tmp_path / "run")
    table = table5(Store.read(tmp_path / "run"))
    [row] = table.rows
    common = [min(both) for both in zip(*(entry.samples[-1] for entry in entries(tmp_path / "run")), strict=True)]
    [shown] = [entry for entry in row if entry.samples is not None]
    assert shown.note is not None
    assert shown.note.startswith("[±")
    assert shown.note.endswith(f"{sum(common)}]")
    assert shown.parenthesis == f"{shown.spread_text} {shown.note}", "± between the checkpoints, once"
    assert "Neyman 1934" in " ".join(table.caption)
    told = [row.what.split(",")[0] for row in rounds_rows(by_arm(Store.read(tmp_path / "run")))]
    assert told == ["baseline", "headwise"], "the report says of every checkpoint where its samples went"
    # What is printed is read twice, by export and by table: rounds and spread are in it, each once.
    printed = export_run(tmp_path / "run")
    [line] = [line for line in printed.splitlines() if line.startswith("| both ")]
    assert re.search(rf"\d ±\d+\.\d\d {re.escape(shown.note)} +\|", re.sub(" +", " ", line)), line
    assert "Neyman 1934" in printed
    assert "Wavelength" not in write_report(tmp_path / "run").read_text(), "one setting: nothing to compare"


def test_another_name_for_a_model_keeps_its_rounds(finished: Path) -> None:
    store = Store.read(finished)
    store.manifest["config"]["table"]["rename"] = {"baseline": "plain"}
    table = table5(store)
    assert table.rows[0][0].text == "plain"
    assert table.rows[0][2].samples == sum(entries(finished)[0].samples[-1])


QUESTIONS = [{"lm_eval": "demo_choice", "shots": 0, "samples": {"precision": 6.0, "at_least": 20}}]


def test_questions_are_drawn_without_replacement(tiny: Path, tmp_path: Path) -> None:
    native = [{"label": "native"}]
    run(config(tiny, benchmarks=QUESTIONS, contexts=native), tmp_path / "drawn")
    [entry] = entries(tmp_path / "drawn")
    assert entry.population is not None
    [n], [whole] = entry.samples[-1], entry.population
    assert entry.ended == "precision reached"
    assert n < whole
    [cell] = Store.read(tmp_path / "drawn").cells
    found = ids(tmp_path / "drawn")[cell]
    assert sorted(found, key=int) == sorted(map(str, random_order("demo_choice", whole)[:n]), key=int)
    scores = Store.read(tmp_path / "drawn").scores(cell).scores
    p = scores.mean()  # the usual formula, with the correction for a finite population
    plain = 196 * INFLATION * (p * (1 - p) / n * (1 - n / whole)) ** 0.5
    assert entry.widths[-1] == pytest.approx(plain, rel=0.08)
    # Prompts do not depend on the order: a plain count asks nothing again of what was drawn.
    everything = [{**QUESTIONS[0], "samples": whole}]
    tally = run(config(tiny, benchmarks=everything, contexts=native), tmp_path / "drawn")
    assert (tally.asked, tally.reused) == (whole - n, n)


def test_all_questions_leave_no_uncertainty_about_them(tiny: Path, tmp_path: Path) -> None:
    entry = {**QUESTIONS[0], "samples": {"precision": 0.01, "at_least": 20}}
    run(config(tiny, benchmarks=[entry], contexts=[{"label": "native"}]), tmp_path / "run")
    [found] = entries(tmp_path / "run")
    assert found.samples[-1] == found.population
    assert (found.ended, found.widths[-1]) == ("precision reached", 0.0)


def test_a_decision_draws_both_models_samples_in_the_same_rounds(tiny: Path, tmp_path: Path) -> None:
    starts = FakeEngine.starts
    two = config(tiny, models=["baseline", "elementwise"], samples={"at_least": 10, "at_most": 40}, decide=DECIDE)
    run(two, tmp_path / "run")
    [entry] = entries(tmp_path / "run")
    assert entry.models == ("baseline", "elementwise")
    assert entry.ended in ("above", "below", "equal", "undecided")
    found = ids(tmp_path / "run")
    for a, b in zip(entry.cells("baseline"), entry.cells("elementwise"), strict=True):
        assert found[a] == found[b]
    rounds = len(entry.samples)
    assert FakeEngine.starts - starts <= rounds + 1, "the model that ran last goes first"
    store = Store.read(tmp_path / "run")
    left, right = ([store.scores(c).scores for c in entry.cells(m)] for m in entry.models)
    mean = float(np.mean([d.mean() for d in paired_differences(left, right)]))
    table = delta_table(store)
    average = next(row for row in table.rows if row[2].text == "average")
    assert average[6].value == pytest.approx(100 * mean)
    critical = critical_value(looks_of(entry.design), 0.05)
    assert critical > 1.96
    assert any("Decisions between elementwise and baseline" in line for line in table5(store).caption)
    assert any("z test" in line for line in table.caption)
    pairs = list(zip(*map(entry.cells, entry.models), strict=True))
    back = [(candidate, baseline) for baseline, candidate in pairs]
    _, there, p, test = difference_in_rounds(store, pairs, paired_differences(left, right), pooled=False)
    _, turned, *same = difference_in_rounds(store, back, paired_differences(right, left), pooled=False)
    assert test == f"repeated z ({rounds} looks)"
    assert same == [pytest.approx(p), test], "no direction forgets the looks"
    assert (turned.low, turned.high) == pytest.approx((-there.high, -there.low))
    assert run(two, tmp_path / "run").asked == 0
    assert entries(tmp_path / "run") == [entry]


@pytest.mark.extended
def test_a_decision_that_was_killed_takes_the_same_steps(tiny: Path, tmp_path: Path) -> None:
    two = config(tiny, models=["baseline", "elementwise"], samples={"at_least": 10, "at_most": 25}, decide=DECIDE)
    run(two, tmp_path / "whole")
    for after in (35, 70):
        CutEngine.after = after
        with pytest.raises(Cut):
            run(two, tmp_path / str(after))
        CutEngine.after = None
        run(two, tmp_path / str(after))
        assert entries(tmp_path / str(after)) == entries(tmp_path / "whole")
        assert ids(tmp_path / str(after)) == ids(tmp_path / "whole")


def test_runs_of_uneven_numbers_merge_and_pair_on_the_common_prefix(finished: Path, tiny: Path, tmp_path: Path) -> None:
    run(config(tiny, models=["elementwise"], samples={**RULE, "precision": 13.0}), tmp_path / "other")
    merge(finished, tmp_path / "other", tmp_path / "both")
    store = Store.read(tmp_path / "both")
    assert {entry.models for entry in entries(tmp_path / "both")} == {("baseline",), ("elementwise",)}
    a, b = entries(tmp_path / "both")
    common = sum(min(x, y) for x, y in zip(a.samples[-1], b.samples[-1], strict=True))
    table = delta_table(store)
    frame = table.frame
    assert int(frame[frame.task == "average"].samples.iloc[0]) == common
    assert [row[2].samples for row in table5(store).rows] == [sum(a.samples[-1]), sum(b.samples[-1])]


@pytest.mark.extended
def test_the_smaller_of_two_runs_of_one_model_adds_nothing(finished: Path, tiny: Path, tmp_path: Path) -> None:
    run(config(tiny, samples={**RULE, "precision": 14.0}), tmp_path / "coarse")
    for first, second, out in ((finished, tmp_path / "coarse", "a"), (tmp_path / "coarse", finished, "b")):
        merge(first, second, tmp_path / out)
        assert ids(tmp_path / out) == ids(finished)
        assert entries(tmp_path / out) == entries(finished)


def in_rounds(models: str, tasks: str, counts: Sequence[int], **more: Any) -> Rounds:
    """Rounds of models and tasks named by a letter each, which ended with these samples per task."""
    facts: dict[str, Any] = {"goal": "precision", "target": 5.0, "at_least": 10, "population": None, **more}
    most, weights = (500,) * len(tasks), (1 / len(tasks),) * len(tasks)
    return Rounds(models=tuple(models), context="c", benchmark="ruler", length=512, tasks=tuple(tasks), most=most,
                  weights=weights, samples=(tuple(counts),), ended="precision reached", **facts)  # fmt: skip


class Numbers:
    """A run as far as the merging of rounds reads it: entries, and cells with a plain count."""

    def __init__(self, *entries: Rounds, plain: int = 0) -> None:
        self.found = {cell: e for e in entries for cell in e.all_cells}
        self.counts = {cell: n for e in entries for cell, n in e.counts.items()}
        self.counts |= {Cell("m", "c", "ruler", task, 512): plain for task in "ab"} if plain else {}
        self.cells = self.counts

    def rounds(self, cell: Cell) -> Rounds | None:
        return self.found.get(cell)

    def scores(self, cell: Cell) -> Any:
        return SimpleNamespace(ids=range(self.counts[cell]))


@pytest.mark.parametrize("turned", [False, True])
def test_merged_samples_have_the_rounds_that_chose_them(turned: bool) -> None:
    def merged(a: Numbers, b: Numbers) -> list[Rounds]:
        return [Rounds.from_dict(e) for e in _merged_rounds(*((b, a) if turned else (a, b)))]  # type: ignore[arg-type]

    whole = in_rounds("m", "ab", (60, 60))
    assert merged(Numbers(whole), Numbers(plain=50)) == [whole]
    assert merged(Numbers(whole), Numbers(plain=200)) == [], "nobody chose a plain count by looking"
    decision = in_rounds("mn", "ab", (60, 60), goal="decide")
    tasks = [in_rounds("m", "a", (94,)), in_rounds("m", "b", (150,))]
    assert sorted(merged(Numbers(decision), Numbers(*tasks)), key=lambda e: e.tasks) == tasks
    assert merged(Numbers(decision), Numbers(in_rounds("m", "a", (20,)), in_rounds("m", "b", (30,)))) == [decision]


@pytest.mark.parametrize(
    ("samples", "more", "message"),
    [
        ({"precision": 0}, {}, "samples.precision: should be above 0, is 0"),
        ({"precision": 1, "at_least": 60, "at_most": 50}, {}, "at_least 60 is above at_most 50"),
        ({"precision": 1, "at_least": 501}, {}, "at_least 501 is above 500"),
        ({"precision": 1, "at_lest": 50}, {}, "unknown key 'at_lest'; did you mean 'at_least'?"),
        ({"at_least": 50}, {}, "add precision, in points"),
        (50, {"decide": DECIDE}, "decide needs a benchmark whose samples may grow"),
        ({"at_least": 50}, {"decide": {**DECIDE, "candidate": "headwise"}}, "no model 'headwise'"),
        ({"at_least": 50}, {"decide": {**DECIDE, "margin": 0}}, "decide.margin: should be above 0"),
        ("many", {}, "samples: should be a whole number, is 'many'"),
    ],
)
def test_bad_input_is_one_line(tiny: Path, samples: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(GatedevalError, match=r".") as error:
        config(tiny, samples=samples, models=["baseline", "elementwise"], **more)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def split(tiny: Path, samples: Any, gated: list[str]) -> Config:
    """Two models to decide between; the baseline has the contexts a and b, the other one has `gated`."""
    both = config(tiny, models=["baseline", "elementwise"], samples=samples, decide=DECIDE)
    contexts = [both.contexts[0].model_copy(update={"label": label}) for label in ("a", "b", "c")]
    own = [m.model_copy(update={"contexts": c}) for m, c in zip(both.models, (("a", "b"), tuple(gated)), strict=True)]
    return both.model_copy(update={"contexts": tuple(contexts), "models": tuple(own)})


@pytest.mark.parametrize(
    ("samples", "gated", "message"),
    [
        ({"at_least": 10, "at_most": 20}, ["c"], "have no samples in common"),
        ({"precision": 9.0, "at_least": 10, "at_most": 20}, ["c"], "have no samples in common"),
        ({"at_least": 10, "at_most": 20}, ["a"], "only 'baseline' has ruler at 512 under 'b'"),
    ],
)
def test_what_only_one_model_has_cannot_be_decided(tiny: Path, samples: Any, gated: list[str], message: str) -> None:
    with pytest.raises(GatedevalError, match=message) as error:
        build(split(tiny, samples, gated)).check()
    assert "\n" not in str(error.value)


def test_what_only_one_model_of_a_decision_has_keeps_its_precision(tiny: Path) -> None:
    plan = build(split(tiny, {"precision": 9.0, "at_least": 10, "at_most": 20}, ["a"]))
    plan.check()
    found = [(entry.models, entry.context, entry.goal, entry.target) for entry in RoundsPlan(plan).entries]
    assert found == [(("baseline", "elementwise"), "a", "decide", 8.0), (("baseline",), "b", "precision", 9.0)]


def test_lm_evals_results_weight_subjects_by_their_questions(tiny: Path, tmp_path: Path, shared: Path) -> None:
    subjects = ["anatomy", "virology", "us_foreign_policy"]
    entry = {"mmlu": {"shots": 0, "subjects": subjects, "samples": {"precision": 7.0, "at_least": 10}}}
    native = [{"label": "native"}]
    run(config(tiny, benchmarks=[entry], contexts=native, data=str(shared / "data")), tmp_path / "run")
    [found] = entries(tmp_path / "run")
    assert found.population == (135, 166, 100)
    assert len(set(found.samples[-1])) > 1
    store = Store.read(tmp_path / "run")
    means = [store.scores(cell).scores.mean() for cell in found.cells("baseline")]
    expected = sum(n * m for n, m in zip(found.population, means, strict=True)) / sum(found.population)
    results = json.loads(lm_eval_results(store))
    assert results["groups"]["mmlu"]["acc,none"] == pytest.approx(expected)
    assert results["n-samples"]["mmlu_anatomy"] == {"original": 135, "effective": found.samples[-1][0]}
    assert table5(store).rows[0][2].value == pytest.approx(100 * expected)
