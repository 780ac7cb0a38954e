"""A table as LaTeX: booktabs rules, siunitx columns, the protocol as notes (threeparttable). pdflatex compiles it.

A table that is wider than a page's text becomes several tabulars below one another, each with the labels of its rows.
What does not fit on a page goes into further tables.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from harness.export.text import groups
from harness.tables.layout import Column, Entry, Table
from harness.text import MINUS, width

PACKAGES = ("booktabs", "siunitx", "amssymb", "threeparttable")
TEXT_WIDTH = 330.0  # points: what LaTeX's article has at 10pt (345), less a reserve; other classes are wider
TEXT_HEIGHT = 500.0  # points of a page for tabulars and notes: the same class, less the caption
_ROW, _INTERVAL_ROW, _HEAD = 9.8, 17.5, 45.0  # points: heights of a row, of one with its interval, of head and rules
_NOTE_LINE = 8.0  # points: height of a line of notes
_LETTER, _SMALL = 4.25, 3.5  # points: widths of a digit at 8pt (\\footnotesize) and at 7pt (\\scriptsize)
_GAP = 8.0  # points between two columns
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "ß": r"\ss{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"\ensuremath{\pm}",
    "\N{EN DASH}": "--",
    "\N{MINUS SIGN}": r"\ensuremath{-}",
    "▲": r"\ensuremath{\blacktriangle}",
    "▼": r"\ensuremath{\blacktriangledown}",
    "†": r"\dag{}",
    '"': "''",
    "·": r"\ensuremath{\cdot}",
    "\N{MULTIPLICATION SIGN}": r"\ensuremath{\times}",
    "→": r"\ensuremath{\rightarrow}",
}


def escape(text: str) -> str:
    """Plain text for LaTeX, with glyphs that pdflatex's default fonts have.

    Accents of Latin letters are kept where those fonts have them and dropped elsewhere; other scripts become "?".
    Brackets and stars are braced: at the start of a row LaTeX would read them as an argument of the line break above.
    """
    return "".join(map(_character, text)).replace("\n", " ")


def _character(c: str) -> str:
    if c in _SPECIAL:
        return _SPECIAL[c]
    if c.isascii():
        return c if c.isprintable() else " "
    plain = "".join(
        d for d in unicodedata.normalize("NFKD", c).replace("\u2044", "/") if d.isascii() and d.isprintable()
    )
    if "\u00c0" <= c <= "\u00ff" and plain:
        return c
    return "".join(_SPECIAL.get(d, d) for d in plain) or "?"


@dataclass(frozen=True)
class _Shape:
    """A column in LaTeX: its specification, how many LaTeX columns it takes, and its estimated width in points."""

    spec: str
    span: int
    points: float


def latex(table: Table, caption: Sequence[str], *, standalone: bool = False) -> str:
    """One or more table environments (their preamble in a comment above), or a whole document with `standalone`.

    The table's headline is the caption, the lines of `caption` are the notes. Every score column is a siunitx S column
    for the digits and a narrow one for marks and the change in parentheses, so that digits line up whether bold or not.
    95% intervals stand below their scores.
    """
    shapes = [_shape(column, [row[c] for row in table.rows]) for c, column in enumerate(table.columns)]
    notes = [line if line.endswith((".", "!", "?")) else f"{line}." for line in caption]
    parts = _column_parts(table.columns, shapes)
    narrowest = min(sum(shapes[c].points for c in part) for part in parts)  # notes are as wide as their tabulars
    beneath = sum(len(note) + 4 for note in notes) * _SMALL / narrowest * _NOTE_LINE
    pages = _pages(table, parts, beneath)
    environments = []
    for number, page in enumerate(pages):
        tabulars = [_tabular(table, rows, part, shapes) for rows, part in page]
        last = number == len(pages) - 1
        escaped = [escape(note) for note in notes] if last else []
        environments.append(_environment(table, tabulars, escaped, continued=number > 0))
    preamble = [rf"\usepackage{{{package}}}" for package in PACKAGES]
    if not standalone:
        return "\n".join(["% needs in the preamble:", *(f"% {line}" for line in preamble), *environments]) + "\n"
    return (
        "\n".join(
            [
                r"\documentclass{article}",
                r"\usepackage[utf8]{inputenc}",
                r"\usepackage[T1]{fontenc}",
                *preamble,
                r"\begin{document}",
                *environments,
                r"\end{document}",
            ]
        )
        + "\n"
    )


def _environment(table: Table, tabulars: list[str], notes: list[str], *, continued: bool) -> str:
    """One table environment: caption, label, tabulars, notes."""
    headline = escape(table.headline or table.title)
    if continued:
        headline = f"{headline.removesuffix('.')} (continued)."
    # threeparttable takes the width of the notes from one tabular: several go into an outer one.
    joined = "\n\\\\\\addlinespace[2ex]\n".join(tabulars)
    body = joined if len(tabulars) == 1 else f"\\begin{{tabular}}{{@{{}}l@{{}}}}\n{joined}\n\\end{{tabular}}"
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            r"\footnotesize",
            r"\setlength{\tabcolsep}{4pt}",
            r"\begin{threeparttable}",
            *([r"\addtocounter{table}{-1}"] if continued else []),
            rf"\caption{{{headline}}}",
            *([rf"\label{{{table.label}}}"] if table.label and not continued else []),
            body,
            *([r"\begin{tablenotes}[para,flushleft]", r"\scriptsize"] if notes else []),
            *(rf"\item {note}" for note in notes),
            *([r"\end{tablenotes}"] if notes else []),
            r"\end{threeparttable}",
            r"\end{table}",
        ]
    )


# ------------------------------------------------------------------------------------------------- parts of a table


def _pages(table: Table, parts: list[list[int]], notes: float) -> list[list[tuple[range, list[int]]]]:
    """Which tabulars (their rows and columns) stand on each page. The last one has room for `notes` points of notes."""
    tall = any(e.note is not None for row in table.rows for e in row)
    row = _INTERVAL_ROW if tall else _ROW
    room = TEXT_HEIGHT - notes
    pages: list[list[tuple[range, list[int]]]] = [[]]
    ranges = _row_ranges(table, max(8, int((room - _HEAD) / row)))
    for rows, part in reversed([(rows, part) for rows in ranges for part in parts]):
        needed = _HEAD + row * len(rows)
        if needed > room and pages[0]:
            pages.insert(0, [])
            room = TEXT_HEIGHT
        pages[0].insert(0, (rows, part))
        room -= needed
    return pages


def _row_ranges(table: Table, most: int) -> list[range]:
    """Row numbers in ranges of at most `most`, which end where a section ends if possible."""
    ranges, start, end = [], 0, len(table.rows)
    while end - start > most:
        cut = max((b for b in table.breaks if start < b <= start + most), default=start + most)
        ranges.append(range(start, cut))
        start = cut
    return [*ranges, range(start, end)]


def _column_parts(columns: Sequence[Column], shapes: Sequence[_Shape]) -> list[list[int]]:
    """Column numbers of every tabular. Text columns that begin the table are in each; groups stay whole if they fit."""
    labels = next((c for c, column in enumerate(columns) if column.numeric), len(columns))
    room = max(TEXT_WIDTH - sum(s.points for s in shapes[:labels]), max((s.points for s in shapes[labels:]), default=0))
    parts: list[list[int]] = [[]]
    left = room
    at = labels
    for _, count in groups(columns[labels:]):
        for block in _blocks(list(range(at, at + count)), shapes, room):
            needed = sum(shapes[c].points for c in block)
            if needed > left and parts[-1]:
                parts.append([])
                left = room
            parts[-1] += block
            left -= needed
        at += count
    return [[*range(labels), *part] for part in parts]


def _blocks(numbers: list[int], shapes: Sequence[_Shape], room: float) -> list[list[int]]:
    """The columns of a group as one block, or as few blocks of like size that fit."""
    for count in range(1, len(numbers) + 1):
        size = -(-len(numbers) // count)
        blocks = [numbers[i : i + size] for i in range(0, len(numbers), size)]
        if all(sum(shapes[c].points for c in block) <= room for block in blocks):
            return blocks
    return [[number] for number in numbers]


# ------------------------------------------------------------------------------------------------- one tabular


def _tabular(table: Table, rows: range, part: list[int], shapes: Sequence[_Shape]) -> str:
    columns, shapes = [table.columns[c] for c in part], [shapes[c] for c in part]
    lines = []
    for r in rows:
        entries = [table.rows[r][c] for c in part]
        if r in table.breaks and r > rows.start:
            lines.append(r"\midrule")
        fields = [_entry(*three) for three in zip(entries, shapes, columns, strict=True)]
        below = [rf"\scriptsize {escape(e.note)}" if e.note is not None else "" for e in entries]
        if any(below):
            lines.append(" & ".join(fields) + r" \\[-0.5ex]")
            fields = [
                rf"\multicolumn{{{s.span}}}{{{'c' if c.numeric else 'l'}}}{{{text}}}"
                for text, s, c in zip(below, shapes, columns, strict=True)
            ]
        lines.append(" & ".join(fields) + r" \\")
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{''.join(s.spec for s in shapes)}}}",
            r"\toprule",
            *_header(columns, shapes),
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _shape(column: Column, entries: list[Entry]) -> _Shape:
    title = width(column.title) * _LETTER
    if not column.numeric:
        return _Shape("l", 1, max([title, *(width(e.number) * _LETTER for e in entries)]) + _GAP)
    numbers = [m for e in entries if (m := re.fullmatch(rf"([+{MINUS}]?)(\d+)(?:\.(\d+))?", e.number))]
    whole = max((len(m[2]) for m in numbers), default=2)
    decimals = max((len(m[3] or "") for m in numbers), default=2)
    signs = {m[1] for m in numbers}
    sign = "+" if "+" in signs else "-" if MINUS in signs else ""
    sides = [width(e.marks) + width(e.beside) for e in entries]
    digits = (len(sign) + whole + decimals) * _LETTER + (_LETTER if decimals else 0)
    below = max((width(e.note or "") for e in entries), default=0) * _SMALL
    texts = max((width(e.number) for e in entries), default=0) * _LETTER
    spec = f"S[table-format={sign}{whole}.{decimals},detect-weight]"
    if max(sides, default=0) == 0:
        return _Shape(spec, 1, max(title, digits, below, texts) + _GAP)
    return _Shape(rf"{spec}@{{\,}}l", 2, max(title, max(digits, texts) + max(sides) * _SMALL + 1.5, below) + _GAP)


def _header(columns: list[Column], shapes: list[_Shape]) -> list[str]:
    titles = [
        rf"\multicolumn{{{shape.span}}}{{{'c' if column.numeric else 'l'}}}{{{escape(column.title)}}}"
        for column, shape in zip(columns, shapes, strict=True)
    ]
    lines = []
    if any(c.group for c in columns):
        above, rules, at, position = [], [], 0, 1
        for title, count in groups(columns):
            span = sum(s.span for s in shapes[at : at + count])
            above.append(rf"\multicolumn{{{span}}}{{c}}{{{escape(title)}}}")
            if title:
                rules.append(rf"\cmidrule(lr){{{position}-{position + span - 1}}}")
            at, position = at + count, position + span
        lines += [" & ".join(above) + r" \\", "".join(rules)]
    return [*lines, " & ".join(titles) + r" \\"]


def _entry(entry: Entry, shape: _Shape, column: Column) -> str:
    text = escape(entry.number)
    if column.numeric:
        number = entry.number.replace(MINUS, "-")  # siunitx sets it as a minus
        numeric = re.fullmatch(r"[+-]?\d+(\.\d+)?", number)
        text = f"{{{text}}}" if not numeric else rf"\bfseries {number}" if entry.best else number
    if shape.span == 1:
        return text
    marks = rf"\textsuperscript{{{escape(entry.marks)}}}" if entry.marks else ""
    drop = rf"{{\scriptsize {escape(entry.beside)}}}" if entry.beside else ""
    return f"{text} & {marks}{drop}"
