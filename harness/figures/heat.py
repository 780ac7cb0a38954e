"""Heat maps: fields in rows and columns, the number in every field, the colour repeats it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.figures.colours import (
    DIFFERENCES,
    SCORES,
    Colour,
    difference_colour,
    hex_colour,
    score_colour,
    text_colour,
)
from harness.figures.style import COLUMN
from harness.tables.curves import Grid
from harness.tables.layout import length_title
from harness.text import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Field(NamedTuple):
    """One field of a heat map: its text and its colour; no colour where there is nothing to show."""

    text: str
    colour: Colour | None
    bold: bool = False


def largest_difference(grids: Iterable[Grid]) -> float:
    """The size of a difference at the ends of a scale that all `grids` share, points: the next ten, 10 at least."""
    sizes = [abs(float(v)) for grid in grids for v in grid.values.ravel() if not math.isnan(v)]
    return max(10.0, math.ceil(max(sizes, default=0.0) / 10) * 10.0)


def grid_fields(
    grid: Grid,
    *,
    difference: bool = False,
    decimals: int = 1,
    missing: str = "",
    largest: float | None = None,
    marks: Mapping[tuple[str, int], str] | None = None,
) -> list[list[Field]]:
    """A grid's fields, row by row: scores 0-100, or signed differences in points. `missing` stands for NaN.

    `largest`: the difference at the ends of the colour scale (default: of this grid alone). `marks`: (row, length in
    tokens) -> what follows the number where a difference is significant; such a field is bold.
    """
    largest = largest_difference([grid]) if largest is None else largest

    def field(value: float, row: str, column: int) -> Field:
        if math.isnan(value):
            return Field(missing, None)
        if not difference:
            return Field(f"{value:.{decimals}f}", score_colour(value))
        mark = (marks or {}).get((row, column), "")
        text = number_text(value, decimals, signed=True)
        return Field(text + mark, difference_colour(value, largest), bool(mark))

    return [
        [field(float(value), name, length) for value, length in zip(values, grid.columns, strict=True)]
        for values, name in zip(grid.values, grid.rows, strict=True)
    ]


def heat_figure(
    grid: Grid,
    *,
    difference: bool = False,
    largest: float | None = None,
    marks: Mapping[tuple[str, int], str] | None = None,
) -> Figure:
    """For a paper: task x length with a colour bar, one column wide. `largest`, `marks`: as `grid_fields` has them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, 0.85 + 0.19 * max(2, len(grid.rows))), layout="constrained")
    panel = figure.subplots()
    largest = largest_difference([grid]) if largest is None else largest
    fields = grid_fields(grid, difference=difference, largest=largest, marks=marks)
    draw_heat(panel, fields, grid.rows, [length_title(n) for n in grid.columns], fontsize=6.5)
    panel.set_title(grid.title)
    panel.set_xlabel("length, tokens")
    colours = [hex_colour(c) for c in (DIFFERENCES if difference else SCORES)]
    scale = LinearSegmentedColormap.from_list("scores", colours)
    ends = Normalize(-largest, largest) if difference else Normalize(0, 100)
    bar = figure.colorbar(ScalarMappable(ends, scale), ax=panel, pad=0.02, aspect=12)
    bar.set_label("difference, points" if difference else "score")
    bar.outline.set_visible(False)
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
