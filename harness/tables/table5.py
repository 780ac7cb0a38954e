"""The comparison in the style of the Gated Attention paper's Table 5.

Rows are model x context setting; columns are RULER by length, MMLU, GSM8k, then other lm-eval tasks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from harness.config import TableOptions
from harness.stats import Interval
from harness.store import Store
from harness.tables.aggregates import Aggregate
from harness.tables.arm_rows import (
    arm_cells_frame,
    arms_too,
    checkpoint_rows,
    headline_of_arms,
    row_labels,
    with_counts,
)
from harness.tables.caption import (
    Uncertainty,
    beside_lines,
    lines_beneath,
    missing_lines,
    perplexity_lines,
    reading_lines,
    scoring_lines,
)
from harness.tables.frames import cells_frame, check_label
from harness.tables.layout import Column, Entry, Table, mark_best
from harness.tables.measures import Measure, measures_of
from harness.tables.paired import Comparison
from harness.tables.reference import Reference, reference_frame, with_reference
from harness.tables.rows import Compared, Row, baselines_of, compare_rows, contexts_of, is_extended, key_of, rows_of
from harness.tables.sampled import rounds_lines
from harness.tables.view import chosen, chosen_rows, shown, transposed, viewed
from harness.text import counted


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
    context. `baseline`: the model that significance marks are against; by default, in each context, the one that
    run.json declares. `intervals`: every score's 95% interval instead of the change. Rows, columns and words are the
    run's own choices (`harness.tables.view`); they change no number and no mark.
    """
    store, view = viewed(store)
    check_label(store, "models", baseline)
    contexts = contexts_of(store)
    measures = measures_of(store, allow_partial, reference)
    rows = rows_of(store, contexts, measures)
    baselines = baselines_of(store, baseline, [(row.model, row.context) for row in rows])
    compared, untested = compare_rows(store, measures, rows, baselines)
    own = checkpoint_rows(store, measures, allow_partial, reference, view)
    entries = _entries(rows, contexts, compared, view.digits) + _entries(own, contexts, {}, view.digits)
    rows = [*rows, *own]

    # Everything above is computed from the whole run. What is shown of it is chosen here.
    kept = _chosen_measures(measures, view)
    models = chosen(row_labels(store, view), view.models)
    keys = [(m, c) for c in chosen(list(contexts), view.contexts) for m in models]
    order = [r for key in keys for r, row in enumerate(rows) if key_of(row) == key]
    rows = [replace(rows[r], values=[rows[r].values[i] for i in kept]) for r in order]
    entries = [[*entries[r][:2], *(entries[r][2 + i] for i in kept)] for r in order]
    measures = [measures[i] for i in kept]
    tested = {(m, c, kept.index(i)): x for (m, c, i), x in compared.items() if (m, c) in keys and i in kept}

    single = {row.model for row in own}
    table = _table(store, measures, rows, entries, single)
    if intervals:
        table.rows = [[_with_interval(e) for e in row] for row in table.rows]
    labelled, rows = rows, [row for row in rows if row.model not in single] or rows
    uncertainty = _uncertainty(measures, rows, tested)
    uncertainty.untested, uncertainty.family = untested, len(compared)
    uncertainty.baselines = list(dict.fromkeys(baselines[context] for _, context, _ in tested))
    cells = [cell for cell in store.cells if shown(arms_too(view), cell)]
    table.headline = headline_of_arms(store, _headline(table, rows), [row.model for row in rows])
    table.label = view.label
    beside = beside_lines((m.benchmark, m.metric) for m in measures)
    beside += perplexity_lines([(m.benchmark, m.metric) for m in measures])
    table.caption = lines_beneath(
        store,
        view,
        cells,
        full=[*scoring_lines(store, cells), *beside, *rounds_lines(store, cells), *reading_lines(table, uncertainty)],
        short=reading_lines(table, uncertainty, short=True),
        missing=table.missing,
    )
    table.make_frame = lambda: chosen_rows(view, arm_cells_frame(store, view))
    if reference is not None:
        keyed = [None if m.length is None else (m.benchmark, m.length) for m in measures]
        table = with_reference(table, reference, keyed, view.digits)
        table.make_frame = lambda: reference_frame(chosen_rows(view, arm_cells_frame(store, view)), reference)
    table = with_counts(table, store, labelled)
    return transposed(table) if view.transpose else table


def _chosen_measures(measures: list[Measure], view: TableOptions) -> list[int]:
    """Numbers of the columns that the view shows, in its order of benchmarks."""
    kept = [
        i
        for i, m in enumerate(measures)
        if (view.benchmarks is None or m.benchmark in view.benchmarks)
        and (view.lengths is None or not m.length or m.length in view.lengths)
    ]
    if view.benchmarks is None:
        return kept
    return sorted(kept, key=lambda i: view.benchmarks.index(measures[i].benchmark) if view.benchmarks else 0)


def _headline(table: Table, rows: list[Row]) -> str:
    """ "Scores of 2 models under 2 context settings on RULER, MMLU and GSM8k."."""
    titles = list(dict.fromkeys(c.group or c.title for c in table.columns if c.numeric))
    on = ", ".join(titles[:-1]) + (" and " if titles[:-1] else "") + "".join(titles[-1:])
    models, contexts = ({key_of(row)[i] for row in rows} for i in (0, 1))
    return (
        f"Scores of {counted(len(models), 'model')} under {counted(len(contexts), 'context setting')}"
        + (f" on {on}" if on else "")
        + "."
    )


# ------------------------------------------------------------------------------------------------- entries


def _uncertainty(measures: list[Measure], rows: list[Row], compared: Compared) -> Uncertainty:
    """Interval widths and tests, for the caption."""
    groups = [measure.column.group.split(" (")[0] for measure in measures]
    found = Uncertainty()
    found.tested = [(groups[i], comparison) for (_, _, i), comparison in compared.items()]
    for row in rows:
        for group, measure, value in zip(groups, measures, row.values, strict=True):
            if value is not None and not math.isnan(value.interval.low):
                found.halves.append((group, (value.interval.high - value.interval.low) / 2 * 100))
            if value is not None and (clustered := _points(value.clustered)) is not None:
                found.clustered.setdefault(measure.benchmark, []).append((clustered[1] - clustered[0]) / 2)
    return found


def _table(
    store: Store, measures: list[Measure], rows: list[Row], entries: list[list[Entry]], single: set[str]
) -> Table:
    """The table without its caption; the best score of every column is marked, among rows that are not `single`."""
    columns = [Column(title=title, numeric=False) for title in ("model", "context")] + [m.column for m in measures]
    aggregates = [a for row in rows for a in row.values if a is not None]
    return Table(
        style="table5",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=mark_best(entries, columns, [(row.context, row.model if row.model in single else "") for row in rows]),
        breaks={i for i in range(1, len(rows)) if rows[i].context != rows[i - 1].context},
        make_frame=lambda: cells_frame(store),
        missing=missing_lines(
            (text for a in aggregates for text in a.missing), (text for a in aggregates for text in a.partial)
        ),
    )


def _entries(
    rows: list[Row], contexts: dict[str, dict[str, Any]], compared: Compared, digits: int
) -> list[list[Entry]]:
    """Labels and scores of every row, with the change against the model's own first un-extended context."""
    entries = []
    for row in rows:
        base: Row | None = None
        if is_extended(contexts[row.context]):  # a model need not be planned under every context
            base = next((r for r in rows if r.model == row.model and not is_extended(contexts[r.context])), None)
        scores = [
            _entry(value, None if base is None else base.values[i], compared.get((row.model, row.context, i)), digits)
            for i, value in enumerate(row.values)
        ]
        entries.append([Entry(text=row.model), Entry(text=row.context), *scores])
    return entries


def _entry(value: Aggregate | None, base: Aggregate | None, comparison: Comparison | None, digits: int) -> Entry:
    if value is None or math.isnan(value.value):
        return Entry()
    marks = "" if comparison is None else comparison.mark
    entry = Entry(
        value=value.value,
        drop=None if base is None or math.isnan(base.value) else value.value - base.value,
        marks=marks + ("†" if value.partial or value.missing else ""),
        interval=_points(value.interval),
        clustered=_points(value.clustered),
        checkpoints=tuple(value.checkpoints),
        decimals=digits,
    )
    if not value.in_rounds:
        return entry
    half = "" if entry.interval is None else f"±{(entry.interval[1] - entry.interval[0]) / 2:.1f}, "
    note = f"{entry.change} [{half}{value.samples:,}]".strip()  # the spread of an arm has a place of its own
    return replace(entry, samples=value.samples, note=note)


def _with_interval(entry: Entry) -> Entry:
    """The entry with its interval beside it."""
    if entry.interval is None:
        return entry
    count = "" if entry.samples is None else f"; {entry.samples:,}"
    return replace(entry, note=f"[{entry.interval[0]:.1f}, {entry.interval[1]:.1f}{count}]")


def _points(interval: Interval | None) -> tuple[float, float] | None:
    """An interval on 0-100; None where there is none."""
    return None if interval is None or math.isnan(interval.low) else (100 * interval.low, 100 * interval.high)
