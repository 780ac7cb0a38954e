"""The largest equal plan that fits a time: `--budget 2h`.

Equal means that every task of every benchmark entry gets the same number of samples, unless it has fewer or its entry
asks for fewer: then it keeps those. The number is the largest whose predicted time is within the budget.

Where samples come in rounds, the number is the most that a task may take (`at_most`), and at least `at_least`: the run
takes no longer than predicted, and ends earlier where its precision is reached earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.config import BenchmarkEntry, Config
from harness.config.sampling import Sampling, most
from harness.run.costs import Costs
from harness.run.estimate import duration
from harness.store.manifest import MANIFEST, read_manifest
from harness.types import Cell, GatedevalError

Allocation = Callable[[int], Mapping[Cell, int]]
"""A plan of some size, counted by a whole number: the size -> samples of every cell. A larger size asks for no fewer.

Equal counts are one allocation (`equal_counts`); plans of equal precision can be another.
"""


def equal_counts(costs: Costs) -> Allocation:
    """`size` samples in every cell, or all that the plan asks for where that is less; of rounds at least `at_least`.

    Cells of a benchmark whose entry has no number of samples keep theirs.
    """
    planned = costs.plan.cells
    least: dict[Cell, int] = {}
    for cell, n in planned.items():
        benchmark = costs.plan.benchmark(cell)
        least[cell] = (benchmark.sampling.at_least if benchmark.sampling else 1) if _has_count(benchmark) else n
    return lambda size: {cell: min(max(size, least[cell]), n) for cell, n in planned.items()}


def largest_within(costs: Costs, seconds: float, allocation: Allocation, most: int) -> int:
    """The largest size, 1 to `most`, of an allocation whose predicted time is at most `seconds`.

    Raises:
        GatedevalError: even the smallest takes longer.
    """
    if (needed := costs.total(allocation(1))) > seconds:
        raise GatedevalError(
            f"--budget {duration(seconds)}: with one sample per task and length (at_least, where samples come in"
            f" rounds) the run takes about {duration(needed)}, of which engine starts are"
            f" {duration(costs.fixed(costs.plan.cells))}: raise the budget, or leave out models, context settings,"
            " tasks or lengths"
        )
    low, high = 1, most
    while low < high:  # time grows with the size
        middle = (low + high + 1) // 2
        low, high = (middle, high) if costs.total(allocation(middle)) <= seconds else (low, middle - 1)
    return low


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A run's budget as run.json has it.

    `samples`: the most per task and length. `asked`: the most that each entry of the config had asked for.
    """

    seconds: float
    samples: int
    asked: tuple[int | None, ...]

    def apply(self, config: Config) -> Config:
        """`config` with at most `samples` per task and length in every entry that has a number of samples."""
        entries = tuple(
            entry.model_copy(update={"samples": self._of(entry)}) if _has_count(entry) else entry
            for entry in config.benchmarks
        )
        return config.model_copy(update={"benchmarks": entries})

    def _of(self, entry: BenchmarkEntry) -> int | Sampling:
        """The entry's samples: its count or its rule, lowered to the budget's number."""
        lowered = min(self.samples, _count(entry) or self.samples)
        rule = getattr(entry, "samples", None)
        if not isinstance(rule, Sampling):
            return lowered
        return rule.model_copy(update={"at_most": max(lowered, rule.at_least)})


def asked(config: Config) -> tuple[int | None, ...]:
    """The most samples per task that each entry of a config asks for; None: all there are."""
    return tuple(_count(entry) for entry in config.benchmarks)


def recorded(path: Path, config: Config, seconds: float) -> Budget | None:
    """The budget that the run at `path` was begun with, if it is this one for these numbers; else None.

    A later session then keeps its numbers: what is known about the speed may be more by now, and the same command is to
    continue the run that it has begun.
    """
    if not (path / MANIFEST).is_file():
        return None
    found = read_manifest(path).get("budget")
    if not isinstance(found, dict) or found.get("seconds") != seconds or not isinstance(found.get("samples"), int):
        return None
    same = list(found.get("asked") or []) == list(asked(config))
    return Budget(seconds=seconds, samples=found["samples"], asked=asked(config)) if same else None


def _count(entry: BenchmarkEntry) -> int | None:
    """The most samples per task that an entry asks for; None: all there are."""
    default = type(entry).model_fields["samples"].default if _has_count(entry) else None
    return most(getattr(entry, "samples", None), default if isinstance(default, int) else None)


def _has_count(entry: BenchmarkEntry) -> bool:
    """Whether an entry says how many samples it takes, so that they can be lowered."""
    return "samples" in type(entry).model_fields
