"""A table as LaTeX: booktabs rules, siunitx columns. Compiles with pdflatex as it is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from harness.export.text import groups
from harness.tables.layout import Column, Entry, Table

PACKAGES = ("booktabs", "siunitx", "amssymb", "graphicx")
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


def latex(table: Table, caption: Sequence[str], *, standalone: bool = False) -> str:
    """A table environment (its preamble in a comment above), or a whole document with `standalone`.

    Every score column is a siunitx S column for the digits and a narrow one for marks and the change in parentheses, so
    that digits line up whether bold or not. Wider than the text, the table is scaled down to it.
    """
    shapes = [_shape(column, [row[c] for row in table.rows]) for c, column in enumerate(table.columns)]
    spec = "".join(spec for spec, _ in shapes)
    rows = []
    for r, row in enumerate(table.rows):
        fields = [_entry(e, *shape, column) for e, shape, column in zip(row, shapes, table.columns, strict=True)]
        rows.append((r"\midrule" + "\n" if r in table.breaks else "") + " & ".join(fields) + r" \\")
    body = "\n".join(
        [
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            *_header(table.columns, shapes),
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )
    notes = " ".join(escape(line) for line in caption)
    environment = "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            r"\small",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            body + "%",
            "}",
            *([rf"\caption{{{notes}}}"] if notes else []),
            *([rf"\label{{{table.label}}}"] if table.label else []),
            r"\end{table}",
        ]
    )
    preamble = [rf"\usepackage{{{package}}}" for package in PACKAGES]
    if not standalone:
        return "\n".join(["% needs in the preamble:", *(f"% {line}" for line in preamble), environment]) + "\n"
    return (
        "\n".join(
            [
                r"\documentclass{article}",
                r"\usepackage[utf8]{inputenc}",
                r"\usepackage[T1]{fontenc}",
                r"\usepackage[margin=2cm]{geometry}",
                *preamble,
                r"\begin{document}",
                environment,
                r"\end{document}",
            ]
        )
        + "\n"
    )


def _shape(column: Column, entries: list[Entry]) -> tuple[str, int]:
    """A column's specification, and how many LaTeX columns it takes."""
    if not column.numeric:
        return "l", 1
    numbers = [m for e in entries if (m := re.fullmatch(r"([+-]?)(\d+)(?:\.(\d+))?", e.number))]
    whole = max((len(m[2]) for m in numbers), default=2)
    decimals = max((len(m[3] or "") for m in numbers), default=2)
    sign = "+" if any(m[1] for m in numbers) else ""
    side = any(e.marks or e.parenthesis for e in entries)
    return (rf"S[table-format={sign}{whole}.{decimals},detect-weight]" + (r"@{\,}l" if side else ""), 2 if side else 1)


def _header(columns: list[Column], shapes: list[tuple[str, int]]) -> list[str]:
    titles = [
        rf"\multicolumn{{{span}}}{{{'c' if column.numeric else 'l'}}}{{{escape(column.title)}}}"
        for column, (_, span) in zip(columns, shapes, strict=True)
    ]
    lines = []
    if any(c.group for c in columns):
        above, rules, at, position = [], [], 0, 1
        for title, count in groups(columns):
            span = sum(s for _, s in shapes[at : at + count])
            above.append(rf"\multicolumn{{{span}}}{{c}}{{{escape(title)}}}")
            if title:
                rules.append(rf"\cmidrule(lr){{{position}-{position + span - 1}}}")
            at, position = at + count, position + span
        lines += [" & ".join(above) + r" \\", "".join(rules)]
    return [*lines, " & ".join(titles) + r" \\"]


def _entry(entry: Entry, spec: str, span: int, column: Column) -> str:
    text = escape(entry.number)
    if column.numeric:
        numeric = re.fullmatch(r"[+-]?\d+(\.\d+)?", entry.number)
        text = f"{{{text}}}" if not numeric else rf"\bfseries {text}" if entry.best else text
    if span == 1:
        return text
    marks = rf"\textsuperscript{{{escape(entry.marks)}}}" if entry.marks else ""
    drop = rf"{{\scriptsize {escape(entry.parenthesis)}}}" if entry.parenthesis else ""
    return f"{text} & {marks}{drop}"
