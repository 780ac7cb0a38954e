"""Score over length: one line per model with 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.benchmarks.presentation import presentation_of
from harness.figures.colours import BAR, PAGE
from harness.figures.style import COLUMN, PX, look
from harness.stats import RULER_THRESHOLD
from harness.store import Store
from harness.tables.aggregates import tasks_of
from harness.tables.curves import Curve, curves, planned_lengths, scored_over_length
from harness.tables.frames import labels
from harness.tables.layout import length_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCREEN_SIZE = (420, 300)  # CSS pixels of one chart of the report, before the browser scales it
FEW = 10  # samples per task: a point of fewer has a hollow marker
_MOST_TICKS = 10  # length labels that fit side by side
_MOST_ACROSS = 3  # panels side by side


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What all charts of one run have in common.

    `lines`: the curves to draw. `models`: all models of the run, whose order fixes the look of each. `without`: models
    that have no curve, with the reason. `lengths`: tokens, ascending. `title`: what the score is. `threshold`: whether
    the bar of RULER's effective length is drawn.
    """

    lines: list[Curve]
    models: list[str]
    without: list[str]
    lengths: list[int]
    title: str
    threshold: bool

    @property
    def contexts(self) -> list[str]:
        """The context settings that have a curve."""
        return list(dict.fromkeys(c.context for c in self.lines))

    def under(self, context: str) -> list[Curve]:
        """The curves of one context setting."""
        return [c for c in self.lines if c.context == context]

    def limits(self, full: bool) -> tuple[float, float]:
        """The ends of the y axis: of the intervals and the threshold, to the next ten; 0 and 100 where `full`."""
        if full:
            return 0, 100
        lows = [v for c in self.lines for v in c.lows] + [RULER_THRESHOLD] * self.threshold
        highs = [v for c in self.lines for v in c.highs] + [RULER_THRESHOLD] * self.threshold
        low = max(0, math.floor((min(lows) - 1) / 10) * 10)
        return low, min(100, max(low + 20, math.ceil((max(highs) + 1) / 10) * 10))


def drawn(store: Store) -> Drawing:
    """A run's curves; `lines` is empty where it has none.

    Curves of a single point are left out where others have more: the table has them.
    """
    every = curves(store)
    found = [c for c in every if len(c.lengths) > 1] or every
    models = labels(store, "models")
    single = {c.model: c for c in every if c not in found}
    without = [
        f"{m} ({length_title(single[m].lengths[0])} only)" if m in single else f"{m} (no average at any length)"
        for m in models
        if all(c.model != m for c in found)
    ]
    benchmark = scored_over_length(store)
    title = "" if benchmark is None else presentation_of(benchmark).titles(tasks_of(store, benchmark))[0]
    lengths = [n for n in planned_lengths(store) if any(n in c.lengths for c in found)]
    threshold = any(len(c.lengths) > 1 for c in found)
    return Drawing(lines=found, models=models, without=without, lengths=lengths, title=title, threshold=threshold)


def length_figure(drawing: Drawing, contexts: Sequence[str] | None = None, *, full: bool = False) -> Figure:
    """For a paper: a panel per context side by side, with one y axis and one legend; `full`: the whole scale 0-100."""
    from matplotlib.figure import Figure

    contexts = drawing.contexts if contexts is None else list(contexts)
    across = min(_MOST_ACROSS, len(contexts))
    down = math.ceil(len(contexts) / across)
    width = COLUMN if across == 1 else 2.1 * COLUMN
    figure = Figure(figsize=(width, 2.1 * down + 0.3), layout="constrained")
    panels = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for panel in panels[len(contexts) :]:
        panel.remove()
    handles: dict[str, Any] = {}
    for i, (panel, context) in enumerate(zip(panels, contexts, strict=False)):
        draw_curves(panel, drawing, context, full=full, words=i == 0)
        panel.set_title(context)
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):  # not every panel has every model
            handles.setdefault(label, handle)
    for panel in panels[: len(contexts) : across]:
        panel.set_ylabel(f"{drawing.title} score")
    names = [m for m in drawing.models if m in handles]
    fit = int(width / (0.5 + 0.06 * max(map(len, names))))
    figure.legend([handles[m] for m in names], names, loc="outside lower center", ncols=max(1, min(4, len(names), fit)))
    return figure


def context_figure(drawing: Drawing, context: str, *, full: bool = False) -> Figure:
    """For the report: the curves of one context. The page writes the context and the legend (`key_figure`) beside it.

    The markers of curve i are in the SVG groups `curve-i` (filled) and `few-i` (hollow), so that the report can add
    what a reader sees on hovering, and where a click leads.
    """
    from matplotlib.figure import Figure

    width, height = SCREEN_SIZE
    figure = Figure(figsize=(width * PX, height * PX))
    panel = figure.subplots()
    below = 72 if len(_counts(drawing, drawing.under(context))) > 1 else 54
    figure.subplots_adjust(left=52 / width, right=1 - 10 / width, bottom=below / height, top=1 - 12 / height)
    draw_curves(panel, drawing, context, full=full, words=True)
    panel.set_ylabel("score")
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


def split(curve: Curve) -> tuple[list[int], list[int]]:
    """Positions of a curve's points with `FEW` samples per task or more, and of those with fewer."""
    few = [i for i, n in enumerate(curve.counts) if n < FEW]
    return [i for i in range(len(curve.lengths)) if i not in few], few


def _counts(drawing: Drawing, lines: Sequence[Curve]) -> dict[int, list[int]]:
    """The distinct sample counts per task over all lengths -> the lengths that have them."""
    found: dict[int, list[int]] = {}
    for n in drawing.lengths:
        for count in {c.counts[c.lengths.index(n)] for c in lines if n in c.lengths}:
            found.setdefault(count, []).append(n)
    return found


def draw_curves(panel: Axes, drawing: Drawing, context: str, *, full: bool = False, words: bool = True) -> None:
    """Draw the curves of one context on `panel`, over equally spaced lengths.

    Curves are shifted a little to the side, so that their intervals do not cover each other. Where lengths differ in
    their samples per task, the number stands below each length. `words`: name the threshold.
    """
    lines, lengths = drawing.under(context), drawing.lengths
    for i, curve in enumerate(lines):
        shift = (i - (len(lines) - 1) / 2) * 0.08
        at = np.array([lengths.index(n) + shift for n in curve.lengths])
        scores = np.array(curve.scores)
        full_points, few = split(curve)
        style = look(curve.model, drawing.models)
        bars = panel.errorbar(
            at,
            scores,
            yerr=np.maximum(0, [scores - curve.lows, np.array(curve.highs) - scores]),
            label=curve.model,
            **style._asdict(),
            markevery=full_points,
            clip_on=False,
            zorder=3,
        )
        bars.lines[0].set_gid(f"curve-{i}")
        if few:
            panel.plot(
                at[few], scores[few], color=style.color, marker=style.marker, linestyle="none", gid=f"few-{i}",
                markerfacecolor=PAGE, clip_on=False, zorder=3,
            )  # fmt: skip
    every = math.ceil(len(lengths) / _MOST_TICKS)
    counts = _counts(drawing, lines)
    several = len(counts) > 1

    def tick(length: int) -> str:
        own = sorted({c for c, at in counts.items() if length in at})
        return length_title(length) + (f"\nn={'/'.join(map(str, own))}" if several and own else "")

    panel.set_xticks(range(0, len(lengths), every), [tick(n) for n in lengths[::every]])
    low, high = drawing.limits(full)
    step = 20 if high - low > 50 else 10
    panel.set_yticks(range(math.ceil(low / step) * step, int(high) + 1, step))
    label = "length, tokens" + ("; n: samples per task" if several else "")
    panel.set(xlabel=label, ylim=(low, high), xlim=(-0.4, len(lengths) - 0.6))
    panel.grid(axis="y", clip_on=False)
    if drawing.threshold:
        panel.axhline(RULER_THRESHOLD, color=BAR, linestyle=(0, (2, 3)), linewidth=1, zorder=1)
        if words:
            panel.annotate(
                f"{RULER_THRESHOLD}: effective length", (0, RULER_THRESHOLD), (2, -3), va="top", color=BAR,
                xycoords=("axes fraction", "data"), textcoords="offset points", zorder=2,
            )  # fmt: skip
