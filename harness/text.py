"""Plain text for readers: numbers with true minus signs, how wide a text is in a terminal, rows as aligned columns."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence

MINUS = "\N{MINUS SIGN}"


def number_text(value: float, decimals: int, *, signed: bool = False) -> str:
    """A number for readers: `decimals` digits, a true minus sign, and "+" too where `signed`. Programs get numbers."""
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.replace("-", MINUS)


def interval_text(low: float, high: float, decimals: int = 2) -> str:
    """The interval of a difference: "[−1.35, +2.69]"."""
    return f"[{number_text(low, decimals, signed=True)}, {number_text(high, decimals, signed=True)}]"


def width(text: str) -> int:
    """Columns that `text` takes in a terminal: wide characters count two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, size: int, *, right: bool = False) -> str:
    """`text` filled up with spaces to `size` columns; `right`: the text at the right end."""
    space = " " * (size - width(text))
    return space + text if right else text + space


def align(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), gap: str = "  ", rule: bool = False
) -> list[str]:
    """Rows as lines whose columns line up; no line ends in spaces.

    `right`: numbers of the columns that are aligned at their right end. `rule`: a line of dashes below the first row.
    Rows may be shorter than the longest one; they then end earlier.
    """
    sizes = [max(width(row[c]) for row in rows if c < len(row)) for c in range(max(map(len, rows), default=0))]
    lines = [gap.join(pad(text, sizes[c], right=c in right) for c, text in enumerate(row)).rstrip() for row in rows]
    if rule and lines:
        lines.insert(1, gap.join("-" * size for size in sizes))
    return lines
