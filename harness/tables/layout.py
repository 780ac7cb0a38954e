"""A table as data: columns, entries, captions and the tidy frame behind it. No formatting beyond a number's text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pandas as pd

from harness.text import number_text

DASH = "\N{EN DASH}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its title, and the group whose title spans it and its neighbours of the same group."""

    title: str
    group: str = ""
    short: str = ""  # title and group in one, where a header has one line
    numeric: bool = True
    lower_is_better: bool = False
    plain: bool = False  # not a score (a count, a p-value): never bold

    @property
    def name(self) -> str:
        """The title where a header has one line; unique in a table."""
        return self.short or " ".join(part for part in (self.group, self.title) if part)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One field of a table. With neither `value` nor `text` it is a dash: there is no number, which is not zero."""

    value: float | None = None
    drop: float | None = None  # against the same model's un-extended row
    marks: str = ""  # "▲" and "▼" significant, "†" partial
    best: bool = False
    interval: tuple[float, float] | None = None  # 95%, unit of the value
    clustered: tuple[float, float] | None = None  # the same with tasks (MMLU's subjects) as clusters
    samples: int | None = None  # how many the value is over, where they came in rounds
    note: str | None = None  # shown instead of the drop
    checkpoints: tuple[float, ...] = ()  # of an arm: the number of each of its checkpoints, unit of the value
    text: str | None = None
    decimals: int = 2
    signed: bool = False

    @property
    def number(self) -> str:
        """The value with its decimals, or the text, or a dash. A perplexity of a million or more is 4.20e11."""
        if self.text is not None:
            return self.text
        if self.value is None:
            return DASH
        if self.decimals and 1e6 <= self.value < math.inf:
            return f"{self.value:.2e}".replace("+", "")
        return number_text(self.value, self.decimals, signed=self.signed)

    @property
    def change(self) -> str:
        """The note, else the drop as "(−6.0)" with one decimal at most, or nothing."""
        if self.note is not None:
            return self.note
        return "" if self.drop is None else f"({number_text(self.drop, min(1, self.decimals), signed=True)})"

    @property
    def parenthesis(self) -> str:
        """All that stands beside the number: an arm's spread, then the note or the drop."""
        return f"{self.spread_text} {self.change}".strip()

    @property
    def beside(self) -> str:
        """The same, where a note has a place of its own."""
        return self.parenthesis if self.note is None else self.spread_text

    @property
    def spread(self) -> float | None:
        """The standard deviation between an arm's checkpoints; None for fewer than two."""
        return statistics.stdev(self.checkpoints) if len(self.checkpoints) > 1 else None

    @property
    def spread_text(self) -> str:
        """ "±1.25" with the decimals of the value, or nothing."""
        return "" if self.spread is None else f"±{number_text(self.spread, self.decimals)}"


@dataclass(kw_only=True)
class Table:
    """What `harness.export` renders.

    `rows`: entries, as many as `columns`. `breaks`: row numbers before which a rule separates sections. `headline`:
    what the table shows, in a sentence. `caption`: lines beneath. `missing`: what the run lacks, in words. `label`: for
    LaTeX. `frame`: the tidy form, one row per cell, computed at the first access: its intervals take longer than the
    table.
    """

    style: str
    title: str
    columns: list[Column]
    rows: list[list[Entry]]
    make_frame: Callable[[], pd.DataFrame]
    breaks: set[int] = field(default_factory=set)
    caption: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    headline: str = ""
    label: str | None = None

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The tidy frame behind the table."""
        return self.make_frame()


def length_title(length: int) -> str:
    """4096 -> "4K", 131072 -> "128K", 1048576 -> "1M"; a length that is no multiple of 1024 stays a number."""
    if length >= 1 << 20 and length % (1 << 20) == 0:
        return f"{length >> 20}M"
    return f"{length >> 10}K" if length >= 1024 and length % 1024 == 0 else str(length)


def mark_best(
    rows: list[list[Entry]], columns: list[Column], groups: Sequence[object] | None = None
) -> list[list[Entry]]:
    """Set `best` on every column's best score within each group of rows, as printed: equal digits are equal.

    `groups`: what each row belongs to (its context setting); None: all rows are one group. A score without a rival, and
    a best score that more than half of the group's rows share, are not marked.
    """
    marked = [list(row) for row in rows]
    keys = list(groups) if groups is not None else [None] * len(rows)
    for c, column in enumerate(columns):
        if not column.numeric or column.plain:
            continue
        for key in dict.fromkeys(keys):
            shown = {
                r: round(value, row[c].decimals)
                for r, row in enumerate(rows)
                if keys[r] == key and (value := row[c].value) is not None and row[c].text is None
            }
            if len(shown) < 2:
                continue
            best = min(shown.values()) if column.lower_is_better else max(shown.values())
            winners = [r for r, value in shown.items() if value == best]
            if len(winners) * 2 <= len(shown):
                for r in winners:
                    marked[r][c] = replace(marked[r][c], best=True)
    return marked
