"""The largest equal plan that fits a time: `--budget 2h`.

Equal means that every task of every benchmark entry gets the same number of samples, unless it has fewer or its entry
asks for fewer: then it keeps those. The number is the largest whose predicted time is within the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.config import BenchmarkEntry, Config
from harness.run.costs import Costs
from harness.run.estimate import duration
from harness.store.manifest import MANIFEST, read_manifest
from harness.types import Cell, GatedevalError

Allocation = Callable[[int], Mapping[Cell, int]]
"""A plan of some size, counted by a whole number: the size -> samples of every cell. A larger size asks for no fewer.

Equal counts are one allocation (`equal_counts`); plans of equal precision can be another.
"""


def equal_counts(costs: Costs) -> Allocation:
    """`size` samples in every cell, or all that the plan asks for where that is less.

    Cells of a benchmark whose entry has no number of samples keep theirs.
    """
    planned = costs.plan.cells
    free = {cell for cell in planned if _has_count(costs.plan.benchmark(cell))}
    return lambda size: {cell: min(size, n) if cell in free else n for cell, n in planned.items()}


def largest_within(costs: Costs, seconds: float, allocation: Allocation, most: int) -> int:
    """The largest size, 1 to `most`, of an allocation whose predicted time is at most `seconds`.

    Raises:
        GatedevalError: even the smallest takes longer.
    """
    if (needed := costs.total(allocation(1))) > seconds:
        raise GatedevalError(
            f"--budget {duration(seconds)}: with one sample per task and length the run takes about {duration(needed)},"
            f" of which engine starts are {duration(costs.fixed(costs.plan.cells))}: raise the budget, or leave out"
            " models, context settings, tasks or lengths"
        )
    low, high = 1, most
    while low < high:  # time grows with the size
        middle = (low + high + 1) // 2
        low, high = (middle, high) if costs.total(allocation(middle)) <= seconds else (low, middle - 1)
    return low


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A run's budget as run.json has it. `samples`: per task and length at most; `asked`: what the config had asked."""

    seconds: float
    samples: int
    asked: tuple[int | None, ...]

    def apply(self, config: Config) -> Config:
        """`config` with at most `samples` per task and length in every entry that has a count."""
        entries = tuple(
            entry.model_copy(update={"samples": min(self.samples, _count(entry) or self.samples)})
            if _has_count(entry)
            else entry
            for entry in config.benchmarks
        )
        return config.model_copy(update={"benchmarks": entries})


def asked(config: Config) -> tuple[int | None, ...]:
    """The number of samples that each entry of a config asks for; None: all there are, or no plain count."""
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
    value = getattr(entry, "samples", None)
    return value if isinstance(value, int) else None


def _has_count(entry: BenchmarkEntry) -> bool:
    """Whether an entry's number of samples is a plain count, which may be lowered."""
    return "samples" in type(entry).model_fields and isinstance(getattr(entry, "samples", None), int | None)
