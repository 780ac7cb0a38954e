"""A run -> Markdown, LaTeX, CSV, JSON, HTML, lm-eval's results JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness.export import text
from harness.export.latex import latex
from harness.export.lm_eval import lm_eval_results
from harness.store import Store
from harness.tables import Table, delta_table, samples_frame, table5, tasks_table
from harness.tables.reference import load_reference
from harness.types import GatedevalError

Style = Literal["table5", "tasks", "delta", "samples", "lm_eval"]
Format = Literal["md", "latex", "csv", "json", "html"]
STYLES = ("table5", "tasks", "delta", "samples", "lm_eval")
FORMATS = ("md", "latex", "csv", "json", "html")


def render(table: Table, fmt: str, caption: Sequence[str] | None = None, *, standalone: bool = False) -> str:
    """A table as text. `caption`: lines beneath it, by default the table's; `standalone`: a whole LaTeX document."""
    lines = table.caption if caption is None else list(caption)
    if fmt == "md":
        return text.markdown(table, lines)
    if fmt == "latex":
        return latex(table, lines, standalone=standalone)
    if fmt == "csv":
        return text.csv(table.frame)
    if fmt == "json":
        return text.to_json(table, lines)
    if fmt == "html":
        return text.html_page(table, lines)
    raise GatedevalError(f"unknown format {fmt!r}; choose one of {', '.join(FORMATS)}")


def export_run(
    path: Path | str,
    style: str = "table5",
    fmt: str = "md",
    *,
    reference: str | None = None,
    baseline: str | None = None,
    candidate: str | None = None,
    allow_partial: bool = False,
    standalone: bool = False,
    model: str | None = None,
    context: str | None = None,
    intervals: bool = False,
) -> str:
    """The run at `path` as text. Raises GatedevalError for what the run cannot give.

    `reference`: "paper", or a CSV file (table5 only). `baseline`, `candidate`: labels of the models to compare
    (table5: whom the marks are against; delta: both). `model`, `context`: whose numbers (lm_eval only). `intervals`:
    95% intervals instead of changes (table5 only). What is missing stands in the caption; for CSV, which has none, on
    stderr.
    """
    if style not in STYLES:
        raise GatedevalError(f"unknown style {style!r}; choose one of {', '.join(STYLES)}")
    if fmt not in FORMATS:
        raise GatedevalError(f"unknown format {fmt!r}; choose one of {', '.join(FORMATS)}")
    if reference is not None and style != "table5":
        raise GatedevalError(f"--reference goes with --style table5, not with {style}")
    if intervals and style != "table5":
        raise GatedevalError(f"--intervals goes with --style table5, not with {style}")
    store = Store.read(Path(path))
    if style == "samples":
        return _samples(store, fmt)
    if style == "lm_eval":
        if fmt not in ("md", "json"):  # md is the default of the command line: a style with one format takes it
            raise GatedevalError(f"--style lm_eval is lm-eval's results JSON: use --format json, not {fmt}")
        return lm_eval_results(store, model, context)
    if style == "table5":
        table = table5(
            store,
            allow_partial=allow_partial,
            baseline=baseline,
            reference=None if reference is None else load_reference(reference),
            intervals=intervals,
        )
    elif style == "tasks":
        table = tasks_table(store)
    else:
        table = delta_table(store, baseline, candidate)
    if fmt == "csv":
        for line in table.missing:
            print(line, file=sys.stderr)
    return render(table, fmt, standalone=standalone)


def _samples(store: Store, fmt: str) -> str:
    if fmt not in ("csv", "json"):
        raise GatedevalError(f"--style samples is one line a sample, for programs: use --format csv or json, not {fmt}")
    frame = samples_frame(store)
    if fmt == "csv":
        return text.csv(frame)
    return "".join(line + "\n" for line in frame.to_json(orient="records", lines=True, force_ascii=False).splitlines())


__all__ = ["FORMATS", "STYLES", "export_run", "render"]
