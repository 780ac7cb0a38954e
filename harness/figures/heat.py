"""Heat maps: fields in rows and columns, the number in every field, the colour repeats it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.figures.colours import Colour, difference_colour, hex_colour, score_colour, text_colour
from harness.figures.style import COLUMN
from harness.tables.curves import Grid
from harness.tables.layout import length_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Field(NamedTuple):
    """One field of a heat map: its text and its colour; no colour where there is nothing to show."""

    text: str
    colour: Colour | None
    bold: bool = False


def grid_fields(grid: Grid, *, difference: bool = False, decimals: int = 1, missing: str = "") -> list[list[Field]]:
    """A grid's fields, row by row: scores 0-100, or signed differences in points. `missing` stands for NaN."""
    sizes = [abs(float(v)) for v in grid.values.ravel() if not math.isnan(v)]
    largest = max([10.0, *sizes])  # differences below 10 points stay pale

    def field(value: float) -> Field:
        if math.isnan(value):
            return Field(missing, None)
        if difference:
            return Field(f"{value:+.{decimals}f}", difference_colour(value, largest))
        return Field(f"{value:.{decimals}f}", score_colour(value))

    return [[field(float(value)) for value in row] for row in grid.values]


def heat_figure(grid: Grid, *, difference: bool = False) -> Figure:
    """For a paper: task x length, one column wide."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, 0.6 + 0.19 * len(grid.rows)), layout="constrained")
    panel = figure.subplots()
    fields = grid_fields(grid, difference=difference)
    draw_heat(panel, fields, grid.rows, [length_title(n) for n in grid.columns], fontsize=6.5)
    panel.set_title(grid.title)
    return figure


def draw_heat(
    panel: Axes, fields: Sequence[Sequence[Field]], rows: Sequence[str], columns: Sequence[str], *, fontsize: float
) -> None:
    """Draw a heat map that fills `panel`; the first row is at the top."""
    from matplotlib.patches import Rectangle

    for i, row in enumerate(fields):
        for j, (text, colour, bold) in enumerate(row):
            if colour is None:
                continue
            panel.add_patch(Rectangle((j - 0.48, i - 0.46), 0.96, 0.92, facecolor=hex_colour(colour), linewidth=0))
            panel.text(
                j,
                i,
                text,
                ha="center",
                va="center_baseline",
                fontsize=fontsize,
                color=text_colour(colour),
                fontweight="bold" if bold else "normal",
            )
    panel.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    panel.set_xticks(range(len(columns)), columns)
    panel.set_yticks(range(len(rows)), rows)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
