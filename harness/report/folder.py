"""Every run of a folder in a few numbers, and two arms of any of them compared on the samples that both answered.

The list reads run.json and cells.csv alone, so a folder of large runs opens at once. A comparison reads sample files.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from harness.benchmarks.presentation import presentation_of
from harness.benchmarks.rolling import ROLLING
from harness.config.arms import checkpoints_of, rows_of
from harness.store import Store, list_runs
from harness.store.manifest import MANIFEST, read_manifest
from harness.store.rounds import Rounds
from harness.store.scores import CellScores
from harness.tables.aggregates import usable
from harness.tables.arms import by_arm
from harness.tables.layout import length_title
from harness.tables.paired import Comparison, adjust, compare_cells
from harness.types import Cell, GatedevalError


class Column(NamedTuple):
    """What a score is of. Averages over other tasks are other columns: `title` says "RULER 3/13" and never RULER alone.

    `length` in tokens, 0 where the benchmark has none.
    """

    benchmark: str
    length: int
    title: str

    @property
    def name(self) -> str:
        """ "RULER 3/13 8K", or the benchmark alone."""
        return f"{self.title} {length_title(self.length)}" if self.length else self.title


@dataclass(frozen=True)
class Arm:
    """One model, or the checkpoints of one recipe, under one context setting of one run.

    `scores` on 0-100, only where every planned task has one. `checkpoints`: the labels whose mean the scores are; empty
    for a model of its own.
    """

    run: str
    model: str
    context: str
    scores: dict[Column, float]
    checkpoints: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What an address calls it."""
        return "\t".join((self.run, self.model, self.context))


@dataclass(frozen=True)
class Run:
    """One run of the folder: `name` of its directory, and what run.json says; `error` where it cannot be read."""

    name: str
    path: Path
    state: str
    start: str
    samples: int
    probes: int
    models: list[str]
    error: str
    arms: list[Arm]


def runs_of(folder: Path) -> list[Run]:
    """Every run directly below `folder`, the newest first; the folder's own run where it is a run directory.

    Raises GatedevalError where there is no such folder.
    """
    if not folder.is_dir():
        raise GatedevalError(f"no folder {folder}; give one that holds run directories, such as results")
    own = (folder / MANIFEST).is_file()
    listed = list_runs(folder.parent if own else folder)
    return [_run(facts) for facts in listed if not own or Path(facts["path"]).name == folder.resolve().name]


def _run(facts: dict[str, Any]) -> Run:
    path = Path(facts["path"])
    error = str(facts.get("error") or "")
    return Run(
        name=path.name,
        path=path,
        state=str(facts["state"]),
        start=str(facts.get("start") or "")[:16].replace("T", " "),
        samples=int(facts.get("samples") or 0),
        probes=int(facts.get("probes") or 0),
        models=list(facts.get("models") or []),
        error=error,
        arms=[] if error else arms_of(path),
    )


def arms_of(path: Path) -> list[Arm]:
    """The arms of a run by its cells.csv; none while the run has no such file.

    RULER: the mean over tasks with equal weight; other benchmarks: over all samples, by the headline metric. A task
    without a score blocks the number.
    """
    try:
        with (path / "cells.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        tasks: dict[str, set[str]] = {}
        for row in rows:
            tasks.setdefault(row["benchmark"], set()).add(row["task"])
        titles = {name: presentation_of(name).titles(own)[1] for name, own in tasks.items()}
        found: dict[tuple[str, str], dict[Column, list[tuple[float, int]]]] = {}
        for row in rows:
            scores = found.setdefault((row["model"], row["context"]), {})
            score = float(row["score"]) if row["score"] else math.nan
            column = Column(row["benchmark"], int(row["length"] or 0), titles[row["benchmark"]])
            if row.get("metric") in ROLLING and len(tasks[row["benchmark"]]) > 1:
                continue  # perplexities of several tasks have no mean
            scores.setdefault(column, []).append((score, int(row["samples"])))
    except (OSError, KeyError, ValueError):
        return []
    arms = []
    for (model, context), columns in found.items():
        means = {column: _mean(column, pairs) for column, pairs in columns.items()}
        arms.append(Arm(path.name, model, context, {c: mean for c, mean in means.items() if not math.isnan(mean)}))
    return [*_recipes(path, arms), *arms]


def _recipes(path: Path, arms: list[Arm]) -> list[Arm]:
    """For every arm of two checkpoints or more that the run's config names: their mean, at the last step."""
    models = (read_manifest(path).get("config") or {}).get("models") or []
    found = []
    for row, labels in rows_of(checkpoints_of(models)).items():
        for context in dict.fromkeys(arm.context for arm in arms if arm.model in labels and len(labels) > 1):
            own = [arm for arm in arms if arm.model in labels and arm.context == context]
            if len(own) == len(labels):
                shared = [c for c in own[0].scores if all(c in arm.scores for arm in own)]
                means = {c: sum(arm.scores[c] for arm in own) / len(own) for c in shared}
                found.append(Arm(path.name, row, context, means, labels))
    return found


def _mean(column: Column, pairs: list[tuple[float, int]]) -> float:
    weights = [1 if presentation_of(column.benchmark).pooling == "tasks" else n for _, n in pairs]
    total = sum(weights)
    return sum(score * w for (score, _), w in zip(pairs, weights, strict=True)) / total if total else math.nan


def columns_of(arms: list[Arm]) -> list[Column]:
    """Every benchmark and length that an arm has a score for, in the order of tables."""
    every = {column for arm in arms for column in arm.scores}
    return sorted(every, key=lambda c: (presentation_of(c.benchmark).rank, *c))


@dataclass(frozen=True)
class Paired:
    """Two arms in one column: the comparison on their common samples, or the reason why there is none."""

    title: str
    comparison: Comparison | None
    reason: str = ""


class _Two:
    """The scores of two stores, where a cell's model says whose: what `compare_cells` reads of a store."""

    def __init__(self, stores: dict[str, Store], models: dict[str, str]) -> None:
        self._stores, self._models = stores, models

    def scores(self, cell: Cell) -> CellScores:
        """The columns of the cell in the store that its label names."""
        return self._stores[cell.model].scores(self._real(cell))

    def rounds(self, cell: Cell) -> Rounds | None:
        """The rounds that decided how many samples the cell has; None where its plan is a plain count."""
        return self._stores[cell.model].rounds(self._real(cell))

    def _real(self, cell: Cell) -> Cell:
        return replace(cell, model=self._models[cell.model])


def _read(path: Path, arm: Arm) -> Store:
    store = Store.read(path)
    return by_arm(store) if arm.checkpoints else store


def compare_arms(folder: list[Run], first: Arm, second: Arm) -> list[Paired]:
    """Second minus first in every column that both have, paired by sample; Holm over these comparisons.

    The two may be of different runs: samples are paired where id and prompt are the same, as in `gatedeval compare`.
    """
    paths = {run.name: run.path for run in folder}
    names = f"{first.run}: {first.model}, {first.context}", f"{second.run}: {second.model}, {second.context}"
    arms = dict(zip(names, (first, second), strict=True))
    stores = {name: _read(paths[arm.run], arm) for name, arm in arms.items()}
    both = cast(Store, _Two(stores, {name: arm.model for name, arm in arms.items()}))
    found = []
    for column in columns_of([first, second]):
        if not all(column in arm.scores for arm in arms.values()):
            continue
        cells = []
        for cell in stores[names[0]].cells:
            if (cell.model, cell.context, cell.benchmark, cell.length) != (first.model, first.context, *column[:2]):
                continue
            other = Cell(second.model, second.context, cell.benchmark, cell.task, cell.length)
            if other in stores[names[1]].cells and usable(stores[names[0]], cell):
                pair = [Cell(n, a.context, cell.benchmark, cell.task, cell.length) for n, a in arms.items()]
                cells.append((pair[0], pair[1]))
        try:
            pooled = presentation_of(column.benchmark).pooling != "tasks"
            if not cells:
                raise GatedevalError("no task in common")
            found.append(Paired(column.name, compare_cells(both, cells, pooled=pooled)))
        except GatedevalError as error:
            found.append(Paired(column.name, None, str(error)))
    adjust([p.comparison for p in found if p.comparison is not None])
    return found
