"""An arm's rows in Table 5: the number of its checkpoints, and where asked for a row for each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from harness.config import TableOptions
from harness.config.arms import Checkpoint
from harness.store import Store
from harness.tables.arms import arms_of, members
from harness.tables.frames import cells_frame, labels
from harness.tables.layout import Column, Entry, Table
from harness.tables.measures import Measure, measures_of
from harness.tables.reference import Reference
from harness.tables.rows import Row, contexts_of, key_of, rows_of
from harness.text import counted

TITLE = "checkpoints"  # of the column; a row of one checkpoint says there whose it is


def row_labels(store: Store, view: TableOptions) -> list[str]:
    """Rows in the order of the config, every arm before its checkpoints where they have rows of their own."""
    arms = arms_of(store)
    models = labels(store, "models")
    if arms is None or view.arms != "expanded":
        return models
    return [label for row in models for label in dict.fromkeys([row, *arms.rows.get(row, ())])]


def checkpoint_rows(
    store: Store, measures: Sequence[Measure], allow_partial: bool, reference: Reference | None, view: TableOptions
) -> list[Row]:
    """A row for every checkpoint of an arm, its values in the order of `measures`; none unless they are asked for."""
    arms = arms_of(store)
    if arms is None or view.arms != "expanded":
        return []
    own = measures_of(arms.checkpoints, allow_partial, reference)
    places = {_key(measure): i for i, measure in enumerate(own)}
    shown = {label for row, labels in arms.rows.items() for label in labels if label != row}
    rows = [r for r in rows_of(arms.checkpoints, contexts_of(arms.checkpoints), own) if r.model in shown]
    return [replace(r, values=[r.values[places[_key(m)]] for m in measures]) for r in rows]


def arms_too(view: TableOptions) -> TableOptions:
    """The view by which a caption's cells are chosen: an arm's cells, also where its checkpoints alone are shown."""
    return view.model_copy(update={"models": None}) if view.arms == "expanded" else view


def headline_of_arms(store: Store, headline: str, models: Sequence[str]) -> str:
    """The headline of a table, where rows are arms: "2 arms of 5 checkpoints" in place of "2 models"."""
    arms = arms_of(store)
    if arms is None:
        return headline
    rows = list(dict.fromkeys(models))
    checkpoints = counted(sum(len(arms.rows.get(row, (row,))) for row in rows), "checkpoint")
    models_of = counted(len(rows), "model")
    return headline.replace(f"of {models_of} ", f"of {counted(len(rows), 'arm')} ({checkpoints}) ", 1)


def arm_cells_frame(store: Store, view: TableOptions) -> pd.DataFrame:
    """`cells_frame`; with the rows of an arm's checkpoints after those of the arm, where tables show them too."""
    frame, arms = cells_frame(store), arms_of(store)
    if arms is None or view.arms != "expanded":
        return frame
    below = {label for row, labels in arms.rows.items() for label in labels if label != row}
    own = cells_frame(arms.checkpoints)
    own = own[own["model"].isin(below)].assign(checkpoints=pd.array([pd.NA], dtype="Int64")[0], sd=math.nan)
    both = pd.concat([frame, own.astype({"checkpoints": "Int64"})], ignore_index=True)
    for name, order in (("model", row_labels(store, view)), ("context", labels(store, "contexts"))):
        places = {label: place for place, label in enumerate(order)}
        both = both.iloc[both[name].map(places).argsort(kind="stable")]
    return both.reset_index(drop=True)


def _key(measure: Measure) -> tuple[str, str]:
    return measure.benchmark, measure.column.name


def with_counts(table: Table, store: Store, rows: Sequence[Row]) -> Table:
    """The table with a column after the labels: how many checkpoints a row has, or whose checkpoint it is.

    `rows`: those that the table begins with. A table without arms stays as it is.
    """
    arms = arms_of(store)
    if arms is None or all(labels == (row,) for row, labels in arms.rows.items()):
        return table
    known = {c.label: c for c in members(arms.checkpoints)}
    texts = [_count(known, arms.rows, key_of(row)[0]) for row in rows]
    texts += [""] * (len(table.rows) - len(texts))
    columns = [*table.columns[:2], Column(title=TITLE, numeric=False), *table.columns[2:]]
    filled = [[*row[:2], Entry(text=text), *row[2:]] for row, text in zip(table.rows, texts, strict=True)]
    return replace(table, columns=columns, rows=filled)


def _count(known: dict[str, Checkpoint], rows: dict[str, tuple[str, ...]], label: str) -> str:
    """ "3", or "3 at step 2000"; of a single checkpoint "of gate"."""
    if label not in rows:
        own = known[label]
        return f"of {own.row}" + ("" if own.step is None else f", step {own.step}")
    steps = {known[c].step for c in rows[label] if c in known}
    step = next(iter(steps)) if len(steps) == 1 else None
    return f"{len(rows[label])}" + ("" if step is None else f" at step {step}")
