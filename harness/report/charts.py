"""The report's curves: an SVG per context, the key of every model, and each curve in two numbers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from harness.figures.curves import context_figure, drawn, key_figure
from harness.figures.style import SCREEN, drawing
from harness.figures.svg import inline
from harness.store import Store
from harness.tables.curves import Curve, planned_lengths, reach
from harness.tables.layout import length_title


@dataclass(frozen=True)
class Charts:
    """Everything the page shows of the run's curves."""

    keys: list[tuple[str, Markup]]  # model, its line and marker: one legend for all charts
    figures: list[tuple[str, Markup]]  # context, its chart
    reaches: list[tuple[str, str, str, str]]  # model, context, effective length, mean height


def charts(store: Store) -> Charts | None:
    """The run's charts; None where it has no RULER average."""
    lines, models = drawn(store)
    if not lines:
        return None
    with drawing(SCREEN):
        keys = [(m, Markup(inline(key_figure(m, models), f"key{i}", ""))) for i, m in enumerate(models)]
        figures = [
            (context, _chart([c for c in lines if c.context == context], planned_lengths(store), models, f"chart{i}"))
            for i, context in enumerate(dict.fromkeys(c.context for c in lines))
        ]
    return Charts(keys, figures, [(c.model, c.context, *reach(c)) for c in lines])


def _chart(own: list[Curve], lengths: list[int], models: list[str], name: str) -> Markup:
    """The chart of one context's curves, with the numbers for a mouse and for a screen reader."""
    in_words = "; ".join(
        f"{c.model}: " + ", ".join(f"{length_title(n)} {s:.1f}" for n, s in zip(c.lengths, c.scores, strict=True))
        for c in own
    )
    tips = {
        f"curve-{i}": [
            f"{c.model}, {length_title(n)}: {score:.2f} [{low:.2f}, {high:.2f}]"
            for n, score, low, high in zip(c.lengths, c.scores, c.lows, c.highs, strict=True)
        ]
        for i, c in enumerate(own)
    }
    figure = context_figure(own, lengths, models)
    return Markup(inline(figure, name, f"RULER, {own[0].context}. {in_words}", tips))
