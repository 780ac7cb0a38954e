"""`rounds` in run.json: how the samples of a number that has a precision were chosen, round by round.

An entry is about one reported number (or, with `per: task`, one task; with `decide`, one number of two models). What it
says is computed from the stored samples again whenever the run is resumed; only `paces` are taken from the entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.stats.sequential import Design
from harness.store.manifest import MANIFEST, read_manifest
from harness.types import Cell

Goal = Literal["precision", "decide"]


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """One entry. Lists over tasks have the order of `tasks`.

    `models`: the one model; for "decide" the baseline and the candidate. `length`: tokens, 0 where there is none.
    `weights`: of every task in the reported number; they sum to 1. `population`: questions of every task that samples
    are drawn from without replacement; None where samples are generated. `at_least`, `most`: samples per task of the
    first round, and the most. `target`: half-width of the interval, or decide's margin, in points. `tests`: decisions
    that share the family's level. `samples`: per round, the samples of every task. `widths`: per finished round, the
    half-width in points. `ended`: why no further round follows; None while one may.

    `paces`: of a decision whose models' engines take turns: how many looks each round after the first one counts as.
    They come from the time that engines take to start, so a run that is resumed takes them from here; they may be more
    than its rounds so far.
    """

    models: tuple[str, ...]
    context: str
    benchmark: str
    length: int
    tasks: tuple[str, ...]
    weights: tuple[float, ...]
    population: tuple[int, ...] | None
    at_least: int
    most: tuple[int, ...]
    goal: Goal
    target: float
    tests: int = 1
    samples: tuple[tuple[int, ...], ...] = ()
    widths: tuple[float, ...] = ()
    ended: str | None = None
    paces: tuple[int, ...] = ()

    def cells(self, model: str) -> list[Cell]:
        """The cells of one of the models."""
        return [Cell(model, self.context, self.benchmark, task, self.length) for task in self.tasks]

    @property
    def all_cells(self) -> list[Cell]:
        """The cells of every model."""
        return [cell for model in self.models for cell in self.cells(model)]

    @property
    def counts(self) -> dict[Cell, int]:
        """Samples of every cell in the present round; both models of a decision have the same."""
        return {cell: n for model in self.models for cell, n in zip(self.cells(model), self.samples[-1], strict=True)}

    @property
    def design(self) -> Design:
        """What the statistics have to know of the entry."""
        return Design.of(self.weights, self.at_least, self.most, self.population)

    def like(self, other: Rounds) -> bool:
        """Whether both are about the same number, with the same limits on its samples."""
        keys = ("models", "context", "benchmark", "length", "tasks", "at_least", "most", "goal")
        return all(getattr(self, key) == getattr(other, key) for key in keys)

    def to_dict(self) -> dict[str, Any]:
        """The entry as run.json has it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Rounds:
        """An entry of run.json. Keys that a later version may add are left out."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: _tuples(value) for key, value in entry.items() if key in known})


def rounds_of(manifest: Mapping[str, Any]) -> dict[Cell, Rounds]:
    """Cell -> its entry, for every cell whose samples were chosen in rounds."""
    entries = [Rounds.from_dict(entry) for entry in manifest.get("rounds") or []]
    return {cell: entry for entry in entries for cell in entry.all_cells}


def recorded_rounds(path: Path) -> list[Rounds]:
    """The entries of the run at `path`; none where there is no such run."""
    if not (path / MANIFEST).is_file():
        return []
    return list(dict.fromkeys(rounds_of(read_manifest(path)).values()))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
