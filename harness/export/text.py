"""A table as Markdown, HTML, CSV and JSON."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from harness.store.files import to_line
from harness.tables.layout import Column, Entry, Table
from harness.text import pad, width

SCHEMA = 1  # of the JSON export; docs/results.md describes it


# ------------------------------------------------------------------------------------------------------- Markdown


def markdown(table: Table, caption: Sequence[str]) -> str:
    """A pipe table whose columns line up as plain text too.

    Numbers are at the right, their parentheses in a column of their own, the best in bold; caption lines are a list.
    """
    columns = [_markdown_column(column, [row[c] for row in table.rows]) for c, column in enumerate(table.columns)]
    lines = ["| " + " | ".join(fields) + " |" for fields in zip(*columns, strict=True)]
    notes = [
        textwrap.fill(line, 118, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for line in caption
    ]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _markdown_column(column: Column, entries: list[Entry]) -> list[str]:
    title = _cell_text(column.name)
    if not column.numeric:
        texts = [_cell_text(e.number) for e in entries]
        size = max([3, width(title), *map(width, texts)])
        return [pad(title, size), "-" * size, *(pad(t, size) for t in texts)]
    heads = [f"**{e.number}**{e.marks}" if e.best else f"{e.number}{e.marks}" for e in entries]
    # Bold and plain digits line up: what precedes the digits and what follows them is padded to one width each.
    tails = [len(h) - len(h.rstrip("*▲▼†")) for h in heads]
    after = max(tails, default=0)
    heads = [h + " " * (after - t) for h, t in zip(heads, tails, strict=True)]
    size = max(map(width, heads), default=0)
    spread = max((width(e.spread_text) for e in entries), default=0)
    extra = max((width(e.change) for e in entries), default=0)
    texts = [
        pad(h, size, right=True)
        + (" " + pad(e.spread_text, spread, right=True) if spread else "")
        + (" " + pad(e.change, extra, right=True) if extra else "")
        for h, e in zip(heads, entries, strict=True)
    ]
    size = max([3, width(title), *map(width, texts)])
    return [pad(title, size, right=True), "-" * (size - 1) + ":", *(pad(t, size, right=True) for t in texts)]


def _cell_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


# ------------------------------------------------------------------------------------------------------- HTML

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; }
th[colspan] { text-align: center; }
th.text, td.text { text-align: left; }
thead tr:last-child th { border-bottom: 1px solid; }
table { border-top: 2px solid; border-bottom: 2px solid; }
tr.break td { border-top: 1px solid; }
.drop { opacity: .7; font-size: .9em; }
.caption { font-size: .9em; max-width: 60rem; }
"""


def html_table(table: Table) -> str:
    """The `<table>` element alone, for pages that embed it. Every text is escaped."""
    grouped = any(c.group for c in table.columns)
    out = ["<table>", "<thead>"]
    if grouped:
        cells = "".join(f'<th colspan="{span}">{html.escape(title)}</th>' for title, span in groups(table.columns))
        out.append(f"<tr>{cells}</tr>")
    out.append("<tr>" + "".join(f"<th{_css(c)}>{html.escape(c.title)}</th>" for c in table.columns) + "</tr></thead>")
    out.append("<tbody>")
    for r, row in enumerate(table.rows):
        cells = "".join(f"<td{_css(c)}>{_html_entry(e)}</td>" for c, e in zip(table.columns, row, strict=True))
        out.append(f"<tr{' class=break' if r in table.breaks else ''}>{cells}</tr>")
    return "\n".join([*out, "</tbody>", "</table>"])


def groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Neighbouring columns of one group: (title, how many)."""
    spans: list[tuple[str, int]] = []
    for column in columns:
        if spans and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return spans


def _css(column: Column) -> str:
    return "" if column.numeric else " class=text"


def _html_entry(entry: Entry) -> str:
    text = html.escape(entry.number)
    text = f"<b>{text}</b>" if entry.best else text
    if entry.interval is not None:
        low, high = entry.interval
        text = f'<span title="95% interval {low:.2f} to {high:.2f}">{text}</span>'
    drop = f' <span class="drop">{html.escape(entry.parenthesis)}</span>' if entry.parenthesis else ""
    return text + (f"<sup>{html.escape(entry.marks)}</sup>" if entry.marks else "") + drop


def html_page(table: Table, caption: Sequence[str]) -> str:
    """A whole page: no script, no file or address that it loads, readable in light and dark."""
    notes = "".join(f"<li>{html.escape(line)}</li>" for line in caption)
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(table.title)}</title><style>{STYLE}</style></head><body>\n<h1>{html.escape(table.title)}</h1>\n"
        f"<div class=scroll>{html_table(table)}</div>\n<ul class=caption>{notes}</ul>\n</body></html>\n"
    )


# ------------------------------------------------------------------------------------------------------- data


def csv(frame: pd.DataFrame) -> str:
    """The tidy frame: what is missing is an empty field, never a zero, a length too; floats have four decimals."""
    rounded = frame.copy()
    if "length" in rounded:
        rounded["length"] = rounded["length"].astype("Int64").mask(rounded["length"] == 0)
    for column in rounded.columns:
        if pd.api.types.is_float_dtype(rounded[column]):
            rounded[column] = rounded[column].round(4)
    return rounded.to_csv(index=False, lineterminator="\n")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The frame as dicts for JSON, NaN and NA as None."""
    rows = frame.to_dict("records")
    return [{str(k): None if v is pd.NA or v != v else v for k, v in row.items()} for row in rows]


def sample_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of `harness.tables.frames.sample_rows` as JSON lines. Every line has every key; a score it lacks is null."""
    found = list(rows)
    keys = dict.fromkeys(key for row in found for key in row)
    ordered = sorted(keys, key=lambda key: key.startswith("score:"))  # stable: scores last
    return b"".join(to_line({key: row.get(key) for key in ordered}) for row in found).decode()


def to_json(table: Table, caption: Sequence[str]) -> str:
    """The table and its tidy cells; the schema is in docs/results.md."""
    rows = []
    for row in table.rows:
        fields: dict[str, Any] = {}
        for column, entry in zip(table.columns, row, strict=True):
            if not column.numeric:
                fields[column.title] = entry.number
                continue
            fields[column.name] = {
                "value": entry.value,
                "interval": entry.interval,
                "interval_clustered": entry.clustered,
                **({} if entry.samples is None else {"samples": entry.samples}),
                "change": entry.drop,
                "marks": entry.marks,
                "best": entry.best,
                **({"spread": entry.spread, "checkpoints": list(entry.checkpoints)} if entry.checkpoints else {}),
            }
        rows.append(fields)
    return (
        json.dumps(
            {
                "schema": SCHEMA,
                "style": table.style,
                "run": table.title,
                "columns": [
                    {"name": c.name, "title": c.title, "group": c.group, "score": c.numeric} for c in table.columns
                ],
                "rows": rows,
                "cells": records(table.frame),
                "caption": list(caption),
                "missing": table.missing,
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )
