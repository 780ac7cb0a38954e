"""Score over training as a table: a row per score and step, a column per arm, then the difference of two arms."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from harness.config import TableOptions
from harness.store import Store
from harness.tables.aggregates import Aggregate
from harness.tables.arms_caption import inference_lines
from harness.tables.caption import lines_beneath, missing_lines, scoring_lines
from harness.tables.layout import DASH, Column, Entry, Table
from harness.tables.paired import ALPHA
from harness.tables.training import Training, Trainings, trainings
from harness.tables.view import viewed
from harness.text import counted, interval_text

AREA = "mean over training"


def training_table(store: Store, baseline: str | None = None, candidate: str | None = None) -> Table:
    """Rows: context, score, step, and one row for the curves' mean heights over the steps that both arms have; its
    difference is the area between the curves, per step.

    Raises GatedevalError where no arm has two training steps.
    """
    store, view = viewed(store)
    found = trainings(store, view, baseline, candidate)
    table = table_of(store, found, view)
    reading = training_lines(found)
    numbers = [value for curve in found.curves for own in curve.points.values() for value in own.values()]
    cells = list(dict.fromkeys(cell for value in numbers for cell in value.cells))
    table.caption = lines_beneath(
        store,
        view,
        cells,
        full=[*scoring_lines(store, cells), *reading],
        short=reading,
        missing=table.missing,
        arms=False,
    )
    return table


def table_of(store: Store, found: Trainings, view: TableOptions) -> Table:
    """The table without its caption."""
    columns = [Column(title=t, numeric=False) for t in ("context", "score")]
    columns += [Column(title="step", plain=True), *(Column(title=arm) for arm in found.arms)]
    if found.pair:
        columns += [Column(title="difference", plain=True), Column(title="95% interval", numeric=False)]
    rows: list[list[Entry]] = []
    breaks = set()
    for curve in found.curves:
        breaks |= {len(rows)} if rows else set()
        rows += _rows(found, curve, view.digits)
    table = Table(
        style="training",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=rows,
        make_frame=lambda: training_frame(found),
        breaks=breaks,
        missing=missing_lines(found.missing),
    )
    table.headline, table.label = "Scores over training.", view.label
    return table


def training_lines(found: Trainings) -> list[str]:
    """How to read the numbers over training."""
    numbers = [value for curve in found.curves for own in curve.points.values() for value in own.values()]
    counts = sorted({max(1, len(value.checkpoints)) for value in numbers}) or [1]
    several = f"{counts[0]} to {counts[-1]}" if counts[0] != counts[-1] else counts[0]
    lines = [f"A number is the mean over an arm's checkpoints at that step ({counted(several, 'checkpoint')})."]
    if counts[-1] > 1:
        lines[0] = lines[0].removesuffix(".") + ", ± the standard deviation between them."
    if found.pair is None:
        unnamed = "No difference is shown: name two arms with --baseline and --candidate."
        return [*lines, unnamed] if len(found.arms) > 1 else lines
    baseline, candidate = found.pair
    lines.append(
        f"difference: {candidate} minus {baseline}, with its own 95% interval (not adjusted for the number of steps)."
    )
    areas = [curve.area for curve in found.curves if curve.area is not None]
    if areas:
        lines.append(
            f"{AREA}: heights of the curves by trapezoids over the steps that both arms have; their difference is the "
            "area between the curves divided by the steps that it spans."
        )
    if any(not math.isnan(area.p) for area in areas):
        lines.append(
            f"▲ {candidate} above, ▼ below over training: p < {ALPHA}, paired permutation test by sample, Holm over "
            f"{counted(found.family, 'area')}."
        )
    lines += dict.fromkeys(f"{AREA} has no interval: {area.why}." for area in areas if area.why)
    return [*lines, *inference_lines(c for curve in found.curves for c in curve.differences.values())]


def _rows(found: Trainings, curve: Training, digits: int) -> list[list[Entry]]:
    rows = []
    for step in curve.steps:
        row = [Entry(text=curve.context), Entry(text=curve.name), Entry(value=step, decimals=0)]
        row += [_entry(curve.points.get(arm, {}).get(step), digits) for arm in found.arms]
        if found.pair:
            c = curve.differences.get(step)
            row.append(Entry() if c is None else Entry(value=c.difference, signed=True, decimals=digits))
            row.append(Entry(text=DASH if c is None else interval_text(c.low, c.high, digits)))
        rows.append(row)
    if (area := curve.area) is not None and found.pair is not None:
        heights = dict(zip(found.pair, (area.baseline, area.candidate), strict=True))
        row = [Entry(text=curve.context), Entry(text=curve.name), Entry(text=AREA)]
        row += [Entry(value=heights.get(arm), decimals=digits) for arm in found.arms]
        row.append(Entry(value=area.value, signed=True, marks=area.mark, decimals=digits))
        row.append(Entry(text=DASH if math.isnan(area.low) else interval_text(area.low, area.high, digits)))
        rows.append(row)
    return rows


def _entry(value: Aggregate | None, digits: int) -> Entry:
    if value is None:
        return Entry()
    low, high = 100 * value.interval.low, 100 * value.interval.high
    return Entry(
        value=value.value,
        interval=None if math.isnan(low) else (low, high),
        checkpoints=tuple(value.checkpoints),
        decimals=digits,
    )


def training_frame(found: Trainings) -> pd.DataFrame:
    """One row per context, score, step and arm; of the area between two arms, one row without a step.

    score, ci_low, ci_high, sd, difference, difference_low, difference_high: 0-100 or the metric's own scale; the last
    three in the candidate's rows. step: Int64. checkpoints: how many. p_adjusted: of the area, Holm's.
    """
    records: list[dict[str, Any]] = []
    for curve in found.curves:
        where = {"context": curve.context, "benchmark": curve.measure.benchmark, "score_of": curve.name}
        for arm in found.arms:
            candidate = found.pair is not None and arm == found.pair[1]
            for step, value in sorted(curve.points.get(arm, {}).items()):
                entry = _entry(value, 2)
                low, high = entry.interval or (math.nan, math.nan)
                own = {"arm": arm, "step": step, "checkpoints": max(1, len(value.checkpoints)), "score": value.value}
                record = {**where, **own, "sd": entry.spread, "ci_low": low, "ci_high": high}
                if candidate and (c := curve.differences.get(step)) is not None:
                    record |= {"difference": c.difference, "difference_low": c.low, "difference_high": c.high}
                records.append(record)
            if candidate and (area := curve.area) is not None:
                ends = {"difference_low": area.low, "difference_high": area.high, "p_adjusted": area.adjusted}
                records.append({**where, "arm": arm, "score": area.candidate, "difference": area.value, **ends})
    names = ["context", "benchmark", "score_of", "arm", "step", "checkpoints", "score", "sd", "ci_low", "ci_high"]
    names += ["difference", "difference_low", "difference_high", "p_adjusted"]
    frame = pd.DataFrame(records, columns=names)
    return frame.astype({"step": "Int64", "checkpoints": "Int64", "sd": "float64"})
