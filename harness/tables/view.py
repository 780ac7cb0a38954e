"""Rows, columns and words of a table: what of a run is shown, in which order, and by which names.

The choices are `harness.config.TableOptions`: the section `table` of the run's config, unless a caller gives others.
They choose among numbers that are computed from the whole run, so they change no average and no family of comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from harness.config import TableOptions
from harness.config.table import named_twice
from harness.store import Store
from harness.store.rounds import Rounds
from harness.store.scores import CellScores
from harness.tables.aggregates import benchmarks_of
from harness.tables.arms import by_arm, checkpoint_view, hand_down, members
from harness.tables.arms_view import arm_hint, check_arms, row_names
from harness.tables.frames import labels
from harness.tables.layout import Column, Entry, Table
from harness.types import Cell, GatedevalError, Sample, did_you_mean

T = TypeVar("T")


# ------------------------------------------------------------------------------------------------- what is chosen


def viewed(store: Store, **given: Any) -> tuple[Store, TableOptions]:
    """The run under its chosen names, and the choices: its own, replaced by those `given` that are not None.

    The returned run stores these choices as its own, so what is computed from it agrees with them. Raises
    GatedevalError for a name or length that the run does not have, and where two models, or two contexts, would have
    one name.
    """
    stored = store.manifest.get("config", {}).get("table") or {}
    options = {name: value for name, value in stored.items() if name in TableOptions.model_fields}
    options |= {name: value for name, value in given.items() if value is not None}
    reading = check_arms(store, options, given)
    there = {
        "models": row_names(store, reading),
        "contexts": labels(store, "contexts"),
        "benchmarks": benchmarks_of(store),
    }
    for what, known in there.items():
        if options.get(what) is not None:
            options[what] = _split(options[what], known)
            for name in options[what]:
                if name not in known:
                    hidden = what == "models" and arm_hint(store, name, reading)
                    raise GatedevalError(hidden or _unknown(what.removesuffix("s"), name, known))
    view = TableOptions(**options)
    probed = [probe["length"] for probe in store.manifest.get("probes") or []]
    lengths = sorted({*(cell.length for cell in store.cells if cell.length), *probed})
    for length in view.lengths or ():
        if length not in lengths:
            raise GatedevalError(_unknown("length", length, lengths))
    renamed: Store = _Renamed(store, view)
    if reading.arms != "off":
        renamed = by_arm(renamed, reading.steps, reading.infer)
    shown_view = _renamed_view(view)
    if store.cells and not any(shown(shown_view, cell) for cell in (*renamed.cells, *_expanded(renamed, reading))):
        raise GatedevalError(
            "no number is left: the chosen models, contexts, benchmarks and lengths are not planned together"
        )
    return renamed, shown_view


def _expanded(store: Store, reading: TableOptions) -> Sequence[Cell]:
    """The checkpoints' cells, where tables show rows of their own for them."""
    return checkpoint_view(store, store.cells)[1] if reading.arms == "expanded" else ()


def new_names(store: Store, rename: Mapping[str, str] | None = None) -> dict[str, str]:
    """label -> what is printed in its place: `rename`, else the run's own choice."""
    stored = (store.manifest.get("config", {}).get("table") or {}).get("rename")
    return dict(rename if rename is not None else stored or {})


def _split(names: Sequence[str] | str, known: Sequence[str]) -> tuple[str, ...]:
    """Names, and texts of several names with commas between them; a known name may have a comma in it."""
    texts = (names,) if isinstance(names, str) else names
    parts = [[text] if text in known else [part.strip() for part in text.split(",")] for text in texts]
    return tuple(name for part in parts for name in part if name)


def _unknown(what: str, name: object, known: Sequence[object]) -> str:
    hint = did_you_mean(str(name), [str(k) for k in known])
    return f"no {what} {name!r} in this run{hint or '; it has ' + (', '.join(map(repr, known)) or 'none')}"


def shown(view: TableOptions, cell: Cell) -> bool:
    """Whether the cell is among the chosen ones; a cell without a length is never left out by its length."""
    return (
        (view.models is None or cell.model in view.models)
        and (view.contexts is None or cell.context in view.contexts)
        and (view.benchmarks is None or cell.benchmark in view.benchmarks)
        and (view.lengths is None or not cell.length or cell.length in view.lengths)
    )


def chosen(names: Sequence[T], given: Sequence[T] | None) -> list[T]:
    """`names`, or those of `given` that are among them, in the order of `given`."""
    return list(names) if given is None else [name for name in given if name in names]


def chosen_rows(view: TableOptions, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a frame with the columns of a cell that are among the chosen ones."""
    names = [f.name for f in fields(Cell)]
    if frame.empty or all(getattr(view, what) is None for what in ("models", "contexts", "benchmarks", "lengths")):
        return frame
    keep = [shown(view, Cell(*values)) for values in frame[names].itertuples(index=False)]
    return frame[keep].reset_index(drop=True)


def in_order(view: TableOptions, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a frame in the order in which the view names contexts, benchmarks and models."""
    for what in ("models", "benchmarks", "contexts"):  # the last sorts above the others: sorting is stable
        if (given := getattr(view, what)) is not None:
            frame = frame.sort_values(what.removesuffix("s"), key=lambda c: c.map(given.index), kind="stable")
    return frame.reset_index(drop=True)


# ------------------------------------------------------------------------------------------------- other names


class _Renamed(Store):
    """A run read under other labels. Only what tables and exports read is renamed; it cannot be written."""

    def __init__(self, store: Store, view: TableOptions) -> None:
        names = dict(view.rename)
        models = labels(store, "models")
        rows = list(dict.fromkeys([*models, *(c.row for c in members(store))]))  # arms may stand above checkpoints
        known = {"models": models, "rows": rows, "contexts": labels(store, "contexts")}
        every = list(dict.fromkeys([*rows, *known["contexts"]]))
        for old in names:
            if old not in every:
                raise GatedevalError(_unknown("model or context", old, every))
        for what, labelled in known.items():
            if twice := named_twice(labelled, names):
                raise GatedevalError(f"rename: two {what} would be called {twice!r}; choose another name")
        new = {cell: _renamed_cell(cell, names) for cell in store.cells}
        manifest = _renamed_manifest(store.manifest, names)
        manifest["config"]["table"] = _renamed_view(view).model_dump(mode="json")
        keys = {old.key: cell.key for old, cell in new.items()}
        manifest["failures"] = {keys.get(key, key): error for key, error in store.failures.items()}
        super().__init__(store.path, manifest, {new[cell]: planned for cell, planned in store.cells.items()}, None)
        hand_down(store, self)
        self._store = store
        self._old = {cell: old for old, cell in new.items()}

    def samples_path(self, cell: Cell) -> Path:
        return self._store.samples_path(self._old.get(cell, cell))

    def samples(self, cell: Cell) -> Iterator[Sample]:
        return self._store.samples(self._old.get(cell, cell))

    def scores(self, cell: Cell) -> CellScores:
        return self._store.scores(self._old.get(cell, cell))

    def planned(self, cell: Cell) -> int | None:
        return self._store.planned(self._old.get(cell, cell))

    def done(self, cell: Cell) -> dict[str, str]:
        return self._store.done(self._old.get(cell, cell))

    def rounds(self, cell: Cell) -> Rounds | None:
        """Those of the manifest, which are renamed; an arm's are those of its checkpoints."""
        found = super().rounds(cell)
        return self._store.rounds(self._old.get(cell, cell)) if found is None else found


def _renamed_view(view: TableOptions) -> TableOptions:
    """The choices in the new names; nothing is left to rename."""
    names = dict(view.rename)
    change: dict[str, Any] = {
        key: tuple(names.get(label, label) for label in given)
        for key in ("models", "contexts")
        if (given := getattr(view, key)) is not None
    }
    return view.model_copy(update={**change, "rename": ()})


def _renamed_cell(cell: Cell, names: Mapping[str, str]) -> Cell:
    return replace(cell, model=names.get(cell.model, cell.model), context=names.get(cell.context, cell.context))


def _renamed_manifest(manifest: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The manifest with other labels wherever tables read one."""

    def name(label: str) -> str:
        return names.get(label, label)

    def entries(key: str) -> list[dict[str, Any]]:
        renamed = [{**entry, "label": name(entry["label"])} for entry in config.get(key) or []]
        return [{**entry, "arm": name(entry["arm"])} if entry.get("arm") else entry for entry in renamed]

    config = dict(manifest.get("config") or {})
    config |= {"models": entries("models"), "contexts": entries("contexts")}
    models = {
        name(label): {**facts, "max_lengths": {name(c): n for c, n in (facts.get("max_lengths") or {}).items()}}
        for label, facts in (manifest.get("models") or {}).items()
    }
    declared = dict(manifest.get("comparisons") or {})
    if declared.get("baselines"):
        declared["baselines"] = {name(context): name(model) for context, model in declared["baselines"].items()}
    found = {**manifest, "config": config, "models": models, "comparisons": declared}
    if (probes := manifest.get("probes")) is not None:
        found["probes"] = [{**p, "model": name(p["model"]), "context": name(p["context"])} for p in probes]
    found["rounds"] = [
        {**entry, "models": [name(model) for model in entry["models"]], "context": name(entry["context"])}
        for entry in manifest.get("rounds") or []
    ]
    return found


# ------------------------------------------------------------------------------------------------- the other way round


def transposed(table: Table) -> Table:
    """The table with its score columns as rows and its rows as columns, one header group per context."""
    texts = [c for c, column in enumerate(table.columns) if not column.numeric]
    scores = [c for c, column in enumerate(table.columns) if column.numeric]
    model, context = texts[0], texts[1]
    columns = [Column(title="benchmark", numeric=False)]
    columns += [
        Column(
            title=row[model].number,
            group=row[context].number,
            short=f"{row[model].number}, {row[context].number}",
        )
        for row in table.rows
    ]
    groups = [table.columns[c].group for c in scores]
    counts = [[Entry(text=table.columns[c].title), *(row[c] for row in table.rows)] for c in texts[2:]]
    return replace(
        table,
        columns=columns,
        rows=counts + [[Entry(text=table.columns[c].name), *(row[c] for row in table.rows)] for c in scores],
        breaks={len(counts) + i for i in range(1, len(scores)) if groups[i] != groups[i - 1]},
    )
