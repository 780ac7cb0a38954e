"""Rounds of samples: which numbers of a plan have a precision or a decision to reach, and what each is asked next.

Every step is computed from the stored samples of the rounds before it, and a cell's samples always come in one order.
So a run that was killed in any round takes the same steps again. The rules are in `harness.stats.sequential` and
`harness.stats.decision`. How far a decision's rounds reach may also depend on the time that engines take to start
(`harness.run.pacing`): that choice is recorded in run.json before the round begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.presentation import presentation_of
from harness.benchmarks.protocol import Benchmark, benchmarks_of
from harness.run.numbers import Place, numbers_of, population_of, weights_of
from harness.run.plan import Plan
from harness.stats.decision import look_at, next_look
from harness.stats.sequential import Moments, estimate, next_counts
from harness.store import Store
from harness.store.rounds import Goal, Rounds
from harness.text import counted
from harness.types import Cell

Columns = list[NDArray[np.float64]]
LongEnough = Callable[[Mapping[Cell, int]], bool]
"""Whether a round is long enough: cell -> samples that it adds."""
FAILED = "a cell failed"
NO_SCALE = "scores are not in 0..1"
REACHED = "precision reached"
AT_MOST = "at_most reached"
UNDECIDED = "undecided"


def entries_of(plan: Plan) -> list[Rounds]:
    """Every number of the plan whose samples come in rounds, each before its first round's answers."""
    found: list[Rounds] = []
    for benchmark in benchmarks_of(plan.config):
        if benchmark.sampling is None:
            continue
        own = [cell for cell in plan.cells if plan.benchmark(cell) is benchmark]
        found += _entries(plan, benchmark, numbers_of(plan, own))
    tests = sum(entry.goal == "decide" for entry in found)
    return [dataclasses.replace(e, tests=tests) if e.goal == "decide" else e for e in found]


def _entries(plan: Plan, benchmark: Benchmark, groups: Mapping[Place, list[Cell]]) -> list[Rounds]:
    rule, decide = benchmark.sampling, plan.config.decide
    assert rule is not None
    found = []
    for (model, *rest), cells in groups.items():
        if decide is not None and model in (decide.baseline, decide.candidate):
            other = groups.get((decide.candidate if model == decide.baseline else decide.baseline, *rest))  # type: ignore[arg-type]
            if other is not None and [c.task for c in other] == [c.task for c in cells]:
                if model == decide.baseline:
                    both = (decide.baseline, decide.candidate)
                    found.append(_entry(plan, benchmark, cells, both, "decide", decide.margin))
                continue  # what the other model has not got has no decision, and a precision of its own
        if rule.precision is not None:
            found.append(_entry(plan, benchmark, cells, (model,), "precision", rule.precision))
    return found


def _entry(
    plan: Plan, benchmark: Benchmark, cells: list[Cell], models: tuple[str, ...], goal: Goal, target: float
) -> Rounds:
    assert benchmark.sampling is not None
    population = population_of(plan, cells)
    at_least = benchmark.sampling.at_least
    most = tuple(plan.cells[cell] for cell in cells)
    return Rounds(
        models=models,
        context=cells[0].context,
        benchmark=benchmark.name,
        length=cells[0].length,
        tasks=tuple(cell.task for cell in cells),
        weights=weights_of(cells, population),
        population=population,
        at_least=at_least,
        most=most,
        goal=goal,
        target=target,
        samples=(tuple(min(at_least, n) for n in most),),
    )


class RoundsPlan:
    """The rounds of a run, from the pilot on. `advance` plans the next one from what the store has.

    `recorded`: the entries that run.json has of an earlier session.
    """

    def __init__(self, plan: Plan, recorded: Sequence[Rounds] = ()) -> None:
        self._plan = plan
        self.entries = entries_of(plan)
        for i, entry in enumerate(self.entries):
            paces = next((old.paces for old in recorded if old.like(entry)), ())
            self.entries[i] = dataclasses.replace(entry, paces=paces)

    @property
    def counts(self) -> dict[Cell, int]:
        """Samples of every cell that comes in rounds, in its present round."""
        return {cell: n for entry in self.entries for cell, n in entry.counts.items()}

    def parts(self, cells: Sequence[Cell]) -> dict[Cell, tuple[int, int]]:
        """Of those of `cells` that come in rounds: (samples of the rounds before, samples with the present one)."""
        found: dict[Cell, tuple[int, int]] = {}
        for entry in self.entries:
            before = entry.samples[-2] if len(entry.samples) > 1 else (0,) * len(entry.tasks)
            for model in entry.models:
                pairs = zip(entry.cells(model), before, entry.samples[-1], strict=True)
                found |= {cell: (first, end) for cell, first, end in pairs if cell in cells}
        return found

    def goes_on(self, cell: Cell) -> bool:
        """Whether another round of the cell may follow."""
        return any(entry.ended is None and cell in entry.all_cells for entry in self.entries)

    @property
    def deciding(self) -> bool:
        """Whether a decision between two models is open."""
        return any(entry.goal == "decide" and entry.ended is None for entry in self.entries)

    def advance(
        self,
        store: Store,
        goal: Goal,
        engine: str = "",
        context: str = "",
        long_enough: LongEnough = lambda more: True,
    ) -> tuple[list[Cell], list[str]]:
        """Plan the next round: of the precisions that one engine answers under a context setting, or of every decision.

        `long_enough`: rounds of decisions span more looks, or all samples that are left, until it agrees.

        Returns the cells that grow, and a line about every entry that was looked at.
        """
        before = {
            i: entry
            for i, entry in enumerate(self.entries)
            if entry.ended is None
            and entry.goal == goal
            and (goal == "decide" or (self._plan.engine(entry.all_cells[0]), entry.context) == (engine, context))
        }
        after = {i: _after(store, entry) for i, entry in before.items()}
        if goal == "decide":
            after = _lengthened(store, before, after, long_enough)
        growing = [cell for i in before for cell in _more(before[i], after[i])]
        lines = [_line(before[i], after[i]) for i in before]
        for i, entry in after.items():
            self.entries[i] = entry
        if lines:
            store.replan(self.counts, self.entries)
        return growing, lines


def _lengthened(
    store: Store, before: Mapping[int, Rounds], after: Mapping[int, Rounds], long_enough: LongEnough
) -> dict[int, Rounds]:
    """Decisions `after` a round, the next one long enough for all of them together, as far as there are samples.

    Rounds whose pace is recorded stay as they are.
    """
    found, pace = dict(after), 1
    while not long_enough({cell: n for i in found for cell, n in _more(before[i], found[i]).items()}):
        pace += 1
        free = [i for i, entry in before.items() if len(entry.paces) < len(entry.samples) and found[i].ended is None]
        longer = {i: _after(store, before[i], pace) for i in free}
        if all(longer[i].samples == found[i].samples for i in free):
            break
        found |= longer
    return found


def _more(before: Rounds, after: Rounds) -> dict[Cell, int]:
    """The cells that the next round adds samples to, and how many."""
    old, new = before.counts, after.counts
    return {cell: new[cell] - old[cell] for cell in new if new[cell] > old[cell]}


def _after(store: Store, entry: Rounds, pace: int = 1) -> Rounds:
    """The entry after its present round is finished: with another round, or ended.

    `pace`: how many looks a decision's next round counts as, where the entry has not recorded it.
    """
    columns = [_columns(store, entry, model) for model in entry.models]
    if any(c is None for c in columns):
        return dataclasses.replace(entry, ended=FAILED)
    scores = [c for c in columns if c is not None]
    if any(((c < 0) | (c > 1)).any() for of_model in scores for c in of_model):
        last = entry.samples[-1] == entry.most
        grown = entry.samples if last else (*entry.samples, entry.most)
        return dataclasses.replace(entry, samples=grown, ended=NO_SCALE)
    paces = entry.paces if len(entry.paces) >= len(entry.samples) else (*entry.paces, pace)
    if entry.goal == "precision":
        half, more, ended = _precision(entry, scores)
        paces = entry.paces
    else:
        half, more, ended = _decision(entry, scores, paces[len(entry.samples) - 1])
    return dataclasses.replace(
        entry,
        widths=(*entry.widths, round(100 * half, 6)),
        samples=entry.samples if more is None else (*entry.samples, tuple(more)),
        ended=ended,
        paces=entry.paces if more is None else paces,
    )


def _precision(entry: Rounds, scores: list[Columns]) -> tuple[float, list[int] | None, str | None]:
    """Half-width, samples of the next round, and why there is none."""
    [columns], target = scores, entry.target / 100
    half = float(estimate(Moments.of(columns), entry.design).half)
    more = next_counts(columns, entry.design, target)
    return half, more, None if more is not None else REACHED if half <= target else AT_MOST


def _decision(entry: Rounds, scores: list[Columns], pace: int) -> tuple[float, list[int] | None, str | None]:
    baseline, candidate = scores
    seen = look_at(baseline, candidate, entry.design, entry.tests)
    half = float(seen.high - seen.low) / 2
    if (verdict := seen.verdict(entry.target / 100)) is not None:
        return half, None, verdict
    more = next_look(baseline, candidate, entry.design, pace)
    return half, more, None if more is not None else UNDECIDED


def _columns(store: Store, entry: Rounds, model: str) -> Columns | None:
    """The scores of the present round's samples, per task; None where a cell has not all of them, or a NaN."""
    columns = [store.scores(cell).scores for cell in entry.cells(model)]
    whole = all(c.size == n and not np.isnan(c).any() for c, n in zip(columns, entry.samples[-1], strict=True))
    return columns if whole and not any(c.key in store.failures for c in entry.cells(model)) else None


def _line(entry: Rounds, after: Rounds) -> str:
    """What a round came to, for the screen."""
    who = " against ".join(reversed(entry.models))
    what = entry.tasks[0] if len(entry.tasks) == 1 else presentation_of(entry.benchmark).title
    where = f"{who}, {entry.context}, {what}" + (f" {entry.length}" if entry.length else "")
    drawn = f"{counted(f'{sum(entry.samples[-1]):,}', 'sample')}"
    if after.ended in (FAILED, NO_SCALE) or not after.widths:
        return f"{where}: no further rounds: {after.ended}"
    goal = f"margin {entry.target:g}" if entry.goal == "decide" else f"goal ±{entry.target:g}"
    text = f"{where}: round {len(entry.samples)}, {drawn}, ±{after.widths[-1]:.2f} points ({goal})"
    if after.ended is not None:
        return f"{text}; {after.ended}"
    return f"{text}; {sum(after.samples[-1]) - sum(entry.samples[-1]):,} more"
