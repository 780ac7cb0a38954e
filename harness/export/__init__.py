"""A run -> Markdown, LaTeX, CSV, JSON, HTML, lm-eval's results JSON.

Functions import what they need when they are called, so that the command line can list styles and formats quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.text import counted
from harness.types import GatedevalError

if TYPE_CHECKING:
    from harness.config import TableOptions
    from harness.store import Store
    from harness.tables import Table

STYLES = ("table5", "tasks", "delta", "lengths", "training", "samples", "lm_eval", "probe", "sinks")
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
    style: str | None = None,
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
    **view: Any,
) -> str:
    """The run at `path` as text. Raises GatedevalError for what the run does not have, and for options that do not fit.

    `style`: one of `STYLES`; None: table5, or probe where the run has probes and no benchmark (stderr then says so).
    `reference`: "paper", or a CSV file (table5, probe). `baseline`, `candidate`: labels of the models to compare
    (table5: the model that the marks are against; delta: both). `model`, `context`: whose numbers (lm_eval only).
    `intervals`: 95% intervals instead of changes (table5 only). `view`: fields of `harness.config.TableOptions`, each
    in place of the run's own. The caption says what is missing; CSV has no caption, so these lines go to stderr.
    """
    from harness.export.lm_eval import lm_eval_results
    from harness.store import Store
    from harness.tables import delta_table, lengths_table, table5, tasks_table
    from harness.tables.arms_view import names_checkpoints
    from harness.tables.probe import probe_table
    from harness.tables.reference import load_probe_reference, load_reference
    from harness.tables.sinks import sinks_table
    from harness.tables.training_table import training_table
    from harness.tables.view import new_names, viewed

    if style is not None:
        _check("style", style, STYLES)
    _check("format", fmt, FORMATS)
    store = Store.read(Path(path))
    style = _style_of(store, style)
    options = {
        "reference": reference, "baseline": baseline, "candidate": candidate, "partial": allow_partial,
        "standalone": standalone, "model": model, "context": context, "intervals": intervals, **view,
    }  # fmt: skip
    _check_options(style, fmt, [name for name, given in options.items() if given not in (None, False, ())])
    if style == "lm_eval":
        if fmt not in ("md", "json"):  # md is the default of the command line: a style with one format takes it
            raise GatedevalError(f"--style lm_eval is lm-eval's results JSON: use --format json, not {fmt}")
        return lm_eval_results(store, model, context)
    if style == "delta" and view.get("arms") is None and names_checkpoints(store, baseline, candidate):
        view["arms"] = "off"
    names = new_names(store, view.get("rename"))
    baseline, candidate = (names.get(label, label) if label else label for label in (baseline, candidate))
    store, choices = viewed(store, **view)
    if style == "samples":
        return _samples(store, choices, fmt)
    if style == "table5":
        published = None if reference is None else load_reference(reference)
        table = table5(store, allow_partial=allow_partial, baseline=baseline, reference=published, intervals=intervals)
    elif style == "tasks":
        table = tasks_table(store)
    elif style == "lengths":
        table = lengths_table(store)
    elif style == "training":
        table = training_table(store, baseline, candidate)
    elif style == "probe":
        _check_probed(store, choices.lengths if view.get("lengths") else None)
        table = probe_table(store, None if reference is None else load_probe_reference(reference))
    elif style == "sinks":
        table = sinks_table(store)
    else:
        table = delta_table(store, baseline, candidate)
    table.label = choices.label
    if fmt == "csv":
        for line in table.missing:
            print(line, file=sys.stderr)
    return render(table, fmt, standalone=standalone)


_STYLES_OF = {
    "reference": ("table5", "probe"),
    "intervals": ("table5",),
    "partial": ("table5",),
    "transpose": ("table5",),
    "baseline": ("table5", "delta", "training"),
    "candidate": ("delta", "training"),
    "model": ("lm_eval",),
    "context": ("lm_eval",),
    "models": ("table5", "tasks", "lengths", "training", "samples", "probe", "sinks"),
    "lengths": ("table5", "tasks", "delta", "training", "samples", "probe"),
    "contexts": ("table5", "tasks", "delta", "lengths", "training", "samples", "probe", "sinks"),
    "benchmarks": ("table5", "tasks", "delta", "lengths", "training", "samples"),
    "rename": ("table5", "tasks", "delta", "lengths", "training", "samples", "probe", "sinks"),
    "digits": ("table5", "tasks", "delta", "lengths", "training", "sinks"),
    "caption": ("table5", "tasks", "delta", "lengths", "training", "probe"),
    "arms": ("table5", "tasks", "delta", "lengths"),
    "steps": ("table5", "tasks", "delta", "lengths"),
    "infer": ("table5", "delta", "training"),
}
"""Option -> the styles that it changes. An option that would change nothing is refused."""

_FORMATS_OF = {
    "standalone": ("latex",),
    "label": ("latex",),
    "digits": ("md", "latex", "html"),
    "caption": ("md", "latex", "json", "html"),
    "transpose": ("md", "latex", "json", "html"),
    "intervals": ("md", "latex", "html"),
}
"""Option -> the formats that it changes."""


def _style_of(store: Store, style: str | None) -> str:
    """The style to use; a run of probes alone has one style. Raises GatedevalError where another one is asked for."""
    from harness.store.probes import Probes

    if store.cells:
        return style or "table5"
    probes = len(Probes(store.path).records(store.manifest.get("probes")))
    if not probes:
        return style or "table5"
    what = f"{store.path} has {counted(probes, 'probe')} and no benchmark"
    if style is None:
        print(f"{what}: this is the table of --style probe", file=sys.stderr)
    elif style != "probe":
        raise GatedevalError(f"{what}: use --style probe, not {style}")
    return "probe"


def _check_probed(store: Store, lengths: Sequence[int] | None) -> None:
    """Raise GatedevalError for a length that no probe has."""
    from harness.store.probes import Probes

    probed = sorted({r["length"] for r in Probes(store.path).records(store.manifest.get("probes"))})
    for length in lengths or ():
        if probed and length not in probed:
            raise GatedevalError(f"no probe has the length {length}; the run's have {', '.join(map(str, probed))}")


def _check_options(style: str, fmt: str, given: Sequence[str]) -> None:
    for option in given:
        if style not in (styles := _STYLES_OF.get(option, STYLES)):
            raise GatedevalError(f"--{option} goes with --style {' or '.join(styles)}, not with {style}")
        if fmt not in (formats := _FORMATS_OF.get(option, FORMATS)):
            raise GatedevalError(f"--{option} goes with --format {' or '.join(formats)}, not with {fmt}")


def _check(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise GatedevalError(f"unknown {what} {given!r}; choose one of {', '.join(known)}")


def _samples(store: Store, choices: TableOptions, fmt: str) -> str:
    """One line per sample of a checkpoint; JSON has lists as lists, and null where CSV has an empty field."""
    from harness.export import text
    from harness.tables import samples_frame
    from harness.tables.arms import arms_of
    from harness.tables.frames import cell_of, sample_rows
    from harness.tables.view import chosen_rows, shown

    if fmt not in ("csv", "json"):
        raise GatedevalError(f"--style samples is one line a sample, for programs: use --format csv or json, not {fmt}")
    if (arms := arms_of(store)) is not None:
        if choices.models is not None:
            names = [label for row in choices.models for label in arms.rows.get(row, (row,))]
            choices = choices.model_copy(update={"models": tuple(names)})
        store = arms.checkpoints
    if fmt == "json":
        return text.sample_lines(row for row in sample_rows(store) if shown(choices, cell_of(row)))
    return text.csv(chosen_rows(choices, samples_frame(store)))


__all__ = ["FORMATS", "STYLES", "export_run", "render"]
