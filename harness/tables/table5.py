"""The comparison in the style of the Gated Attention paper's Table 5.

Rows are model x context setting; columns are RULER by length, MMLU, GSM8k, then other lm-eval tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from harness.stats import Interval
from harness.store import Store
from harness.tables.aggregates import Aggregate
from harness.tables.caption import Uncertainty, missing_lines, reading_lines, scoring_lines, setting_lines
from harness.tables.frames import cells_frame, check_label, labels
from harness.tables.layout import Column, Entry, Table, mark_best
from harness.tables.measures import Measure, measures_of
from harness.tables.paired import Comparison, adjust, compare_cells
from harness.tables.reference import Reference, reference_frame, with_reference
from harness.types import GatedevalError


@dataclass
class _Row:
    model: str
    context: str
    values: list[Aggregate | None] = field(default_factory=list)  # per measure; None: the context does not reach


_Compared = dict[tuple[str, str, int], Comparison]  # (model, context, number of the measure)


def table5(
    store: Store,
    *,
    allow_partial: bool = False,
    baseline: str | None = None,
    reference: Reference | None = None,
    intervals: bool = False,
) -> Table:
    """A run as the paper's Table 5.

    A RULER column is the mean of the run's tasks with equal weight; a task without a score blocks it unless
    `allow_partial`. In parentheses, for an extended context: the change against the same model's first un-extended
    context. `baseline`: the model that significance marks are against; by default, in each context, the config's first
    model that is planned there. `intervals`: every score's 95% interval instead of the change.
    """
    check_label(store, "models", baseline)
    contexts = contexts_of(store)
    keys = _planned_rows(store, contexts)
    measures = measures_of(store, allow_partial, reference)
    rows = [_Row(m, c, [_value(store, measure, m, c, contexts[c]) for measure in measures]) for m, c in keys]
    baselines = _baselines(store, baseline, keys)
    compared, untested = _comparisons(store, measures, rows, baselines)
    table = _table(store, measures, rows, _entries(rows, contexts, compared))
    if intervals:
        table.rows = [[_with_interval(e) for e in row] for row in table.rows]
    against = list(dict.fromkeys(baselines[context] for _, context, _ in compared))
    reading = reading_lines(table, _uncertainty(measures, rows, compared, untested, against))
    table.caption = [*scoring_lines(store), *reading, *setting_lines(store), *table.missing]
    if reference is not None:
        keyed = [None if m.length is None else (m.benchmark, m.length) for m in measures]
        table = with_reference(table, reference, keyed)
        table.make_frame = lambda: reference_frame(cells_frame(store), reference)
    return table


# ------------------------------------------------------------------------------------------------- rows and columns


def contexts_of(store: Store) -> dict[str, dict[str, Any]]:
    """label -> context setting as the config has it; a label that only the cells name is an empty setting."""
    known = {c["label"]: c for c in store.manifest.get("config", {}).get("contexts") or []}
    return {label: known.get(label, {}) for label in labels(store, "contexts")}


def is_extended(context: dict[str, Any]) -> bool:
    """Whether a context setting of the config stretches positions: yarn, linear or dynamic is set."""
    return any(context.get(key) is not None for key in ("yarn", "linear", "dynamic"))


def _value(store: Store, measure: Measure, model: str, context: str, setting: dict[str, Any]) -> Aggregate | None:
    """The measure for one row; None where the plan does not have it under this context."""
    cells = measure.cells(model, context)
    limit = setting.get("max_length")
    if measure.length and limit is not None and measure.length > limit:
        return None
    if not any(cell in store.cells for cell in cells):
        return None
    return measure.average(cells)


# ------------------------------------------------------------------------------------------------- comparisons


def declared_comparisons(store: Store, baseline: str | None = None) -> list[tuple[Comparison, str | None]]:
    """The run's declared family: every comparison of its table, adjusted, with its metric (None: the headline)."""
    contexts = contexts_of(store)
    keys = _planned_rows(store, contexts)
    measures = measures_of(store, True, None)
    rows = [_Row(m, c, [_value(store, measure, m, c, contexts[c]) for measure in measures]) for m, c in keys]
    compared, _ = _comparisons(store, measures, rows, _baselines(store, baseline, keys))
    return [(comparison, measures[i].metric) for (_, _, i), comparison in compared.items()]


def _planned_rows(store: Store, contexts: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """(model, context) of every row, in the config's order."""
    planned = {(cell.model, cell.context) for cell in store.cells}
    return [(m, c) for c in contexts for m in labels(store, "models") if (m, c) in planned]


def _baselines(store: Store, given: str | None, keys: list[tuple[str, str]]) -> dict[str, str]:
    """context -> the model that the others are compared with there.

    `given`, where it is planned under the context; else the one that run.json declares; else the first that is planned.
    """
    declared = (store.manifest.get("comparisons") or {}).get("baselines") or {}
    found: dict[str, str] = {}
    for context in dict.fromkeys(context for _, context in keys):
        models = [m for m, c in keys if c == context]
        found[context] = next(m for m in (given, declared.get(context), *models) if m in models)
    return found


def _comparisons(
    store: Store, measures: list[Measure], rows: list[_Row], baselines: dict[str, str]
) -> tuple[_Compared, list[str]]:
    """Every other model against its context's baseline, column by column, Holm-adjusted over the table.

    Returns the comparisons, and the reasons why some could not be made.
    """
    compared: _Compared = {}
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
            both = zip(measure.cells(other.model, row.context), measure.cells(row.model, row.context), strict=True)
            pairs = [(x, y) for x, y in both if x in a.cells and y in b.cells]
            try:
                comparison = compare_cells(store, pairs, measure.metric, pooled=measure.pooled)
                compared[row.model, row.context, i] = comparison
            except GatedevalError as error:
                untested.append(str(error))
    adjust(list(compared.values()))
    return compared, untested


def _uncertainty(
    measures: list[Measure], rows: list[_Row], compared: _Compared, untested: list[str], baselines: list[str]
) -> Uncertainty:
    """Interval widths and tests, for the caption."""
    groups = [measure.column.group.split(" (")[0] for measure in measures]
    found = Uncertainty(untested=untested, baselines=baselines)
    found.tested = [(groups[i], comparison) for (_, _, i), comparison in compared.items()]
    for row in rows:
        for group, measure, value in zip(groups, measures, row.values, strict=True):
            if value is not None and not math.isnan(value.interval.low):
                found.halves.append((group, (value.interval.high - value.interval.low) / 2 * 100))
            if value is not None and (clustered := _points(value.clustered)) is not None:
                found.clustered.setdefault(measure.benchmark, []).append((clustered[1] - clustered[0]) / 2)
    return found


# ------------------------------------------------------------------------------------------------- entries


def _table(store: Store, measures: list[Measure], rows: list[_Row], entries: list[list[Entry]]) -> Table:
    """The table without its caption; the best score of every column is marked."""
    columns = [Column(title=title, numeric=False) for title in ("model", "context")] + [m.column for m in measures]
    aggregates = [a for row in rows for a in row.values if a is not None]
    return Table(
        style="table5",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=mark_best(entries, columns, [row.context for row in rows]),
        breaks={i for i in range(1, len(rows)) if rows[i].context != rows[i - 1].context},
        make_frame=lambda: cells_frame(store),
        missing=missing_lines(
            (text for a in aggregates for text in a.missing), (text for a in aggregates for text in a.partial)
        ),
    )


def _entries(rows: list[_Row], contexts: dict[str, dict[str, Any]], compared: _Compared) -> list[list[Entry]]:
    """Labels and scores of every row, with the change against the model's own first un-extended context."""
    entries = []
    for row in rows:
        base: _Row | None = None
        if is_extended(contexts[row.context]):  # a model need not be planned under every context
            base = next((r for r in rows if r.model == row.model and not is_extended(contexts[r.context])), None)
        scores = [
            _entry(value, None if base is None else base.values[i], compared.get((row.model, row.context, i)))
            for i, value in enumerate(row.values)
        ]
        entries.append([Entry(text=row.model), Entry(text=row.context), *scores])
    return entries


def _entry(value: Aggregate | None, base: Aggregate | None, comparison: Comparison | None) -> Entry:
    if value is None or math.isnan(value.value):
        return Entry()
    marks = "" if comparison is None else comparison.mark
    return Entry(
        value=value.value,
        drop=None if base is None or math.isnan(base.value) else value.value - base.value,
        marks=marks + ("†" if value.partial or value.missing else ""),
        interval=_points(value.interval),
        clustered=_points(value.clustered),
    )


def _with_interval(entry: Entry) -> Entry:
    """The entry with its interval beside it."""
    if entry.interval is None:
        return entry
    return replace(entry, note=f"[{entry.interval[0]:.1f}, {entry.interval[1]:.1f}]")


def _points(interval: Interval | None) -> tuple[float, float] | None:
    """An interval on 0-100; None where there is none."""
    return None if interval is None or math.isnan(interval.low) else (100 * interval.low, 100 * interval.high)
