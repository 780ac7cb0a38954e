"""A run read by arm: several checkpoints of one recipe as one model, whose answer to a sample has their mean score.

Everything that tables compute from a run then holds for arms as it does for models: means over tasks, intervals by
sample, paired comparisons of these files. What is about the recipe is in `harness.tables.recipe`.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.config.arms import Checkpoint, checkpoints_of, rows_of
from harness.store import Store
from harness.store.rounds import Rounds
from harness.store.scores import CellScores, pair
from harness.store.summary import scale_of
from harness.types import Cell, GatedevalError, Sample

_ARMS: weakref.WeakKeyDictionary[Store, Arms] = weakref.WeakKeyDictionary()  # a run that is read by arm -> its arms


class Arms:
    """The arms behind the rows of a run that is read by arm.

    `rows`: row -> labels of its checkpoints, in the config's order. `checkpoints`: the run with every checkpoint as a
    model of its own. `steps`, `infer`: as `harness.config.TableOptions` has them.
    """

    def __init__(self, checkpoints: Store, rows: dict[str, tuple[str, ...]], steps: str, infer: str) -> None:
        self.checkpoints, self.rows, self.steps, self.infer = checkpoints, rows, steps, infer

    def of(self, cell: Cell) -> list[Cell]:
        """The cells of an arm's checkpoints, in the order of `rows`."""
        return [replace(cell, model=label) for label in self.rows.get(cell.model, (cell.model,))]

    def scores(self, cell: Cell, metric: str | None = None) -> NDArray[np.float64]:
        """Scores by checkpoint and sample, shape (checkpoints, n), over the samples that every checkpoint answered.

        `metric` None: the headline metric. Raises GatedevalError where checkpoints were asked different things.
        """
        columns = [self.checkpoints.scores(c) for c in self.of(cell)]
        name = metric or columns[0].headline or ""
        common = common_rows(self.of(cell), columns)
        return np.array([c.metrics[name][rows] for c, rows in zip(columns, common, strict=True)])

    def means(self, cells: list[Cell], metric: str | None = None, *, pooled: bool = False) -> NDArray[np.float64]:
        """Every checkpoint's mean over `cells`, (checkpoints,): equal weight per cell, or `pooled` over all samples."""
        columns = [self.scores(cell, metric) for cell in cells]
        if pooled:
            return np.concatenate(columns, axis=1).mean(axis=1)
        means: NDArray[np.float64] = np.mean([c.mean(axis=1) for c in columns], axis=0)
        return means


def arms_of(store: Store) -> Arms | None:
    """The arms of a run that is read by arm; None for any other."""
    return _ARMS.get(store)


def hand_down(parent: Store, child: Store) -> None:
    """Let `child`, another view of the run `parent`, have the same arms."""
    if parent in _ARMS:
        _ARMS[child] = _ARMS[parent]


def members(store: Store) -> list[Checkpoint]:
    """The run's checkpoints as far as arms go, those that only its cells name included."""
    known = checkpoints_of(store.manifest.get("config", {}).get("models") or [])
    named = {c.label for c in known}
    return known + [Checkpoint(label) for label in dict.fromkeys(c.model for c in store.cells) if label not in named]


def has_arms(store: Store) -> bool:
    """Whether any checkpoint of the run is in an arm."""
    return any(c.arm for c in members(store))


def by_arm(store: Store, steps: str = "last", infer: str = "files") -> Store:
    """The run with a model per arm; the run itself where no checkpoint is in an arm, or it is read by arm already."""
    if arms_of(store) is not None or not has_arms(store):
        return store
    return _ByArm(store, Arms(store, rows_of(members(store), steps), steps, infer))


def read_rows(store: Store, arms: Arms) -> Store:
    """The run `store`, of single checkpoints, with a model for every row of `arms`."""
    return _ByArm(store, arms)


def checkpoint_view(store: Store, cells: Iterable[Cell]) -> tuple[Store, list[Cell]]:
    """The run with every checkpoint as a model of its own, and the cells of it that are behind `cells`."""
    arms = arms_of(store)
    if arms is None:
        return store, list(cells)
    found = [c for cell in cells for c in arms.of(cell)]
    return arms.checkpoints, [c for c in found if c in arms.checkpoints.cells]


# ------------------------------------------------------------------------------------------------- one arm's samples


def common_rows(cells: list[Cell], columns: list[CellScores]) -> list[NDArray[np.int64]]:
    """For each checkpoint the row numbers of the samples that all of them have, in one order.

    Raises GatedevalError where one of these samples has another prompt at another checkpoint.
    """
    common = set(columns[0].ids).intersection(*(c.ids for c in columns[1:]))
    kept = [id for id in columns[0].ids if id in common]
    for cell, other in zip(cells[1:], columns[1:], strict=True):
        if differing := [id for id in pair(columns[0], other).differing if id in common]:
            raise GatedevalError(
                f"{cells[0].model} and {cell.model} are in one arm, but were asked different things at {cell.task} "
                f"(sample {differing[0]!r}: another tokenizer, seed or profile?); read them apart with --arms off"
            )
    places = [{id: row for row, id in enumerate(c.ids)} for c in columns]
    return [np.array([place[id] for id in kept], dtype=np.int64) for place in places]


def _joined(cells: list[Cell], columns: list[CellScores]) -> CellScores:
    """The columns of an arm: every metric's mean over checkpoints, sample by sample."""
    rows = common_rows(cells, columns)
    first, own = columns[0], rows[0]
    names = [name for name in first.metrics if all(name in c.metrics for c in columns)]
    both = list(zip(columns, rows, strict=True))
    return CellScores(
        ids=[first.ids[i] for i in own],
        metrics={name: np.mean([c.metrics[name][r] for c, r in both], axis=0) for name in names},
        prompts=first.prompts[own],
        finish=np.max([c.finish[r] * (c.finish[r] == 1) for c, r in both], axis=0).astype(np.int8),
        prompt_tokens=first.prompt_tokens[own],
        answers=first.answers[own],
        references=first.references[own],
        tied=np.any([c.tied[r] for c, r in both], axis=0),
        unreadable=sum(c.unreadable for c in columns),
        arithmetic=sum((Counter(c.arithmetic) for c in columns), Counter()),
    )


_NOTHING = CellScores(
    ids=[],
    metrics={},
    prompts=np.empty(0, np.int64),
    finish=np.empty(0, np.int8),
    prompt_tokens=np.empty(0, np.int64),
    answers=np.empty(0, np.int64),
    references=np.empty(0, np.int64),
    tied=np.empty(0, np.bool_),
)


class _ByArm(Store):
    """A run in which every row of `Arms` is a model. It cannot be written."""

    def __init__(self, store: Store, arms: Arms) -> None:
        row_of = {label: row for row, labels in arms.rows.items() for label in labels}
        cells: dict[Cell, int | None] = {}
        for cell in store.cells:
            if cell.model in row_of:
                cells.setdefault(replace(cell, model=row_of[cell.model]))
        every_row = {c.label: c.row for c in members(store)}  # a baseline may be at a step that is left out
        super().__init__(store.path, _manifest(store.manifest, arms.rows, every_row), cells, None)
        self._store, self._arms = store, arms
        self._joined: dict[Cell, CellScores] = {}
        _ARMS[self] = arms
        for cell in cells:
            self._note_failures(cell)

    def _note_failures(self, cell: Cell) -> None:
        """Why an arm has no number: a checkpoint of it failed here, or is not planned here."""
        for own in self._arms.of(cell):
            error = self._store.failures.get(own.key)
            if own not in self._store.cells:
                error = "not in the plan"
            elif not error and own.model != cell.model and not self._store.samples_path(own).exists():
                error = "no sample yet"
            if error and own.model != cell.model:
                error = f"{own.model}: {error}"
            if error:
                self.failures.setdefault(cell.key, error)

    def scores(self, cell: Cell) -> CellScores:
        """The arm's mean scores; no sample where a checkpoint has none, or has one without a score."""
        own = self._arms.of(cell)
        if len(own) == 1:
            return self._store.scores(own[0])
        if cell not in self._joined:
            planned = [c for c in own if c in self._store.cells]
            columns = [self._store.scores(c) for c in planned]
            complete = len(planned) == len(own) and all(c.ids for c in columns)
            self._joined[cell] = _joined(own, columns) if complete else _NOTHING
        return self._joined[cell]

    def rounds(self, cell: Cell) -> Rounds | None:
        """The rounds of one of the arm's checkpoints; None where all have plain counts."""
        found = (self._store.rounds(own) for own in self._arms.of(cell))
        return next((entry for entry in found if entry is not None), None)

    def samples(self, cell: Cell) -> Iterator[Sample]:
        """One sample per id that every checkpoint answered: mean scores, and all responses, each after its label."""
        own = self._arms.of(cell)
        if len(own) == 1:
            yield from self._store.samples(own[0])
            return
        ids = set(self.scores(cell).ids)
        answers = [{s.id: s for s in self._store.samples(c) if s.id in ids} for c in own]
        for id, first in answers[0].items():
            each = [found[id] for found in answers]
            names = [name for name in first.scores if all(name in s.scores for s in each)]
            yield replace(
                first,
                hash=" ".join(s.hash for s in each),
                response="; ".join(f"{c.model}: {s.response.strip()}" for c, s in zip(own, each, strict=True)),
                finish_reason=first.finish_reason if first.finish_reason != "choose" else "stop",
                scores={name: float(np.mean([s.scores[name] for s in each])) for name in names},
            )

    def planned(self, cell: Cell) -> int | None:
        """The smallest number that is planned of a checkpoint: an arm's samples are those that all of them have."""
        counts = [self._store.planned(c) for c in self._arms.of(cell) if c in self._store.cells]
        known = [n for n in counts if n is not None]
        return min(known) if known and len(known) == len(counts) else None

    def done(self, cell: Cell) -> dict[str, str]:
        """id -> the checkpoints' hashes in one text, of the samples that all of them have."""
        found = [self._store.done(c) for c in self._arms.of(cell)]
        common = [id for id in found[0] if all(id in f for f in found)]
        return {id: " ".join(f[id] for f in found) for id in common}


def _manifest(
    manifest: Mapping[str, Any], rows: Mapping[str, tuple[str, ...]], row_of: Mapping[str, str]
) -> dict[str, Any]:
    """The manifest with a model per row: the facts that all of its checkpoints share."""
    config = dict(manifest.get("config") or {})
    entries = {entry["label"]: entry for entry in config.get("models") or []}
    facts = manifest.get("models") or {}
    config["models"] = [
        {**_shared([entries.get(label, {}) for label in labels]), "label": row} for row, labels in rows.items()
    ]
    for entry in config["models"]:
        entry.pop("arm", None)
        entry.pop("step", None)
    declared = dict(manifest.get("comparisons") or {})
    if declared.get("baselines"):
        baselines = {context: row_of.get(label) for context, label in declared["baselines"].items()}
        declared["baselines"] = {context: row for context, row in baselines.items() if row is not None}
    shared = {row: _shared([facts.get(label) or {} for label in labels]) for row, labels in rows.items()}
    return {**manifest, "config": config, "models": shared, "comparisons": declared, "failures": {}}


def _shared(entries: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What all mappings say alike, below too: the engine's seconds differ, its dtype does not."""
    found: dict[str, Any] = {}
    for key, value in entries[0].items():
        values = [entry.get(key) for entry in entries]
        if all(v == value for v in values):
            found[key] = value
        elif all(isinstance(v, Mapping) for v in values):
            found[key] = _shared(values)  # type: ignore[arg-type]
    return found


def spread_of(store: Store, cells: list[Cell], metric: str | None, *, pooled: bool) -> tuple[list[float], float]:
    """An arm's checkpoints' means over `cells`, and what a table multiplies them with; none without several."""
    arms = arms_of(store)
    if arms is None or not cells or len(arms.rows.get(cells[0].model, ())) < 2:
        return [], 100.0
    means = arms.means(cells, metric, pooled=pooled)
    scale = scale_of(*(arms.scores(cell, metric).ravel() for cell in cells))
    return [float(m) for m in means], scale
