"""Scores over training: every arm at every step, the difference of two arms, and the area between their curves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from harness import stats
from harness.config import TableOptions
from harness.config.arms import Checkpoint, steps_of
from harness.config.arms import rows_of as rows_of_arms
from harness.store import Store
from harness.store.scores import pair
from harness.tables.aggregates import Aggregate
from harness.tables.arms import Arms, arms_of, members, read_rows
from harness.tables.comparisons import choose
from harness.tables.frames import check_label, labels
from harness.tables.measures import Measure, measures_of
from harness.tables.paired import ALPHA, Comparison
from harness.tables.recipe import compare_pairs
from harness.tables.rows import contexts_of, rows_of
from harness.types import GatedevalError


@dataclass(frozen=True, kw_only=True)
class Area:
    """Candidate minus baseline, averaged over training: the area between the curves over the length of its base.

    `steps`: those that both arms have. `baseline`, `candidate`: the curves' mean heights over them, by trapezoids;
    `value` their difference, with its 95% interval `low`..`high`: 0-100, or the metric's own scale. `p`, `adjusted`:
    sign-flip permutation by sample, and Holm's over the areas of the run. NaN where nothing is claimed (`why`).
    """

    steps: list[int]
    baseline: float
    candidate: float
    value: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    adjusted: float = math.nan
    why: str = ""

    @property
    def mark(self) -> str:
        """ "▲": the candidate is significantly better over training, "▼": worse, or nothing."""
        return ("▲" if self.value > 0 else "▼") if self.adjusted < ALPHA else ""


@dataclass(kw_only=True)
class Training:
    """One score of one context over training.

    `points`: arm -> step -> its number. `differences`: step -> candidate against baseline. `area`: None with fewer than
    two common steps.
    """

    context: str
    measure: Measure
    points: dict[str, dict[int, Aggregate]]
    differences: dict[int, Comparison] = field(default_factory=dict)
    area: Area | None = None

    @property
    def name(self) -> str:
        """What the score is, as the header of a table says it."""
        return self.measure.column.name

    @property
    def steps(self) -> list[int]:
        """Every step at which an arm has a number, ascending."""
        return sorted({step for own in self.points.values() for step in own})


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """The curves of a run that is read by arm.

    `pair`: baseline and candidate, where two arms are compared. `family`: the areas of the whole run, which Holm's
    adjustment is over. `missing`: in words, numbers that no curve has because a task of them has no score.
    """

    arms: list[str]
    curves: list[Training]
    pair: tuple[str, str] | None
    family: int
    missing: list[str]


def curved_arms(store: Store) -> list[str]:
    """The arms that have checkpoints at two training steps or more, in the order of rows."""
    arms = arms_of(store)
    known = members(store if arms is None else arms.checkpoints)
    return [row for row in dict.fromkeys(c.row for c in known) if len(steps_of(known, row)) > 1]


def has_steps(store: Store) -> bool:
    """Whether any arm of the run has checkpoints at two training steps or more."""
    return bool(curved_arms(store))


def trainings(store: Store, view: TableOptions, baseline: str | None = None, candidate: str | None = None) -> Trainings:
    """The curves over training of a run that `harness.tables.view.viewed` has read by arm.

    Two arms are compared: those named, or the only two that have steps. Raises GatedevalError where no arm has two
    steps, and for a label that no arm has.
    """
    arms = arms_of(store)
    if arms is None and has_steps(store):
        raise GatedevalError("arms: off takes arms apart, and curves over training are of arms; use arms: rows")
    if arms is None or not has_steps(store):
        raise GatedevalError(
            "no arm of this run has checkpoints at two training steps or more: give models of one `arm` a `step`"
        )
    known = members(arms.checkpoints)
    curved = curved_arms(store)
    for name in (baseline, candidate):
        check_label(store, "models", name)
        if name is not None and name not in curved:
            raise GatedevalError(f"the arm {name!r} has no two training steps; those that have: {', '.join(curved)}")
    pair = _pair(store, curved, baseline, candidate)
    stores, missing = _by_step(arms, known, curved), list[str]()
    curves = _curves(store, arms, stores, missing)
    if pair is not None:
        for curve in curves:
            _compare(curve, stores, pair, arms.infer)
        _adjust(curves)
    return Trainings(
        arms=[row for row in curved if view.models is None or row in view.models or row in (pair or ())],
        curves=[curve for curve in curves if _shown(view, curve.measure, curve.context)],
        pair=pair,
        family=sum(curve.area is not None for curve in curves),
        missing=missing,
    )


def _curves(store: Store, arms: Arms, stores: dict[int, Store], missing: list[str]) -> list[Training]:
    """A curve per context and compared score of the run, in the order of tables."""
    every = {m.column.name: m for m in measures_of(arms.checkpoints, False, None) if m.compared}
    found: dict[tuple[str, str], Training] = {}
    for step, at in stores.items():
        measures = measures_of(at, False, None)
        for row in rows_of(at, contexts_of(at), measures):
            for measure, value in zip(measures, row.values, strict=True):
                name = measure.column.name
                if value is None or name not in every:
                    continue
                missing += [f"step {step}, {text}" for text in value.missing]
                if not math.isnan(value.value):
                    blank = Training(context=row.context, measure=every[name], points={})
                    found.setdefault((row.context, name), blank).points.setdefault(row.model, {})[step] = value
    contexts, names = labels(store, "contexts"), list(every)
    order = sorted(found, key=lambda key: (contexts.index(key[0]), names.index(key[1])))
    return [found[key] for key in order]


def _pair(store: Store, curved: list[str], baseline: str | None, candidate: str | None) -> tuple[str, str] | None:
    """The two arms to compare; None where more than two have steps and they are not named."""
    if len(curved) < 2 or (len(curved) > 2 and candidate is None):
        return None
    if candidate is None:
        first = baseline or choose(store, None, next(r for r in curved if r != curved[0]))[0]
        first = first if first in curved else curved[0]
        return first, next(row for row in curved if row != first)
    return choose(store, baseline or next(row for row in curved if row != candidate), candidate)


def _shown(view: TableOptions, measure: Measure, context: str) -> bool:
    return (
        (view.contexts is None or context in view.contexts)
        and (view.benchmarks is None or measure.benchmark in view.benchmarks)
        and (view.lengths is None or not measure.length or measure.length in view.lengths)
    )


def _by_step(arms: Arms, known: list[Checkpoint], curved: list[str]) -> dict[int, Store]:
    """Step -> the run with an arm's checkpoints of that step as its row."""
    steps = sorted({step for row in curved for step in steps_of(known, row)})
    stores = {}
    for step in steps:
        rows = rows_of_arms([c for c in known if c.row in curved and c.step == step], "all")
        stores[step] = read_rows(arms.checkpoints, Arms(arms.checkpoints, rows, "all", arms.infer))
    return stores


# ------------------------------------------------------------------------------------------------- two arms


def _compare(curve: Training, stores: dict[int, Store], pair: tuple[str, str], infer: str) -> None:
    """The differences at every step that both arms have, and the area between the two curves."""
    own = [curve.points.get(row, {}) for row in pair]
    common = sorted(own[0].keys() & own[1].keys())
    measure = curve.measure
    for step in common:
        at = stores[step]
        both = zip(*(measure.cells(row, curve.context) for row in pair), strict=True)
        pairs = [(a, b) for a, b in both if a in own[0][step].cells and b in own[1][step].cells]
        single = any(not own[i][step].checkpoints for i in (0, 1))
        if pairs and not (infer == "recipe" and single):
            curve.differences[step] = compare_pairs(at, pairs, measure.metric, pooled=measure.pooled)
    if len(common) < 2:
        return
    weights = trapezoid_weights(common)
    heights = [float(sum(w * own[i][step].value for w, step in zip(weights, common, strict=True))) for i in (0, 1)]
    curve.area = Area(steps=common, baseline=heights[0], candidate=heights[1], value=heights[1] - heights[0])
    if infer == "recipe":
        why = "which checkpoints are of one training is not known, so nothing is claimed about recipes over training"
        curve.area = replace(curve.area, why=why)
        return
    strata = _differences(curve, stores, pair, common, weights)
    if strata and all(d.size for d in strata):
        interval, scale = stats.paired_interval(strata), next(iter(curve.differences.values())).scale
        low, high = scale * interval.low, scale * interval.high
        curve.area = replace(curve.area, low=low, high=high, p=stats.permutation_test(strata))


def trapezoid_weights(steps: list[int]) -> NDArray[np.float64]:
    """What each step counts in the mean of a curve over its steps, by trapezoids; the weights add up to 1."""
    x = np.array(steps, dtype=np.float64)
    half = np.diff(x) / 2
    weights = np.concatenate([half, [0.0]]) + np.concatenate([[0.0], half])
    return np.asarray(weights / (x[-1] - x[0]))


def _differences(
    curve: Training, stores: dict[int, Store], pair_of: tuple[str, str], steps: list[int], weights: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """Per task the samples' differences, averaged over training, over the samples that are there at every step."""
    measure, strata = curve.measure, []
    both = zip(*(measure.cells(row, curve.context) for row in pair_of), strict=True)
    for a, b in both:
        if not all(cell in stores[step].cells for step in steps for cell in (a, b)):
            continue
        total: dict[str, list[float]] = {}
        for step, weight in zip(steps, weights, strict=True):
            left, right = stores[step].scores(a), stores[step].scores(b)
            rows = pair(left, right)
            name = measure.metric or left.headline or ""
            change = weight * (right.metrics[name][rows.right] - left.metrics[name][rows.left])
            for row, value in zip(rows.left, change, strict=True):
                total.setdefault(left.ids[row], []).append(float(value))
        strata.append(np.array([sum(values) for values in total.values() if len(values) == len(steps)]))
    return [np.concatenate(strata)] if measure.pooled and strata else strata


def _adjust(curves: list[Training]) -> None:
    """Holm over the areas."""
    areas = [curve.area for curve in curves if curve.area is not None]
    adjusted = iter(stats.holm([area.p for area in areas]))
    for curve in curves:
        if curve.area is not None:
            curve.area = replace(curve.area, adjusted=next(adjusted))
