"""The score columns of Table 5: which cells each is computed from, and how they become one number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.benchmarks.presentation import Presentation, lower_is_better, presentation_of
from harness.store import Store
from harness.tables.aggregates import Aggregate, benchmarks_of, lengths_of, question_mean, task_mean, tasks_of
from harness.tables.layout import Column, length_title
from harness.tables.reference import Reference
from harness.types import Cell


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A column of scores: which cells it is computed from for one (model, context), and how."""

    column: Column
    benchmark: str
    cells: Callable[[str, str], list[Cell]]
    average: Callable[[list[Cell]], Aggregate]
    metric: str | None = None
    pooled: bool = False  # compared by question, not with equal weight per task
    compared: bool = True
    length: int | None = None  # tokens, for benchmarks that are scored over length


def measures_of(store: Store, allow_partial: bool, reference: Reference | None) -> list[Measure]:
    """The score columns, benchmark by benchmark; published lengths that the run lacks have columns too."""
    published = reference.benchmarks() if reference else []
    extra = [name for name in published if presentation_of(name).pooling == "tasks"]
    names = dict.fromkeys([*benchmarks_of(store), *extra])
    measures: list[Measure] = []
    for name in sorted(names, key=lambda name: presentation_of(name).rank):
        lengths = set(lengths_of(store, name)) | set(reference.lengths(name) if reference else [])
        build = {"tasks": _by_length, "questions": _by_question, "metrics": _by_metric}[presentation_of(name).pooling]
        measures += build(store, name, sorted(lengths), allow_partial)
    return measures


def _by_length(store: Store, benchmark: str, lengths: list[int], allow_partial: bool) -> list[Measure]:
    """One column per length: the mean over tasks with equal weight."""
    shown, tasks = presentation_of(benchmark), tasks_of(store, benchmark)
    group, short = shown.titles(tasks)

    def at(length: int) -> Measure:
        title = length_title(length) if length else shown.unknown_length
        return Measure(
            column=Column(title=title, group=group, short=f"{short} {title}"),
            benchmark=benchmark,
            cells=lambda m, c: [Cell(m, c, benchmark, t, length) for t in tasks],
            average=lambda cells: task_mean(store, cells, allow_partial=allow_partial),
            length=length,
        )

    return [at(length) for length in lengths]


def _by_question(store: Store, benchmark: str, lengths: list[int], allow_partial: bool) -> list[Measure]:
    """Two columns: the mean over questions, and the mean over tasks with equal weight."""
    shown = presentation_of(benchmark)
    group, short = shown.titles(tasks_of(store, benchmark))
    beside = f"by {shown.unit.removesuffix('s')}"
    cells = _planned_cells(store, benchmark)
    return [
        Measure(
            column=Column(title="questions", group=group, short=short),
            benchmark=benchmark,
            cells=cells,
            average=lambda cs: question_mean(store, cs, allow_partial=allow_partial),
            pooled=True,
        ),
        Measure(
            column=Column(title=beside, group=group, short=f"{short} {beside}"),
            benchmark=benchmark,
            cells=cells,
            average=lambda cs: task_mean(store, cs, allow_partial=allow_partial),
            compared=False,
        ),
    ]


def _by_metric(store: Store, benchmark: str, lengths: list[int], allow_partial: bool) -> list[Measure]:
    """One column per metric that any sample has: the mean over questions."""
    shown = presentation_of(benchmark)
    metrics = dict.fromkeys(m for c in store.cells if c.benchmark == benchmark for m in store.scores(c).metrics)
    cells = _planned_cells(store, benchmark)

    def of(metric: str | None) -> Measure:
        return Measure(
            column=_metric_column(shown, metric),
            benchmark=benchmark,
            cells=cells,
            average=lambda cs: question_mean(store, cs, metric, allow_partial=allow_partial),
            metric=metric,
            pooled=True,
            compared=metric not in shown.beside,
        )

    return [of(metric) for metric in metrics or [None]]


def _metric_column(shown: Presentation, metric: str | None) -> Column:
    if metric is None:
        return Column(title="score", group=shown.title)
    return Column(title=shown.metric_title(metric), group=shown.title, lower_is_better=lower_is_better(metric))


def _planned_cells(store: Store, benchmark: str) -> Callable[[str, str], list[Cell]]:
    """(model, context) -> the cells that the benchmark has anywhere in the plan, under this model and context."""
    planned = list(dict.fromkeys((c.task, c.length) for c in store.cells if c.benchmark == benchmark))
    return lambda model, context: [Cell(model, context, benchmark, task, length) for task, length in planned]
