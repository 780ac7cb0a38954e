"""Heat maps as HTML tables: the number stands in every field, the colour repeats it."""

from __future__ import annotations

from markupsafe import Markup

from harness.figures.colours import hex_colour, text_colour
from harness.figures.heat import grid_fields
from harness.report.html import render
from harness.tables.curves import Grid
from harness.tables.layout import DASH, length_title


def heat_table(grid: Grid, *, difference: bool = False, decimals: int = 1) -> Markup:
    """A grid as a table with a caption and a colour per field; a field without a score is a dash without a colour."""
    fields = grid_fields(grid, difference=difference, decimals=decimals, missing=DASH)
    rows = [
        (name, list(zip(row, counts, strict=True)))
        for name, row, counts in zip(grid.rows, fields, grid.counts.tolist(), strict=True)
    ]
    columns = list(zip(map(length_title, grid.columns), _unequal_counts(grid), strict=True))
    return render("heat", title=grid.title, columns=columns, rows=rows, hex_colour=hex_colour, text_colour=text_colour)


def _unequal_counts(grid: Grid) -> list[int | None]:
    """Samples behind the fields of each column where columns differ in them: a field of 5 weighs less than one of 100.

    None for every column where all columns have the same number, or where the fields of one column differ.
    """
    distinct = [{int(n) for n in column if n} for column in grid.counts.T]
    counts = [c.pop() if len(c) == 1 else None for c in distinct]
    return counts if None not in counts and len(set(counts)) > 1 else [None] * len(counts)
