"""Heat maps as HTML tables: the number stands in every field, the colour repeats it."""

from __future__ import annotations

import math
from html import escape

from harness.tables.curves import Grid
from harness.tables.layout import DASH, length_title

# Ends and middle of colour-blind-safe scales: cividis for scores, blue-white-orange for differences.
_SCORES = ((0, 34, 78), (65, 77, 107), (124, 123, 120), (188, 175, 111), (254, 232, 56))
_DIFFERENCES = ((33, 102, 172), (146, 197, 222), (247, 247, 247), (244, 165, 130), (178, 24, 43))


def blend(scale: tuple[tuple[int, int, int], ...], share: float) -> tuple[int, int, int]:
    """The colour at `share`, 0..1, along a scale."""
    place = min(1.0, max(0.0, share)) * (len(scale) - 1)
    i = min(int(place), len(scale) - 2)
    return tuple(round(a + (b - a) * (place - i)) for a, b in zip(scale[i], scale[i + 1], strict=True))  # type: ignore[return-value]


def ink(colour: tuple[int, int, int]) -> str:
    """Black or white, whichever stands out more on `colour` (WCAG relative luminance)."""
    channels = [(c / 255) / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return "#000" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "#fff"


def score_colour(score: float) -> tuple[int, int, int]:
    """The colour of a score, 0-100."""
    return blend(_SCORES, score / 100)


def _unequal_counts(grid: Grid) -> list[int | None]:
    """Samples behind each column's fields where columns differ in them: a field of 5 weighs less than one of 100."""
    counts = [{int(n) for n in column if n} for column in grid.counts.T]
    told = [c.pop() if len(c) == 1 else None for c in counts]
    return told if None not in told and len(set(told)) > 1 else [None] * len(told)


def heat_table(grid: Grid, *, difference: bool = False, decimals: int = 1) -> str:
    """A grid as a captioned table with a colour per field."""
    seen = [abs(v) for v in grid.values.ravel() if not math.isnan(v)]
    reach = max([10.0, *seen]) if difference else 100.0
    head = "".join(
        f'<th scope="col">{length_title(n)}{f"<small>n = {count}</small>" if count else ""}</th>'
        for n, count in zip(grid.columns, _unequal_counts(grid), strict=True)
    )
    out = [
        f'<table class="heat"><caption>{escape(grid.title)}</caption>',
        f"<thead><tr><th></th>{head}</tr></thead><tbody>",
    ]
    for i, name in enumerate(grid.rows):
        fields = []
        for value, count in zip(grid.values[i], grid.counts[i], strict=True):
            if math.isnan(value):
                fields.append(f"<td>{DASH}</td>")
                continue
            share = (value / reach + 1) / 2 if difference else value / reach
            colour = blend(_DIFFERENCES if difference else _SCORES, 1 - share if difference else share)
            fields.append(
                f'<td style="background:rgb{colour};color:{ink(colour)}" title="{count} samples">'
                f"{f'{value:+.{decimals}f}' if difference else f'{value:.{decimals}f}'}</td>"
            )
        out.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(fields)}</tr>')
    return "\n".join([*out, "</tbody></table>"])
