"""Score over training: one line per arm with 95% intervals, and the area between two arms shaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.figures.colours import RULE
from harness.figures.style import COLUMN, PX, look
from harness.store import Store
from harness.tables.frames import labels
from harness.tables.training import Training, Trainings
from harness.text import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_ACROSS = 3  # panels side by side
_PANEL = (300, 230)  # CSS pixels of a panel in the report


def contexts_of(found: Trainings) -> list[str]:
    """The context settings that have curves over training."""
    return list(dict.fromkeys(curve.context for curve in found.curves))


def training_figure(store: Store, found: Trainings, context: str, *, screen: bool = False) -> Figure:
    """A panel per score of one context, steps on the x axis; `screen`: in the sizes of the report, not of a paper."""
    from matplotlib.figure import Figure

    curves = [curve for curve in found.curves if curve.context == context]
    across = min(_MOST_ACROSS, len(curves))
    down = math.ceil(len(curves) / across)
    if screen:
        size = (across * _PANEL[0] * PX, (down * _PANEL[1] + 30) * PX)
    else:
        size = (COLUMN if across == 1 else 2.1 * COLUMN, 1.9 * down + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(curves) :]:
        panel.remove()
    rows = labels(store, "models")
    for panel, curve in zip(panels, curves, strict=False):
        _draw(panel, found, curve, rows)
    for panel in panels[: len(curves) : across]:
        panel.set_ylabel("score")
    handles: dict[str, Any] = {}
    for panel in panels[: len(curves)]:
        for handle, arm in zip(*panel.get_legend_handles_labels(), strict=True):  # not every panel has every arm
            handles.setdefault(arm, handle)
    names = [arm for arm in found.arms if arm in handles]
    figure.legend([handles[arm] for arm in names], names, loc="outside lower center", ncols=min(4, max(1, len(names))))
    return figure


def _draw(panel: Axes, found: Trainings, curve: Training, rows: Sequence[str]) -> None:
    """One score: the arms' curves, and between those of the compared pair the area."""
    span = (curve.steps[-1] - curve.steps[0]) or 1
    for i, arm in enumerate(found.arms):
        shift = (i - (len(found.arms) - 1) / 2) * 0.012 * span  # so that intervals do not cover each other
        own = sorted(curve.points.get(arm, {}).items())
        if not own:
            continue
        steps, values = np.array([step for step, _ in own]), np.array([value.value for _, value in own])
        ends = np.array([_ends(value.value, value.interval.low, value.interval.high) for _, value in own])
        panel.errorbar(
            steps + shift,
            values,
            yerr=np.maximum(0, [values - ends[:, 0], ends[:, 1] - values]),
            label=arm,
            **look(arm, rows)._asdict(),
            zorder=3,
        )
    title = curve.name
    if found.pair is not None and (area := curve.area) is not None:
        lower, upper = ([curve.points[arm][step].value for step in area.steps] for arm in found.pair)
        panel.fill_between(area.steps, lower, upper, color=RULE, linewidth=0, zorder=1)
        title += f"\nmean difference {number_text(area.value, 1, signed=True)}{area.mark}"
        if not math.isnan(area.low):
            low, high = (number_text(end, 1, signed=True) for end in (area.low, area.high))
            title += f" [{low}, {high}]"
    panel.set_title(title)
    panel.set_xlabel("training step")
    panel.set_xticks(_ticks(curve.steps), [_step(step) for step in _ticks(curve.steps)])
    panel.grid(axis="y")


def _ends(value: float, low: float, high: float) -> tuple[float, float]:
    """A score's interval on the scale of the score; the score itself where there is none."""
    return (value, value) if math.isnan(low) else (100 * low, 100 * high)


def _ticks(steps: list[int]) -> list[int]:
    """At most four of the steps, the first and the last among them."""
    if len(steps) <= 4:
        return steps
    return [steps[round(i * (len(steps) - 1) / 3)] for i in range(4)]


def _step(step: int) -> str:
    """1500 -> "1,500", 2000000 -> "2M", 150000 -> "150k"."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if step >= 10 * size and step % size == 0:
            return f"{step // size}{letter}"
    return f"{step:,}"


def described(found: Trainings, context: str) -> str:
    """The curves in words, for readers who cannot see them."""
    parts = []
    for curve in found.curves:
        if curve.context == context:
            arms = [
                f"{arm} " + ", ".join(f"step {step} {value.value:.1f}" for step, value in sorted(own.items()))
                for arm, own in curve.points.items()
            ]
            parts.append(f"{curve.name}: {'; '.join(arms)}")
    return f"Score over training, {context}. " + ". ".join(parts)
