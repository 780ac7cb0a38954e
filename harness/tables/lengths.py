"""A score over length in a few numbers, per model and context: RULER's summary figures and its effective length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from harness import stats
from harness.benchmarks.presentation import presentation_of
from harness.config import TableOptions
from harness.store import Store
from harness.tables.aggregates import lengths_of, over_length, task_mean, tasks_of
from harness.tables.arm_rows import row_labels
from harness.tables.arms import checkpoint_view
from harness.tables.caption import lines_beneath, scoring_lines
from harness.tables.frames import labels
from harness.tables.layout import DASH, Column, Entry, Table, length_title, mark_best
from harness.tables.view import chosen, viewed
from harness.types import Cell, GatedevalError


@dataclass(frozen=True, kw_only=True)
class CurveSummary:
    """One benchmark's mean over tasks at every length of one model and context, and the figures computed from it.

    `curve`: length in tokens -> score on 0-100, NaN where a task is missing. `means`: "average", "wAvg (inc)" and
    "wAvg (dec)" over the lengths (Hsieh et al. 2024, Table 3), NaN where a length is. `height`: mean of the curve over
    log2(length), same unit. `effective`: the longest length with a score above `stats.RULER_THRESHOLD`. `unbroken`: the
    longest up to which every length is above. None where there is none.
    """

    benchmark: str
    model: str
    context: str
    curve: dict[int, float]
    means: dict[str, float]
    height: float
    effective: int | None
    unbroken: int | None

    @property
    def reach(self) -> str:
        """The effective length in words: "32K", "below 4K" where 4K is the shortest length, a dash without a score."""
        if all(math.isnan(score) for score in self.curve.values()):
            return DASH
        return length_title(self.effective) if self.effective else f"below {length_title(min(self.curve))}"


def summaries(store: Store, context: str | None = None) -> list[CurveSummary]:
    """The curves of every benchmark that is scored over length, in the order of tables; `context`: of this one only."""
    found = []
    for benchmark in over_length(store):
        for name in labels(store, "contexts"):
            lengths = [n for n in lengths_of(store, benchmark, name) if n]
            if not lengths or context not in (None, name):
                continue
            there = {cell.model for cell in store.cells if (cell.context, cell.benchmark) == (name, benchmark)}
            models = [model for model in labels(store, "models") if model in there]
            found += [_summary(store, benchmark, model, name, lengths) for model in models]
    return found


def _summary(store: Store, benchmark: str, model: str, context: str, lengths: list[int]) -> CurveSummary:
    tasks = tasks_of(store, benchmark)
    curve = {n: task_mean(store, [Cell(model, context, benchmark, t, n) for t in tasks]).value for n in lengths}
    return CurveSummary(
        benchmark=benchmark,
        model=model,
        context=context,
        curve=curve,
        means=stats.length_means(curve),
        height=stats.area_under_curve(curve),
        effective=stats.effective_length(curve),
        unbroken=stats.unbroken_length(curve),
    )


def summaries_frame(found: list[CurveSummary]) -> pd.DataFrame:
    """One row per curve: model, context, benchmark, lengths (text), average, wavg_inc, wavg_dec, height (0-100, NaN
    where a length is missing), effective_length, unbroken_length (tokens; missing where no length is above the bar).
    """
    rows = [
        {
            "model": s.model,
            "context": s.context,
            "benchmark": s.benchmark,
            "lengths": " ".join(map(str, s.curve)),
            "average": s.means["average"],
            "wavg_inc": s.means["wAvg (inc)"],
            "wavg_dec": s.means["wAvg (dec)"],
            "height": s.height,
            "effective_length": s.effective,
            "unbroken_length": s.unbroken,
        }
        for s in found
    ]
    names = ["model", "context", "benchmark", "lengths", "average", "wavg_inc", "wavg_dec", "height"]
    frame = pd.DataFrame(rows, columns=[*names, "effective_length", "unbroken_length"])
    return frame.astype({"effective_length": "Int64", "unbroken_length": "Int64"})


def lengths_table(store: Store) -> Table:
    """Rows: model and context. Columns: the lengths, RULER's three means over them, the curve's mean height, effective
    and unbroken length. Means of different lengths are not comparable, so the best is marked within a context.
    The figures are over all lengths, also where the run's choices show fewer. Raises GatedevalError where no chosen
    benchmark is scored over length.
    """
    store, view = viewed(store)
    every = summaries(store) + (summaries(checkpoint_view(store, ())[0]) if view.arms == "expanded" else [])
    keys = [(c, m) for c in chosen(labels(store, "contexts"), view.contexts) for m in _models(store, view)]
    found = [s for key in keys for s in every if (s.context, s.model) == key and _shown(view, s)]
    if store.cells and not found:
        known = ", ".join(sorted({s.benchmark for s in every})) or "none in this run"
        raise GatedevalError(f"the lengths table is about benchmarks that are scored over length; of these: {known}")
    means = list(found[0].means) if found else []
    several = len({s.benchmark for s in found}) > 1
    texts = ["model", "context", *(["benchmark"] if several else []), "lengths"]
    columns = [Column(title=title, numeric=False) for title in texts]
    columns += [Column(title=title) for title in [*means, "height"]]
    columns += [Column(title=title, plain=True) for title in ("effective", "unbroken")]
    rows = []
    for s in found:
        lengths = list(s.curve)
        span = length_title(lengths[0]) + (f" to {length_title(lengths[-1])}" if len(lengths) > 1 else "")
        names = [s.model, s.context, *([presentation_of(s.benchmark).title] if several else [])]
        unbroken = length_title(s.unbroken) if s.unbroken else DASH
        row = [Entry(text=text) for text in [*names, f"{span} ({len(lengths)})"]]
        row += [Entry(value=None if math.isnan(v) else v, decimals=view.digits) for v in [*s.means.values(), s.height]]
        rows.append([*row, Entry(text=s.reach), Entry(text=unbroken)])
    contexts = [s.context for s in found]
    rivals = [(s.context, "" if s.model in labels(store, "models") else s.model) for s in found]
    table = Table(
        style="lengths",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=mark_best(rows, columns, groups=rivals),
        make_frame=lambda: summaries_frame(found),
        breaks={i for i in range(1, len(rows)) if contexts[i] != contexts[i - 1]},
    )
    reading = [
        "average: the plain mean over lengths. wAvg (inc) weights the i-th shortest length by i, wAvg (dec) the other "
        "way round (RULER, Hsieh et al. 2024). height: the mean of the curve over log2(length). A missing length is a "
        f"{DASH}: means over different lengths are not comparable.",
        f"effective: the longest length with a score above {stats.RULER_THRESHOLD} (Llama-2-7B at 4K, RULER's bar). "
        "unbroken: the longest length up to which every length is above.",
    ]
    curves = {(s.model, s.context, s.benchmark) for s in found}
    cells = [cell for cell in store.cells if (cell.model, cell.context, cell.benchmark) in curves]
    table.headline, table.label = "Scores over length in summary figures.", view.label
    full = [*reading, *scoring_lines(store, cells)]
    table.caption = lines_beneath(store, view, cells, full=full, short=reading, missing=[])
    return table


def _models(store: Store, view: TableOptions) -> list[str]:
    return chosen(row_labels(store, view), view.models)


def _shown(view: TableOptions, summary: CurveSummary) -> bool:
    return view.benchmarks is None or summary.benchmark in view.benchmarks
