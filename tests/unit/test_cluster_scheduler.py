"""The scheduler under a virtual clock: nothing lost or doubled, long first, beginnings together, near the ideal."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.affinity import Beginnings
from harness.cluster.load import Limit, Work
from harness.cluster.scheduler import SUSPECT_DEATHS, Scheduler
from harness.cluster.simulation import Machines, Outcome, Simulation, naive_seconds
from harness.cost.known import Records
from harness.cost.requests import RequestCosts
from harness.cost.speed import Speed
from harness.engine.requests import Prompt, Question
from harness.run.costs import Costs
from tests.support.cluster_runs import plan

COSTS = RequestCosts(Speed((0, 0, 1, 2 / 30_000, 4, 0, 0)))
"""In prompt tokens. Attention over 30,000 tokens takes as long as all products with weights."""
RATE = 50_000.0  # prompt tokens per second of a GPU with a model of about one billion parameters
SUBJECTS, PER_SUBJECT, GSM8K = 57, 246, 1319
SHARED_TASKS, TASKS = 8, 13
"""RULER's eight needle tasks have a haystack in common that the samples share up to the first needle."""


def paper_grid(samples: int) -> tuple[list[list[Work]], list[tuple[Any, Sequence[Work]]]]:
    """configs/table5.yaml as (phases, cells): two models at 4K to 32K, then to 128K; longest first, as runs do."""
    phases, cells = [], []
    for model in range(2):
        for lengths in ((32, 16, 8, 4), (128, 64, 32, 16, 8, 4)):
            phase = len(phases)
            made: list[tuple[Any, list[Work]]] = []
            for tokens in (1024 * length for length in lengths):
                for task in range(TASKS):
                    alike = task < SHARED_TASKS
                    made.append((model, [
                        Work((phase, tokens, task, i), COSTS.prompt(tokens) + 256, tokens,
                             (tokens, task) if alike else (tokens, task, i), COSTS.prompt(tokens // 2) if alike else 0)
                        for i in range(samples)
                    ]))  # fmt: skip
            for subject in range(SUBJECTS):
                n = PER_SUBJECT * samples // 500
                shared = COSTS.prompt(600)
                made.append((model, [
                    Work((phase, "mmlu", subject, i), COSTS.prompt(700) + 16, 700, ("mmlu", subject), shared)
                    for i in range(n)
                ]))  # fmt: skip
            n, shared = GSM8K * samples // 500, COSTS.prompt(900)
            made.append((model, [Work((phase, "gsm8k", i), COSTS.prompt(1000) + 512, 1000, "gsm8k", shared)
                                 for i in range(n)]))  # fmt: skip
            cells += made
            phases.append([work for _, works in made for work in works])
    return phases, cells


def simulated(samples: int, machines: Machines) -> tuple[Outcome, float, float]:
    """(outcome, seconds of the naive way, part of one engine's savings by the prefix cache that is kept)."""
    phases, cells = paper_grid(samples)
    outcome = Simulation(machines).run(phases)
    assert set(outcome.answered) == {work.key for phase in phases for work in phase}
    alone = sum(saved_by_one(phase) for phase in phases)
    return outcome, naive_seconds(cells, machines), outcome.shared / alone


def saved_by_one(phase: Sequence[Work]) -> float:
    seen: set[Any] = set()
    saved = 0.0
    for work in phase:
        saved += work.shared if work.group in seen else 0.0
        seen.add(work.group)
    return saved


@pytest.mark.parametrize(
    "troubled",
    [
        pytest.param(False, id="equal engines", marks=pytest.mark.slow),
        pytest.param(True, id="one at half speed, one death an hour", marks=pytest.mark.extended),
    ],
)
def test_the_paper_s_grid_on_64_engines_is_within_5_percent_of_the_ideal(troubled: bool) -> None:
    machines = Machines(rates=[RATE] * 64)
    if troubled:
        machines = Machines(rates=[RATE / 2] + [RATE] * 63, deaths=1 / 3600)
    outcome, naive, kept = simulated(500, machines)
    assert outcome.efficiency >= 0.95
    assert naive > 1.5 * outcome.seconds
    assert kept >= 0.9
    assert not outcome.poisoned


def test_a_small_grid_on_a_few_engines_is_near_the_ideal() -> None:
    outcome, _, kept = simulated(20, Machines(rates=[RATE / 2, *[RATE] * 4], deaths=1 / 100, start_seconds=5.0))
    assert outcome.died > 0
    assert outcome.efficiency >= 0.85
    assert kept >= 0.9


@pytest.mark.parametrize("seed", range(12))
def test_whatever_dies_every_request_is_answered_once_and_poison_is_named(seed: int) -> None:
    chance = random.Random(seed)
    works = [
        Work(n, chance.choice([1.0, 1.0, 20.0, 300.0]), chance.randrange(1, 500), chance.randrange(8), 0.5)
        for n in range(chance.randrange(1, 400))
    ]
    poison = {n for n in range(len(works)) if chance.random() < 0.01}
    rates = [chance.choice([1.0, 10.0, 100.0]) for _ in range(chance.randrange(1, 6))]
    machines = Machines(
        rates=rates,
        start_seconds=5.0,
        deaths=0.002,
        limit=Limit(chance.randrange(1, 64), 10_000),
        ahead=3000,
        seed=seed,
    )
    outcome = Simulation(machines, poison).run([works])
    assert poison <= set(outcome.poisoned)
    assert set(outcome.answered) | set(outcome.poisoned) == set(range(len(works)))
    assert not set(outcome.answered) & set(outcome.poisoned)


def test_many_poisoned_requests_are_all_named_and_nothing_else() -> None:
    poison = {3, 4, 77, 150}
    outcome = Simulation(Machines(rates=[1.0, 1.0], start_seconds=1.0), poison).run(
        [[Work(n, 1.0) for n in range(200)]]
    )
    assert set(outcome.poisoned) == poison
    assert len(outcome.answered) == 196
    # three deaths make suspects, which are then halved: never one death per request
    assert outcome.died <= len(poison) * 16


def joined(*engines: str, limit: Limit = Limit(100, 10**9)) -> Scheduler:  # noqa: B008 - frozen
    scheduler = Scheduler()
    for engine in engines:
        scheduler.join(engine, limit, 0.0)
    return scheduler


def test_the_most_expensive_group_is_given_first_and_groups_are_kept_together() -> None:
    scheduler = joined("a", "b")
    for group, cost in (("short", 1.0), ("long", 50.0), ("middle", 10.0)):
        for n in range(4):
            scheduler.add(Work((group, n), cost, 1, group, cost / 2))
    assert {work.key[0] for work in scheduler.next_batch("a", 0.0)} == {"long"}  # type: ignore[index]
    assert next(iter(scheduler.next_batch("b", 0.0))).key == ("middle", 0)


def test_an_engine_holds_no_more_than_its_limits_and_its_share() -> None:
    scheduler = joined("a", "b", limit=Limit(5, 1000))
    for n in range(100):
        scheduler.add(Work(n, 1.0, 300))
    assert len(scheduler.next_batch("a", 0.0)) == 4  # the fourth is given at 900 tokens
    scheduler = joined("a", "b", limit=Limit(5, 10**9))
    for n in range(100):
        scheduler.add(Work(n, 1.0, 300))
    assert len(scheduler.next_batch("a", 0.0)) == 5
    scheduler = joined("a", "b")
    for n in range(40):
        scheduler.add(Work(n, 1.0))
    assert len(scheduler.next_batch("a", 0.0)) == 10  # half of its share: what is left is for whoever is free


def test_the_first_answer_counts_and_the_other_engine_is_told() -> None:
    scheduler = joined("slow", "fast")
    for n in range(8):
        scheduler.add(Work(n, 1.0))
    scheduler.ended = True
    held = [work.key for work in scheduler.next_batch("slow", 0.0)]
    for now, work in enumerate(scheduler.next_batch("fast", 0.0)):
        scheduler.finished("fast", work.key, 0.1 * (now + 1))
    copies = []
    while batch := scheduler.next_batch("fast", 100.0):
        copies += [work.key for work in batch]
        for work in batch:
            finished = scheduler.finished("fast", work.key, 100.0)
            assert finished.first
            assert finished.cancel in ((), ("slow",))
    assert set(held) <= set(copies) | set(scheduler.held("slow"))
    assert not scheduler.finished("slow", held[0], 200.0).first
    assert scheduler.unfinished == 0


def test_a_request_is_suspected_only_after_three_deaths_and_a_clean_run_clears_it() -> None:
    scheduler = joined("e0")
    for n in range(4):
        scheduler.add(Work(n, 1.0))
    for death in range(SUSPECT_DEATHS):
        assert len(scheduler.next_batch(f"e{death}", 0.0)) == 4
        assert scheduler.leave(f"e{death}", died=True) == []
        scheduler.join(f"e{death + 1}", Limit(), 0.0)
    assert scheduler.waiting == 0
    assert scheduler.unfinished == 4
    scheduler.add(Work("late", 1.0))
    assert [work.key for work in scheduler.next_batch("e3", 0.0)] == ["late"]  # suspects run alone, at the end
    scheduler.finished("e3", "late", 1.0)
    assert [work.key for work in scheduler.next_batch("e3", 1.0)] == [0, 1, 2, 3]
    scheduler.add(Work("later", 1.0))
    assert scheduler.next_batch("e3", 1.0) == []
    for n in range(4):
        scheduler.finished("e3", n, 2.0)
    assert [work.key for work in scheduler.next_batch("e3", 2.0)] == ["later"]


def test_an_engine_that_leaves_in_order_is_no_death() -> None:
    scheduler = joined("a")
    scheduler.add(Work(1, 1.0))
    scheduler.next_batch("a", 0.0)
    scheduler.leave("a", died=False)
    assert not scheduler.deaths[1]
    assert scheduler.waiting == 1


def test_requests_that_begin_alike_are_one_group_and_what_they_share_is_measured() -> None:
    beginnings = Beginnings(RequestCosts())
    common = list(range(500))
    first, second, third = (beginnings.work(n, Prompt(n, [*common, n, n], 4)) for n in range(3))
    assert first.group == second.group == third.group
    assert first.shared == 0.0  # not known yet
    assert third.shared == pytest.approx(500, rel=1e-6)
    other = beginnings.work("other", Prompt("other", [9, *common], 4))
    assert other.group != first.group
    assert other.tokens == 501


def test_requests_cost_what_the_plan_predicts(tiny: Path) -> None:
    made = plan(tiny, samples=1, models=1)
    costs = Costs(made, Records(tiny / "nothing"))
    [label] = made.models
    requests = costs.requests(label)
    for cell in (cell for cell in made.cells if cell.context == "raised"):  # the longest, which engines start with
        load = made.loads[cell]
        asked = Prompt(cell.key, array("I", bytes(4 * round(load.tokens))), round(load.answer))
        assert requests.request(asked) == pytest.approx(costs.seconds(cell, 1), rel=0.02)
    question = Question("q", (((1, 2, 3), (4,)), ((1, 2, 3), (5,)), ((7,), (5,))))
    assert requests.request(question) == pytest.approx(requests.prompt(3) + requests.prompt(1))


def test_a_long_prompt_costs_more_per_token_than_a_short_one() -> None:
    assert COSTS.prompt(131_072) > 4.5 * 131_072
    assert COSTS.prompt(1000) < 1.05 * 1000
