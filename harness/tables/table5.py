"""The comparison in the style of the Gated Attention paper's Table 5: rows model x context, columns lengths, ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from harness.stats import Interval
from harness.store import Store
from harness.tables import caption as words
from harness.tables.aggregates import Aggregate, question_mean, ruler_tasks, task_mean
from harness.tables.frames import cells_frame, labels
from harness.tables.layout import Column, Entry, Table, length_title, mark_best
from harness.tables.pairs import Comparison, adjust, compare_cells
from harness.tables.reading import ALPHA, reading_lines
from harness.tables.reference import Reference, reference_frame, with_reference
from harness.types import Cell, GatedevalError

_LOWER = ("ppl", "perplexity", "bits_per_byte", "brier")


@dataclass(frozen=True)
class _Measure:
    """A column of scores: which cells it is computed from for one (model, context), and how."""

    column: Column
    cells: Callable[[str, str], list[Cell]]
    average: Callable[[list[Cell]], Aggregate]
    metric: str | None = None
    pooled: bool = False
    compared: bool = True
    length: int = 0  # RULER only


@dataclass
class _Row:
    model: str
    context: str
    values: list[Aggregate | None] = field(default_factory=list)  # None: the context does not reach


def is_extended(context: dict[str, Any]) -> bool:
    """Whether a context setting of the config stretches positions: yarn, linear or dynamic is set."""
    return any(context.get(key) is not None for key in ("yarn", "linear", "dynamic"))


def contexts_of(store: Store) -> dict[str, dict[str, Any]]:
    """label -> context setting as the config has it; a label that only the cells name is an empty setting."""
    known = {c["label"]: c for c in store.manifest.get("config", {}).get("contexts") or []}
    return {label: known.get(label, {}) for label in labels(store, "contexts")}


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
    models, contexts = labels(store, "models"), contexts_of(store)
    planned = {(cell.model, cell.context) for cell in store.cells}
    keys = [(m, c) for c in contexts for m in models if (m, c) in planned]
    baselines = _baselines(baseline, models, keys)
    measures = _measures(store, allow_partial, reference)
    rows = [_Row(m, c, [_value(store, measure, m, c, contexts[c]) for measure in measures]) for m, c in keys]
    compared, silent = _comparisons(store, measures, rows, baselines)
    entries = [_entries(row, rows, contexts, measures, compared) for row in rows]
    columns = [Column(title=title, numeric=False) for title in ("model", "context")] + [m.column for m in measures]
    entries = mark_best(entries, columns)
    if intervals:
        entries = [[_with_interval(e) for e in row] for row in entries]
    aggregates = [a for row in rows for a in row.values if a is not None]
    missing = [text for a in aggregates for text in a.missing]
    partial = [text for a in aggregates for text in a.partial]
    table = Table(
        style="table5",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=entries,
        breaks={i for i in range(1, len(rows)) if rows[i].context != rows[i - 1].context},
        make_frame=lambda: cells_frame(store),
        missing=words.missing_lines(missing, partial),
    )
    groups = [measure.column.group.split(" (")[0] for measure in measures]
    halves = [
        (group, (value.interval.high - value.interval.low) / 2 * 100)
        for row in rows
        for group, value in zip(groups, row.values, strict=True)
        if value is not None and not math.isnan(value.interval.low)
    ]
    tested = [(groups[i], comparison) for (_, _, i), comparison in compared.items()]
    clustered = [(b - a) / 2 for r in entries for e in r if e.clustered is not None for a, b in [e.clustered]]
    against = list(dict.fromkeys(baselines[context] for _, context, _ in compared))
    reading = reading_lines(table, halves, tested, silent, against, clustered)
    table.caption = [*words.scoring_lines(store), *reading, *words.setting_lines(store), *table.missing]
    if reference is not None:
        table = with_reference(table, reference, [m.length for m in measures])
        table.make_frame = lambda: reference_frame(cells_frame(store), reference)
    return table


def _baselines(given: str | None, models: list[str], keys: list[tuple[str, str]]) -> dict[str, str]:
    """context -> the model that the others are compared with there."""
    if given is not None and given not in models:
        raise GatedevalError(f"no model {given!r} in this run; it has {', '.join(map(repr, models))}")
    first: dict[str, str] = {}
    for model, context in keys:
        first.setdefault(context, given or model)
    return first


def _measures(store: Store, allow_partial: bool, reference: Reference | None) -> list[_Measure]:
    """The score columns: RULER by length, MMLU, GSM8k, then other lm-eval tasks in the plan's order."""
    (title, short), tasks = words.ruler_title(store), ruler_tasks(store)
    lengths = {c.length for c in store.cells if c.benchmark == "ruler"}
    lengths |= set(reference.lengths) if reference else set()

    def at(length: int) -> _Measure:
        return _Measure(
            Column(title=length_title(length), group=title, short=f"{short} {length_title(length)}"),
            lambda m, c: [Cell(m, c, "ruler", t, length) for t in tasks],
            lambda cells: task_mean(store, cells, allow_partial=allow_partial),
            length=length,
        )

    measures = [at(length) for length in sorted(lengths)]
    for benchmark in sorted(
        {c.benchmark for c in store.cells} - {"ruler"},
        key=lambda b: ({"mmlu": 0, "gsm8k": 1}.get(b, 2), _first(store, b)),
    ):
        measures += _other(store, benchmark, allow_partial)
    return measures


def _first(store: Store, benchmark: str) -> int:
    return next(i for i, c in enumerate(store.cells) if c.benchmark == benchmark)


def _other(store: Store, benchmark: str, allow_partial: bool) -> list[_Measure]:
    planned = list(dict.fromkeys((c.task, c.length) for c in store.cells if c.benchmark == benchmark))

    def cells(model: str, context: str) -> list[Cell]:
        return [Cell(model, context, benchmark, task, length) for task, length in planned]

    if benchmark == "mmlu":
        title, short = words.mmlu_title(store)
        return [
            _Measure(
                Column(title="questions", group=title, short=short),
                cells,
                lambda cs: question_mean(store, cs, allow_partial=allow_partial),
                pooled=True,
            ),
            _Measure(
                Column(title="by subject", group=title, short=f"{short} by subject"),
                cells,
                lambda cs: task_mean(store, cs, allow_partial=allow_partial),
                compared=False,
            ),
        ]
    names = list(dict.fromkeys(m for c in store.cells if c.benchmark == benchmark for m in store.scores(c).metrics))
    title = {"gsm8k": "GSM8k"}.get(benchmark, benchmark)
    return [
        _Measure(
            Column(title=metric_title(name), group=title, lower_is_better=any(w in name for w in _LOWER)),
            cells,
            lambda cs, n=name: question_mean(store, cs, n, allow_partial=allow_partial),  # type: ignore[misc]
            metric=name,
            pooled=True,
        )
        for name in names
    ] or [_Measure(Column(title="score", group=title), cells, lambda cs: question_mean(store, cs), pooled=True)]


def metric_title(name: str) -> str:
    """lm-eval's "metric,filter" in words: GSM8k's two modes by their names, a filter "none" left out."""
    metric, _, extraction = name.partition(",")
    known = {"strict-match": "strict", "flexible-extract": "flexible"}
    if extraction in known:
        return known[extraction]
    return metric if extraction in ("", "none") else f"{metric} ({extraction})"


def _value(store: Store, measure: _Measure, model: str, context: str, setting: dict[str, Any]) -> Aggregate | None:
    """The measure for one row; None where this context was never meant to have it."""
    cells = measure.cells(model, context)
    reach = setting.get("max_length")
    if measure.length and reach is not None and measure.length > reach:
        return None
    if not any(cell in store.cells for cell in cells):
        return None
    return measure.average(cells)


def _with_interval(entry: Entry) -> Entry:
    """The entry with its interval beside it."""
    if entry.interval is None:
        return entry
    return replace(entry, note=f"[{entry.interval[0]:.1f}, {entry.interval[1]:.1f}]")


def _points(interval: Interval | None) -> tuple[float, float] | None:
    """An interval on 0-100; None where it cannot be told."""
    return None if interval is None or math.isnan(interval.low) else (100 * interval.low, 100 * interval.high)


def _comparisons(
    store: Store, measures: list[_Measure], rows: list[_Row], baselines: dict[str, str]
) -> tuple[dict[tuple[str, str, int], Comparison], list[str]]:
    """Every other model against its context's baseline, column by column, Holm-adjusted over the table."""
    found: dict[tuple[str, str, int], Comparison] = {}
    silent: list[str] = []
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
                found[row.model, row.context, i] = compare_cells(store, pairs, measure.metric, pooled=measure.pooled)
            except GatedevalError as error:
                silent.append(str(error))
    adjust(list(found.values()))
    return found, silent


def _entries(
    row: _Row,
    rows: list[_Row],
    contexts: dict[str, dict[str, Any]],
    measures: list[_Measure],
    compared: dict[tuple[str, str, int], Comparison],
) -> list[Entry]:
    # a model need not be planned under every context: its own first one that does not stretch positions
    against = next((r for r in rows if r.model == row.model and not is_extended(contexts[r.context])), None)
    entries = [Entry(text=row.model), Entry(text=row.context)]
    for i, aggregate in enumerate(row.values):
        if aggregate is None or math.isnan(aggregate.value):
            entries.append(Entry())
            continue
        drop = None
        if against is not None and is_extended(contexts[row.context]):
            base = against.values[i]
            if base is not None and not math.isnan(base.value):
                drop = aggregate.value - base.value
        comparison = compared.get((row.model, row.context, i))
        marks = ""
        if comparison is not None and comparison.adjusted < ALPHA:
            marks = "▲" if comparison.difference > 0 else "▼"
        marks += "†" if aggregate.partial or aggregate.missing else ""
        entries.append(
            Entry(
                value=aggregate.value,
                drop=drop,
                marks=marks,
                interval=_points(aggregate.interval),
                clustered=_points(aggregate.clustered),
            )
        )
    return entries
