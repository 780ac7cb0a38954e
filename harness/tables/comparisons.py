"""Two models under the same context, compared cell by cell: every task, and every benchmark as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.benchmarks.presentation import Presentation, presentation_of
from harness.store import Store
from harness.tables.aggregates import tasks_of, usable
from harness.tables.frames import check_label, labels, ordered_cells
from harness.tables.paired import Comparison
from harness.tables.recipe import compare_pairs
from harness.types import Cell, GatedevalError


@dataclass(frozen=True, kw_only=True)
class Line:
    """One comparison and what it is about.

    `task` is "average" for a mean over tasks with equal weight (RULER), "all" for a mean over all questions.
    """

    context: str
    benchmark: str
    task: str
    length: int
    metric: str | None
    comparison: Comparison

    @property
    def whole(self) -> bool:
        """Whether the line is about a benchmark as a whole, and not about one task."""
        return self.task in ("average", "all")

    @property
    def shown(self) -> Presentation:
        """How the line's benchmark is shown."""
        return presentation_of(self.benchmark)


def choose(store: Store, baseline: str | None, candidate: str | None) -> tuple[str, str]:
    """The two models to compare: as named, else the run's baseline and the only other model planned beside it.

    The run's baseline: in the candidate's contexts, the one that run.json declares; else the first model. Raises
    GatedevalError where that leaves a choice, or no second model.
    """
    models = labels(store, "models")
    for name in (baseline, candidate):
        check_label(store, "models", name)
    if baseline is None:
        declared = (store.manifest.get("comparisons") or {}).get("baselines") or {}
        beside = [declared.get(context) for context in _contexts_of(store, candidate)] if candidate else []
        known = [m for m in [*beside, *models] if m in models and m != candidate]
        baseline = next(iter(known), None)
    others = [m for m in models if m != baseline]
    if baseline is None or not others:
        raise GatedevalError(
            "a comparison needs two models, and this run has "
            f"{', '.join(map(repr, models)) or 'none'}; `gatedeval merge` joins two runs"
        )
    contexts = set(_contexts_of(store, baseline))
    others = [m for m in others if contexts & set(_contexts_of(store, m))] or others
    if candidate is None:
        if len(others) > 1:
            raise GatedevalError(
                f"which model is to be compared with {baseline!r}? Give --candidate NAME, one of "
                f"{', '.join(map(repr, others))}"
            )
        candidate = others[0]
    if candidate == baseline:
        raise GatedevalError(f"baseline and candidate are both {baseline!r}; choose two models")
    return baseline, candidate


def _contexts_of(store: Store, model: str) -> list[str]:
    """Labels of the contexts that the model is planned under."""
    return list(dict.fromkeys(cell.context for cell in store.cells if cell.model == model))


def lines(store: Store, baseline: str, candidate: str, context: str | None = None) -> tuple[list[Line], list[str]]:
    """Every comparison of two models under the same context; and in words the cells that lack one, and why.

    Raises GatedevalError where the prompts of the two differ.
    """
    found: list[Line] = []
    absent: list[str] = []
    for name in labels(store, "contexts"):
        if context is not None and name != context:
            continue
        for group in _groups(store, baseline, name):
            _compare_group(store, group, candidate, found, absent)
    return found, absent


def check_found(found: list[Line], absent: list[str], baseline: str, candidate: str) -> None:
    """Raise GatedevalError where there is nothing to compare; `absent`: why, cell by cell."""
    if not found:
        raise GatedevalError(
            f"{candidate!r} and {baseline!r} have no cell in common that both have scores for"
            + (f": {absent[0]}" if absent else "; choose two models that are planned under one context setting")
        )


def headlines(found: list[Line]) -> list[Line]:
    """One line per context, benchmark and length: the whole benchmark where it has several tasks, else its task."""
    wholes = {(x.context, x.benchmark, x.length) for x in found if x.whole}
    return [x for x in found if x.whole or (x.context, x.benchmark, x.length) not in wholes]


def task_marks(found: list[Line]) -> dict[tuple[str, str, int], str]:
    """(context, task, length) -> "▲" or "▼", of the single tasks whose difference is significant after adjustment.

    A benchmark of one task counts: its comparison is the headline and the task's own at once.
    """
    single = (line for line in found if not line.whole and line.comparison.significant)
    return {(line.context, line.task, line.length): line.comparison.mark for line in single}


def _groups(store: Store, model: str, context: str) -> Iterator[list[Cell]]:
    """The baseline's cells of one context, by benchmark and length."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in ordered_cells(store):
        if (cell.model, cell.context) == (model, context):
            groups.setdefault((cell.benchmark, cell.length), []).append(cell)
    yield from groups.values()


def _compare_group(store: Store, cells: list[Cell], candidate: str, found: list[Line], absent: list[str]) -> None:
    """One benchmark at one length: every task, then the benchmark as a whole where it has several."""
    first = cells[0]
    shown, pairs = presentation_of(first.benchmark), []

    def add(task: str, metric: str | None, comparison: Comparison) -> None:
        found.append(
            Line(
                context=first.context,
                benchmark=first.benchmark,
                task=task,
                length=first.length,
                metric=metric,
                comparison=comparison,
            )
        )

    for a in cells:
        b = Cell(candidate, a.context, a.benchmark, a.task, a.length)
        lacking = [x.model for x in (a, b) if x not in store.cells or not usable(store, x)]
        if lacking:
            where = f" at {a.length}" if a.length else ""
            absent.append(f"{a.context} / {a.task}{where}: {' and '.join(lacking)} has no scores")
            continue
        pairs.append((a, b))
        metrics = list(store.scores(a).metrics) if shown.every_metric else [store.scores(a).headline]
        if store.scores(a).weights:  # perplexities of texts are not tested
            continue
        metrics = [metric for metric in metrics if metric not in shown.beside]
        for metric in metrics:
            add(a.task, metric, compare_pairs(store, [(a, b)], metric))
    by_task = shown.pooling == "tasks"  # then a task that is missing at this length blocks the average
    needed = set(tasks_of(store, first.benchmark)) if by_task else {c.task for c in cells}
    if any(store.scores(a).weights for a, _ in pairs):
        return
    if len(needed) > 1 and {a.task for a, _ in pairs} == needed:
        comparison = compare_pairs(store, pairs, pooled=not by_task)
        add("average" if by_task else "all", store.scores(first).headline, comparison)
