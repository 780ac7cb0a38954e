"""The largest plan of equal precision that fits a time: `--budget 2h`.

Equal precision means that every reported number gets samples for the same interval, if scores vary as much as scores
in 0..1 can (standard deviation 0.5): RULER's average over 13 tasks needs a thirteenth of GSM8k's samples in each task.
Within a number, tasks get the same number of samples. No task gets more than its entry asks for or than there are, so a
number may stay wider. The precision is the narrowest whose predicted time is within the budget.

Where samples come in rounds, the number is the most that a task may take (`at_most`), and at least `at_least`: the run
takes no longer than predicted, and ends earlier where its precision is reached earlier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from harness.benchmarks.presentation import presentation_of
from harness.config import BenchmarkEntry, Config
from harness.config.sampling import Sampling, most
from harness.run.costs import Costs
from harness.run.estimate import duration
from harness.run.numbers import design_of, numbers_of
from harness.run.plan import Plan
from harness.stats.sequential import INFLATION, half_width
from harness.store.manifest import MANIFEST, read_manifest
from harness.types import Cell, GatedevalError

WIDEST_SPREAD = 0.5
"""The largest standard deviation that scores in 0..1 can have: half of them right."""


class EqualPrecision:
    """Plans of growing size. `size`: samples that the interval of every reported number is worth.

    A number of H tasks with equal weight gets size / H samples in each. Where rounds draw from a population without
    replacement (MMLU's questions), fewer are worth as many.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._numbers = [_Number(plan, cells) for cells in numbers_of(plan, plan.cells).values()]
        entries = {id(entry): i for i, entry in enumerate(plan.config.benchmarks)}
        self._entry = {cell: entries[id(plan.benchmark(cell))] for cell in plan.cells}

    @cached_property
    def largest(self) -> int:
        """A size that asks for all that the plan has."""
        # all samples of a population that ends leave no variance: then all but one of them count
        nearly = [(x, np.maximum(1.0, np.minimum(x.design.most, x.design.sizes - 1))) for x in self._numbers]
        worths = [number.worth(counts) for number, counts in nearly]
        return math.floor(max(filter(math.isfinite, worths), default=1.0)) + 1

    def samples(self, size: int) -> tuple[int | None, ...]:
        """Samples per task of every entry of the config; None for entries that have no number of samples."""
        entries = self._plan.config.benchmarks
        most_of = [1] * len(entries)
        for number in self._numbers:
            needed = number.per_task(size)
            for i in {self._entry[cell] for cell in number.cells}:
                most_of[i] = max(most_of[i], needed)
        return tuple(_bounded(e, n) if _has_count(e) else None for e, n in zip(entries, most_of, strict=True))

    def counts(self, size: int) -> dict[Cell, int]:
        """Samples of every cell of the plan."""
        samples = self.samples(size)
        pairs = ((cell, n, samples[self._entry[cell]]) for cell, n in self._plan.cells.items())
        return {cell: n if fits is None else min(fits, n) for cell, n, fits in pairs}

    def half_width(self, counts: Mapping[Cell, int]) -> float | None:
        """Half of the widest number's 95% interval, in points, if the scores of every task vary as much as they can.

        None where no number is in points.
        """
        halves = [x.half_width([counts[c] for c in x.cells]) for x in self._numbers if x.in_points]
        return 100 * max(halves) if halves else None


class _Number:
    """A reported number: its cells, how they make it up, and whether it is in points."""

    def __init__(self, plan: Plan, cells: Sequence[Cell]) -> None:
        self.cells, self.design = cells, design_of(plan, cells)
        self.in_points = all(plan.benchmark(cell).in_points(cell.task, plan.data) for cell in cells)
        self._looked = any(plan.benchmark(cell).sampling is not None for cell in cells)

    def half_width(self, counts: Sequence[int]) -> float:
        """Half of the interval of `counts` samples in each cell, on 0..1, if scores vary as much as they can."""
        spread = np.full(len(self.cells), WIDEST_SPREAD)
        return half_width(spread, counts, self.design, looked=self._looked)

    def worth(self, n: Any) -> float:
        """How many samples of a plain count of one task without end `n` samples per task are worth."""
        inverse = (INFLATION if self._looked else 1.0) ** 2 * float(self.design.inverse_size(n))
        return 1 / inverse if inverse > 0 else math.inf

    def per_task(self, size: int) -> int:
        """The fewest samples per task that are worth `size`, or the most that the design has."""
        low, high = 1, int(self.design.most.max())
        while low < high:
            middle = (low + high) // 2
            enough = self.worth(np.minimum(middle, self.design.most)) >= size
            low, high = (low, middle) if enough else (middle + 1, high)
        return low


def largest_within(costs: Costs, seconds: float, counts: Callable[[int], Mapping[Cell, int]], largest: int) -> int:
    """The largest size, 1 to `largest`, whose `counts` of samples are predicted to take at most `seconds`.

    Raises:
        GatedevalError: even the smallest takes longer.
    """
    if (needed := costs.total(counts(1))) > seconds:
        raise GatedevalError(
            f"--budget {duration(seconds)}: with one sample per task and length (at_least, where samples come in"
            f" rounds) the run takes about {duration(needed)}, of which engine starts are"
            f" {duration(costs.fixed(costs.plan.cells))}: raise the budget, or leave out models, context settings,"
            " tasks or lengths"
        )
    low, high = 1, largest
    while low < high:  # time grows with the size
        middle = (low + high + 1) // 2
        low, high = (middle, high) if costs.total(counts(middle)) <= seconds else (low, middle - 1)
    return low


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A run's budget as run.json has it.

    `half_width`: of the widest reported number's interval, in points, if scores vary as much as they can; None where no
    number is in points, and in a run of an older version. `samples`: the most per task and length, of each entry of the
    config. `asked`: the most that each had asked for. None in both: the entry has no number of samples, or asks for
    all.
    """

    seconds: float
    half_width: float | None
    samples: tuple[int | None, ...]
    asked: tuple[int | None, ...]

    def text(self, config: Config) -> str:
        """What was chosen, in one sentence."""
        pairs = [(e.name, n) for e, n in zip(config.benchmarks, self.samples, strict=True) if n is not None]
        numbers = ", ".join(f"{presentation_of(name).title} {n:,}" for name, n in pairs)
        width = ""
        if self.half_width is not None:
            reach = f"±{self.half_width:.1f} points (95%)"
            width = f"; every reported number within {reach}, if scores vary as much as they can"
        return f"--budget {duration(self.seconds)}: samples per task and length: {numbers}{width}"

    def apply(self, config: Config) -> Config:
        """`config` with at most `samples` per task and length in every entry that has a number of samples."""
        pairs = zip(config.benchmarks, self.samples, strict=True)
        entries = tuple(e if n is None else e.model_copy(update={"samples": _lowered(e, n)}) for e, n in pairs)
        return config.model_copy(update={"benchmarks": entries})


def fitting(costs: Costs, seconds: float) -> Budget:
    """The plan of equal precision that fits into `seconds`.

    Raises:
        GatedevalError: the config has no samples, or even one sample per task takes longer.
    """
    if not costs.plan.cells:
        raise GatedevalError("--budget chooses numbers of samples, and this config has no benchmark that has any")
    sizes = EqualPrecision(costs.plan)
    size = largest_within(costs, seconds, sizes.counts, sizes.largest)
    width = sizes.half_width(sizes.counts(size))
    width = None if width is None else round(width, 4)
    return Budget(seconds=seconds, half_width=width, samples=sizes.samples(size), asked=asked(costs.plan.config))


def asked(config: Config) -> tuple[int | None, ...]:
    """The most samples per task that each entry of a config asks for; None: all there are."""
    return tuple(_count(entry) for entry in config.benchmarks)


def recorded(path: Path, config: Config, seconds: float) -> Budget | None:
    """The budget that the run at `path` was begun with, if it is this one for these numbers; else None.

    A later session then keeps its numbers: what is known about the speed may be more by now, and the same command is to
    continue the run that it has begun. Older versions gave every entry one number, which run.json has as `samples`.
    """
    if not (path / MANIFEST).is_file():
        return None
    found = read_manifest(path).get("budget")
    if (
        not isinstance(found, dict)
        or found.get("seconds") != seconds
        or list(found.get("asked") or []) != [*asked(config)]
    ):
        return None
    if (samples := _recorded_samples(found.get("samples"), config)) is None:
        return None
    return Budget(seconds=seconds, half_width=found.get("half_width"), samples=samples, asked=asked(config))


def _recorded_samples(found: Any, config: Config) -> tuple[int | None, ...] | None:
    """The samples of every entry as run.json has them; None where they are not those of this config's entries."""
    if isinstance(found, int):
        return tuple(_bounded(entry, found) if _has_count(entry) else None for entry in config.benchmarks)
    if not isinstance(found, list) or len(found) != len(config.benchmarks):
        return None
    return tuple(found)


def _lowered(entry: BenchmarkEntry, samples: int) -> int | Sampling:
    """The entry's samples: its count or its rule, lowered to `samples`."""
    rule = getattr(entry, "samples", None)
    return rule.model_copy(update={"at_most": samples}) if isinstance(rule, Sampling) else samples


def _bounded(entry: BenchmarkEntry, samples: int) -> int:
    """So many samples of an entry, no more than it asks for, and no fewer than the first of its rounds has."""
    rule, most_of = getattr(entry, "samples", None), _count(entry)
    samples = samples if most_of is None else min(samples, most_of)
    return max(samples, rule.at_least) if isinstance(rule, Sampling) else samples


def _count(entry: BenchmarkEntry) -> int | None:
    """The most samples per task that an entry asks for; None: all there are."""
    default = type(entry).model_fields["samples"].default if _has_count(entry) else None
    return most(getattr(entry, "samples", None), default if isinstance(default, int) else None)


def _has_count(entry: BenchmarkEntry) -> bool:
    """Whether an entry says how many samples it takes, so that they can be lowered."""
    return "samples" in type(entry).model_fields
