"""Score over length: one line per model with 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.figures.style import COLUMN, PX, look
from harness.store import Store
from harness.tables.curves import Curve, curves
from harness.tables.frames import labels
from harness.tables.layout import length_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCREEN_SIZE = (420, 270)  # CSS pixels of one chart of the report, before the browser scales it
_MOST_TICKS = 10  # length labels that fit side by side


def drawn(store: Store) -> tuple[list[Curve], list[str]]:
    """A run's curves, and the models that have one: their order fixes the look of each in all figures of the run.

    Curves of a single point are left out where others have more: the table has them.
    """
    every = curves(store)
    found = [c for c in every if len(c.lengths) > 1] or every
    return found, [m for m in labels(store, "models") if any(c.model == m for c in found)]


def length_figure(lines: Sequence[Curve], lengths: list[int], models: list[str]) -> Figure:
    """For a paper: one panel per context, at most two side by side, and one legend below them."""
    from matplotlib.figure import Figure

    contexts = list(dict.fromkeys(c.context for c in lines))
    across = min(2, len(contexts))
    down = math.ceil(len(contexts) / across)
    figure = Figure(figsize=(COLUMN * across, 2.0 * down + 0.3), layout="constrained")
    panels = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for panel in panels[len(contexts) :]:
        panel.remove()
    handles: dict[str, Any] = {}
    for panel, context in zip(panels, contexts, strict=False):
        draw_curves(panel, [c for c in lines if c.context == context], lengths, models)
        panel.set_title(context)
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):  # not every panel has every model
            handles.setdefault(label, handle)
    for panel in panels[:: max(1, across)]:
        panel.set_ylabel("RULER score")
    names = [m for m in models if m in handles]
    fit = int(COLUMN * across / (0.5 + 0.06 * max(map(len, names))))
    figure.legend([handles[m] for m in names], names, loc="outside lower center", ncols=max(1, min(3, len(names), fit)))
    return figure


def context_figure(lines: Sequence[Curve], lengths: list[int], models: list[str]) -> Figure:
    """For the report: the curves of one context. The page writes the context and the legend (`key_figure`) beside it.

    The markers of curve i are in the SVG group `curve-i`, so that the report can add what a reader sees on hovering.
    """
    from matplotlib.figure import Figure

    width, height = SCREEN_SIZE
    figure = Figure(figsize=(width * PX, height * PX))
    panel = figure.subplots()
    figure.subplots_adjust(left=36 / width, right=1 - 8 / width, bottom=48 / height, top=1 - 12 / height)
    draw_curves(panel, lines, lengths, models)
    return figure


def key_figure(model: str, models: list[str]) -> Figure:
    """A legend's key: the line and the marker of one model, 44 x 14 pixels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(44 * PX, 14 * PX))
    panel = figure.add_axes((0, 0, 1, 1))
    panel.set_axis_off()
    panel.plot([0, 1, 2], [0, 0, 0], **look(model, models)._asdict(), markevery=[1])
    panel.set(xlim=(0, 2), ylim=(-1, 1))
    return figure


def draw_curves(panel: Axes, lines: Sequence[Curve], lengths: list[int], models: list[str]) -> None:
    """Draw the `lines` of one context on `panel`: scores 0-100 over equally spaced `lengths`.

    Curves are shifted a little to the side, so that their intervals do not cover each other.
    """
    for i, curve in enumerate(lines):
        shift = (i - (len(lines) - 1) / 2) * 0.08
        scores = np.array(curve.scores)
        bars = panel.errorbar(
            [lengths.index(n) + shift for n in curve.lengths],
            scores,
            yerr=np.maximum(0, [scores - curve.lows, np.array(curve.highs) - scores]),
            label=curve.model,
            **look(curve.model, models)._asdict(),
            clip_on=False,
        )
        bars.lines[0].set_gid(f"curve-{i}")
    every = math.ceil(len(lengths) / _MOST_TICKS)
    panel.set_xticks(range(0, len(lengths), every), [length_title(n) for n in lengths[::every]])
    panel.set_yticks(range(0, 101, 20))
    panel.set(xlabel="length, tokens", ylim=(0, 100), xlim=(-0.4, len(lengths) - 0.6))
    panel.grid(axis="y", clip_on=False)
