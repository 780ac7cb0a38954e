"""Where the samples went, in a run whose samples came in rounds."""

from __future__ import annotations

from dataclasses import dataclass

from harness.store import Store
from harness.store.rounds import Rounds
from harness.tables.sampled import entries_of, where


@dataclass(frozen=True)
class TaskSamples:
    """One task's samples. `share`: percent of the most that it could have. `by_round`: "50, 71, 83"."""

    name: str
    samples: str
    most: str
    share: float
    by_round: str

    @property
    def words(self) -> str:
        """For the tooltip of the bar."""
        return f"{self.name}: {self.samples} of at most {self.most} samples; after every round {self.by_round}"


@dataclass(frozen=True)
class RoundsRow:
    """One reported number: what it is, its goal, and how its rounds went. `samples` are those of one model."""

    what: str
    goal: str
    rounds: int
    samples: str
    widths: str
    ended: str
    tasks: list[TaskSamples]

    @property
    def named(self) -> bool:
        """Whether the tasks have a table of their own: of many tasks, bars are too small to tell apart."""
        return len(self.tasks) > 1


def rounds_rows(store: Store) -> list[RoundsRow]:
    """A row per reported number that came in rounds, in the order of the plan."""
    return [_row(entry) for entry in entries_of(store, list(store.cells))]


def _row(entry: Rounds) -> RoundsRow:
    last = entry.samples[-1]
    tasks = [
        TaskSamples(
            name=task,
            samples=f"{last[i]:,}",
            most=f"{most:,}",
            share=round(100 * last[i] / max(most, 1), 1),
            by_round=", ".join(f"{counts[i]:,}" for counts in entry.samples),
        )
        for i, (task, most) in enumerate(zip(entry.tasks, entry.most, strict=True))
    ]
    return RoundsRow(
        what=where(entry),
        goal=f"decide, margin {entry.target:g}" if entry.goal == "decide" else f"±{entry.target:g}",
        rounds=len(entry.samples),
        samples=f"{sum(last):,} of {sum(entry.most):,}",
        widths=" → ".join(f"{width:.2f}" for width in entry.widths),
        ended=entry.ended or "not yet",
        tasks=tasks,
    )
