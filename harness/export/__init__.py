"""A run -> Markdown, LaTeX, CSV, JSON, HTML, lm-eval's results JSON.

Functions import what they need when they are called, so that the command line can list styles and formats quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.types import GatedevalError

if TYPE_CHECKING:
    from harness.store import Store
    from harness.tables import Table

STYLES = ("table5", "tasks", "delta", "lengths", "samples", "lm_eval", "probe")
FORMATS = ("md", "latex", "csv", "json", "html")


def render(table: Table, fmt: str, caption: Sequence[str] | None = None, *, standalone: bool = False) -> str:
    """A table as text. `caption`: lines beneath it, by default the table's; `standalone`: a whole LaTeX document."""
    from harness.export import latex, text

    _check("format", fmt, FORMATS)
    lines = table.caption if caption is None else list(caption)
    if fmt == "csv":
        return text.csv(table.frame)
    if fmt == "latex":
        return latex.latex(table, lines, standalone=standalone)
    return {"md": text.markdown, "json": text.to_json, "html": text.html_page}[fmt](table, lines)


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
    """The run at `path` as text. Raises GatedevalError for what the run does not have, and for options that do not fit.

    `reference`: "paper", or a CSV file (table5 only). `baseline`, `candidate`: labels of the models to compare
    (table5: the model that the marks are against; delta: both). `model`, `context`: whose numbers (lm_eval only).
    `intervals`: 95% intervals instead of changes (table5 only). The caption says what is missing; CSV has no caption,
    so these lines go to stderr.
    """
    from harness.export.lm_eval import lm_eval_results
    from harness.store import Store
    from harness.tables import delta_table, lengths_table, table5, tasks_table
    from harness.tables.probe import probe_table
    from harness.tables.reference import load_reference

    _check("style", style, STYLES)
    _check("format", fmt, FORMATS)
    for option, given in (("--reference", reference is not None), ("--intervals", intervals)):
        if given and style != "table5":
            raise GatedevalError(f"{option} goes with --style table5, not with {style}")
    store = Store.read(Path(path))
    if style == "samples":
        return _samples(store, fmt)
    if style == "lm_eval":
        if fmt not in ("md", "json"):  # md is the default of the command line: a style with one format takes it
            raise GatedevalError(f"--style lm_eval is lm-eval's results JSON: use --format json, not {fmt}")
        return lm_eval_results(store, model, context)
    if style == "table5":
        published = None if reference is None else load_reference(reference)
        table = table5(store, allow_partial=allow_partial, baseline=baseline, reference=published, intervals=intervals)
    elif style == "tasks":
        table = tasks_table(store)
    elif style == "lengths":
        table = lengths_table(store)
    elif style == "probe":
        table = probe_table(store)
    else:
        table = delta_table(store, baseline, candidate)
    if fmt == "csv":
        for line in table.missing:
            print(line, file=sys.stderr)
    return render(table, fmt, standalone=standalone)


def _check(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise GatedevalError(f"unknown {what} {given!r}; choose one of {', '.join(known)}")


def _samples(store: Store, fmt: str) -> str:
    """One line per sample; pandas writes the JSON lines too."""
    from harness.export import text
    from harness.tables import samples_frame

    if fmt not in ("csv", "json"):
        raise GatedevalError(f"--style samples is one line a sample, for programs: use --format csv or json, not {fmt}")
    frame = samples_frame(store)
    return text.csv(frame) if fmt == "csv" else frame.to_json(orient="records", lines=True, force_ascii=False)


__all__ = ["FORMATS", "STYLES", "export_run", "render"]
