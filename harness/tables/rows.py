"""The rows of Table 5 with their numbers, and the comparisons between them: the run's declared family of tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from harness.config import SCALINGS
from harness.store import Store
from harness.tables.aggregates import Aggregate
from harness.tables.frames import labels
from harness.tables.measures import Measure, measures_of
from harness.tables.paired import Comparison, adjust
from harness.tables.recipe import compare_pairs, with_checkpoints
from harness.types import GatedevalError


@dataclass
class Row:
    model: str
    context: str
    values: list[Aggregate | None] = field(default_factory=list)  # per measure; None: the context does not reach


Compared = dict[tuple[str, str, int], Comparison]  # (model, context, number of the measure)
_DECLARED: WeakKeyDictionary[Store, dict[str | None, list[tuple[Comparison, str | None]]]] = WeakKeyDictionary()


# ------------------------------------------------------------------------------------------------- rows and columns


def contexts_of(store: Store) -> dict[str, dict[str, Any]]:
    """label -> context setting as the config has it; a label that only the cells name is an empty setting."""
    known = {c["label"]: c for c in store.manifest.get("config", {}).get("contexts") or []}
    return {label: known.get(label, {}) for label in labels(store, "contexts")}


def is_extended(context: dict[str, Any]) -> bool:
    """Whether a context setting of the config stretches positions: one of the scalings is set."""
    return any(context.get(key) is not None for key in SCALINGS)


def _value(store: Store, measure: Measure, model: str, context: str, setting: dict[str, Any]) -> Aggregate | None:
    """The measure for one row; None where the plan does not have it under this context."""
    cells = measure.cells(model, context)
    limit = setting.get("max_length")
    if measure.length and limit is not None and measure.length > limit:
        return None
    if not any(cell in store.cells for cell in cells):
        return None
    return with_checkpoints(store, measure.average(cells), measure.metric, pooled=measure.pooled)


# ------------------------------------------------------------------------------------------------- comparisons


def declared_comparisons(store: Store, baseline: str | None = None) -> list[tuple[Comparison, str | None]]:
    """The run's declared family: every comparison of its table, adjusted, with its metric (None: the headline).

    Computed once for each `store` and baseline: a report asks for it with every pair of models.
    """
    known = _DECLARED.setdefault(store, {})
    if baseline not in known:
        known[baseline] = _declared(store, baseline)
    return known[baseline]


def _declared(store: Store, baseline: str | None) -> list[tuple[Comparison, str | None]]:
    measures = measures_of(store, False, None)
    rows = rows_of(store, contexts_of(store), measures)
    compared, _ = compare_rows(store, measures, rows, baselines_of(store, baseline, [key_of(row) for row in rows]))
    return [(comparison, measures[i].metric) for (_, _, i), comparison in compared.items()]


def rows_of(store: Store, contexts: dict[str, dict[str, Any]], measures: list[Measure]) -> list[Row]:
    """Every planned (model, context) with its values, in the config's order."""
    planned = {(cell.model, cell.context) for cell in store.cells}
    keys = [(m, c) for c in contexts for m in labels(store, "models") if (m, c) in planned]
    return [Row(m, c, [_value(store, measure, m, c, contexts[c]) for measure in measures]) for m, c in keys]


def key_of(row: Row) -> tuple[str, str]:
    return row.model, row.context


def baselines_of(store: Store, given: str | None, keys: list[tuple[str, str]]) -> dict[str, str]:
    """context -> the model that the others are compared with there.

    `given`, where it is planned under the context; else the one that run.json declares; else the first that is planned.
    """
    declared = (store.manifest.get("comparisons") or {}).get("baselines") or {}
    found: dict[str, str] = {}
    for context in dict.fromkeys(context for _, context in keys):
        models = [m for m, c in keys if c == context]
        found[context] = next(m for m in (given, declared.get(context), *models) if m in models)
    return found


def compare_rows(
    store: Store, measures: list[Measure], rows: list[Row], baselines: dict[str, str]
) -> tuple[Compared, list[str]]:
    """Every other model against its context's baseline, column by column, Holm-adjusted over the table.

    A number from a part of its tasks is not compared, so the family is the same whether such numbers are shown or not.
    Returns the comparisons, and the reasons why some could not be made.
    """
    compared: Compared = {}
    untested: list[str] = []
    by_key = {(row.model, row.context): row for row in rows}
    for row in rows:
        other = by_key.get((baselines[row.context], row.context))
        if other is None or other is row:
            continue
        for i, measure in enumerate(measures):
            a, b = other.values[i], row.values[i]
            if not measure.compared or a is None or b is None or math.isnan(a.value) or math.isnan(b.value):
                continue
            if a.missing or b.missing:
                continue
            both = zip(measure.cells(other.model, row.context), measure.cells(row.model, row.context), strict=True)
            pairs = [(x, y) for x, y in both if x in a.cells and y in b.cells]
            try:
                comparison = compare_pairs(store, pairs, measure.metric, pooled=measure.pooled)
                compared[row.model, row.context, i] = comparison
            except GatedevalError as error:
                untested.append(str(error))
    adjust(list(compared.values()))
    return compared, untested
