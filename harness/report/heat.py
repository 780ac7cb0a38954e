"""Heat maps as HTML tables: the number stands in every field, the colour repeats it, a link leads to its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from markupsafe import Markup

from harness.figures.colours import DIFFERENCES, SCORES, blend, hex_colour, text_colour
from harness.figures.heat import grid_fields
from harness.report.html import render
from harness.tables.curves import Grid
from harness.tables.layout import DASH, length_title


def heat_table(
    grid: Grid,
    *,
    difference: bool = False,
    decimals: int = 1,
    largest: float | None = None,
    marks: Mapping[tuple[str, int], str] | None = None,
    link: Callable[[str, int], str] | None = None,
    fold: bool = False,
) -> Markup:
    """A grid as a table with a caption and a colour per field; a field without a score is a dash without a colour.

    `largest`, `marks`: as `harness.figures.heat.grid_fields` has them. `link`: (row, length) -> address of a field's
    samples. `fold`: rows that are 100 or a dash in every field become one line below the table.
    """
    fields = grid_fields(grid, difference=difference, decimals=decimals, missing=DASH, largest=largest, marks=marks)
    links = [[link(name, n) if link else "" for n in grid.columns] for name in grid.rows]
    kinds = [_kind(row) if fold else "" for row in grid.values]
    rows = [
        (name, list(zip(row, counts, addresses, strict=True)))
        for name, row, counts, addresses, kind in zip(
            grid.rows, fields, grid.counts.tolist(), links, kinds, strict=True
        )
        if not kind
    ]
    folded = [(kind, [n for n, k in zip(grid.rows, kinds, strict=True) if k == kind]) for kind in ("100", DASH)]
    columns = list(zip(map(length_title, grid.columns), _unequal_counts(grid), strict=True))
    return render(
        "heat",
        title=grid.title,
        columns=columns,
        rows=rows,
        folded=[(kind, _merged(names)) for kind, names in folded if names],
        hex_colour=hex_colour,
        text_colour=text_colour,
    )


def legend(*, largest: float | None = None) -> Markup:
    """The colour scale in words and colours: scores 0-100, or differences to `largest` points."""
    steps = [-1.0, -0.5, 0.0, 0.5, 1.0] if largest is not None else [0.0, 0.25, 0.5, 0.75, 1.0]
    swatches = []
    for step in steps:
        if largest is None:
            colour, text = blend(SCORES, step), f"{100 * step:.0f}"
        else:
            colour = blend(DIFFERENCES, (step + 1) / 2)
            text = f"{step * largest:+.0f}".replace("-", "\N{MINUS SIGN}").replace("+0", "0")
        swatches.append((hex_colour(colour), text_colour(colour), text))
    return render("legend", swatches=swatches, difference=largest is not None)


def _kind(row: np.ndarray) -> str:
    """ "100" where every field of the row is 100, a dash where none has a score, else nothing."""
    values = [float(v) for v in row if not math.isnan(v)]
    if not values:
        return DASH
    return "100" if all(v == 100 for v in values) else ""


def _merged(names: list[str]) -> list[str]:
    """Row names, where depths that follow each other (0 to 10%, 10 to 20%) are one span; other names stay."""
    spans: list[tuple[str, str]] = []
    for name in names:
        first, dash, last = name.partition(DASH)
        if not dash or not last.endswith("%"):
            return names
        if spans and spans[-1][1] == f"{first}%":
            first = spans.pop()[0]
        spans.append((first, last))
    return [f"{first}{DASH}{last}" for first, last in spans]


def _unequal_counts(grid: Grid) -> list[int | None]:
    """Samples behind the fields of each column where columns differ in them: a field of 5 weighs less than one of 100.

    None for every column where all columns have the same number, or where the fields of one column differ.
    """
    distinct = [{int(n) for n in column if n} for column in grid.counts.T]
    counts = [c.pop() if len(c) == 1 else None for c in distinct]
    return counts if None not in counts and len(set(counts)) > 1 else [None] * len(counts)
