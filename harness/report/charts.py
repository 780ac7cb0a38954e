"""The report's curves: an SVG per context, the key of every model, and each curve in its summary figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from harness.figures.curves import Drawing, context_figure, drawn, key_figure, split
from harness.figures.style import SCREEN, drawing
from harness.figures.svg import inline
from harness.report.html import samples_link
from harness.report.links import of_model
from harness.store import Store
from harness.tables.curves import Curve, scored_over_length
from harness.tables.layout import DASH, length_title
from harness.tables.lengths import CurveSummary, summaries


@dataclass(frozen=True)
class Chart:
    """One context's curves, over the range of the data and over 0-100."""

    context: str
    data: Markup
    full: Markup


@dataclass(frozen=True)
class Charts:
    """Everything the page shows of the run's curves."""

    title: str  # what the score is
    keys: list[tuple[str, Markup]]  # model, its line and marker: one legend for all charts
    charts: list[Chart]
    without: list[str]  # models without a curve, and why
    threshold: bool  # whether the bar of the effective length is drawn
    few: bool  # whether some point has a hollow marker
    means: list[str]  # titles of RULER's summary figures
    reaches: list[list[str]]  # model, context, lengths, effective length, mean height, summary figures


def charts(store: Store) -> Charts | None:
    """The run's charts; None where it has no RULER average."""
    found = drawn(store)
    if not found.lines:
        return None
    benchmark = scored_over_length(store) or ""
    with drawing(SCREEN):
        models = [m for m in found.models if any(c.model == m for c in found.lines)]
        keys = [(m, Markup(inline(key_figure(m, found.models), f"key{i}", ""))) for i, m in enumerate(models)]
        both = [
            Chart(
                context,
                _chart(store, found, benchmark, context, f"chart{i}", full=False),
                _chart(store, found, benchmark, context, f"full{i}", full=True),
            )
            for i, context in enumerate(found.contexts)
        ]
    several = [s for s in summaries(store) if s.benchmark == benchmark and len(s.curve) > 1]
    return Charts(
        title=found.title,
        keys=keys,
        charts=both,
        without=found.without,
        threshold=found.threshold,
        few=any(split(c)[1] for c in found.lines),
        means=list(several[0].means) if several else [],
        reaches=[_reach(s) for s in several],
    )


def _reach(summary: CurveSummary) -> list[str]:
    lengths = [length_title(n) for n in summary.curve]
    numbers = [summary.height, *summary.means.values()]
    return [
        summary.model,
        summary.context,
        f"{lengths[0]} to {lengths[-1]}",
        DASH if math.isnan(summary.height) and summary.effective is None else summary.reach,
        *(DASH if math.isnan(v) else f"{v:.2f}" for v in numbers),
    ]


def _chart(store: Store, found: Drawing, benchmark: str, context: str, name: str, *, full: bool) -> Markup:
    """The chart of one context's curves, with the numbers for a mouse and for a screen reader, and links to samples."""
    own = found.under(context)
    in_words = "; ".join(
        f"{c.model}: " + ", ".join(f"{length_title(n)} {s:.1f}" for n, s in zip(c.lengths, c.scores, strict=True))
        for c in own
    )
    tips = {}
    for i, curve in enumerate(own):
        filled, few = split(curve)
        tips[f"curve-{i}"] = [_tip(store, curve, benchmark, j) for j in filled]
        tips[f"few-{i}"] = [_tip(store, curve, benchmark, j) for j in few]
    figure = context_figure(found, context, full=full)
    return Markup(inline(figure, name, f"RULER, {context}. {in_words}", tips))


def _tip(store: Store, curve: Curve, benchmark: str, j: int) -> tuple[str, str]:
    """What the marker of a curve's j-th point says, and where it leads."""
    length = curve.lengths[j]
    text = (
        f"{curve.model}, {length_title(length)}: {curve.scores[j]:.2f} [{curve.lows[j]:.2f}, {curve.highs[j]:.2f}], "
        f"{curve.counts[j]} samples per task"
    )
    return text, samples_link(
        **of_model(store, curve.model), context=curve.context, task=f"{benchmark}/", length=length
    )
