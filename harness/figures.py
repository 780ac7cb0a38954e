"""Figures for papers: score over length and task x length, as SVG, PDF and PNG, sized for a column.

matplotlib is asked for only here, and only when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.report.svg import COLOURS
from harness.store import Store
from harness.tables.curves import Curve, Grid, curves, grids_of, ruler_lengths
from harness.tables.frames import labels
from harness.tables.layout import length_title
from harness.types import GatedevalError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
COLUMN = 3.35  # inches: one column of a two-column paper
_MARKERS, _LINES = ("o", "s", "^", "D", "v", "P"), ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)))
_STYLE: dict[str, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "lines.linewidth": 1.2, "lines.markersize": 3.5, "axes.spines.top": False,
    "axes.spines.right": False, "svg.hashsalt": "gatedeval", "pdf.fonttype": 42, "svg.fonttype": "none",
}  # fmt: skip


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise GatedevalError("figures need matplotlib, which is not installed: pip install matplotlib") from error
    return matplotlib


def length_figure(found: Sequence[Curve], lengths: list[int], models: list[str]) -> Figure:
    """Score over length, one panel per context side by side, 95% bars; a model keeps its colour over panels."""
    from matplotlib.figure import Figure

    contexts = list(dict.fromkeys(c.context for c in found))
    figure = Figure(figsize=(COLUMN * min(2, len(contexts)), 2.2), layout="constrained")
    panels = figure.subplots(1, len(contexts), sharey=True, squeeze=False)[0]
    for panel, context in zip(panels, contexts, strict=True):
        own = [c for c in found if c.context == context]
        for i, curve in enumerate(own):
            kind = models.index(curve.model)
            places = np.array([lengths.index(n) for n in curve.lengths]) + (i - (len(own) - 1) / 2) * 0.06
            score = np.array(curve.scores)
            bars = np.maximum(0, [score - curve.lows, np.array(curve.highs) - score])
            panel.errorbar(
                places,
                score,
                yerr=bars,
                label=curve.model,
                color=COLOURS[kind % len(COLOURS)],
                marker=_MARKERS[kind % len(_MARKERS)],
                linestyle=_LINES[kind % len(_LINES)],
                elinewidth=0.8,
            )
        panel.set_xticks(range(len(lengths)), [length_title(n) for n in lengths])
        panel.set(title=context, xlabel="length (tokens)", ylim=(0, 102), xlim=(-0.4, len(lengths) - 0.6))
        panel.grid(axis="y", linewidth=0.4, alpha=0.5)
    panels[0].set_ylabel("RULER score")
    handles: dict[str, Any] = {}
    for panel in panels:  # a model need not be in every panel
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    lines, names = list(handles.values()), list(handles)
    if len(contexts) == 1:
        panels[0].legend(lines, names, frameon=False)
    else:
        figure.legend(lines, names, frameon=False, loc="outside lower center", ncols=min(3, len(names)))
    return figure


def heat_figure(grid: Grid, *, difference: bool = False) -> Figure:
    """Task x length with the number in every field; cividis for scores, a blue-white-red scale for differences."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, 0.35 + 0.19 * len(grid.rows) + 0.25), layout="constrained")
    panel = figure.subplots()
    seen = grid.values[~np.isnan(grid.values)]
    reach = max(10.0, float(np.abs(seen).max())) if difference and seen.size else 100.0
    image = panel.imshow(
        np.ma.masked_invalid(grid.values),
        aspect="auto",
        cmap="RdBu" if difference else "cividis",
        vmin=-reach if difference else 0,
        vmax=reach,
    )
    for i, j in np.argwhere(~np.isnan(grid.values)):
        value = grid.values[i, j]
        red, green, blue, _ = image.cmap(image.norm(value))
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        panel.text(
            j, i, f"{value:+.1f}" if difference else f"{value:.1f}", ha="center", va="center", fontsize=6.5, color=ink
        )
    panel.set_xticks(range(len(grid.columns)), [length_title(n) for n in grid.columns])
    panel.set_yticks(range(len(grid.rows)), grid.rows)
    panel.tick_params(length=0)
    panel.set_title(grid.title)
    return figure


def save_figures(
    path: Path | str,
    out: Path | str | None = None,
    formats: Sequence[str] = FORMATS,
    *,
    baseline: str | None = None,
    candidate: str | None = None,
) -> list[Path]:
    """Draw a run's figures; returns the files written (below RUN/figures unless `out` says where).

    score_vs_length, and tasks_N for every model and context, with difference_N where two models are compared. The
    same run gives the same bytes as SVG. Raises GatedevalError without matplotlib, for an unknown format, and for a
    run with no RULER average.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown:
        raise GatedevalError(f"unknown figure format {unknown[0]!r}; choose from {', '.join(FORMATS)}")
    matplotlib = _matplotlib()
    path = Path(path)
    store = Store.read(path)
    folder = Path(out) if out is not None else path / "figures"
    written = []
    with matplotlib.rc_context(_STYLE):
        for name, figure in _figures(store, baseline, candidate):
            for fmt in formats:
                file = folder / f"{name}.{fmt}"
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    figure.savefig(
                        file,
                        dpi=300,
                        metadata={"Date": None} if fmt == "svg" else {"CreationDate": None} if fmt == "pdf" else None,
                    )
                except OSError as error:
                    raise GatedevalError(f"cannot write {file}: {error.strerror}; give another directory") from error
                written.append(file)
    return written


def _figures(store: Store, baseline: str | None, candidate: str | None) -> list[tuple[str, Figure]]:
    models, found = labels(store, "models"), curves(store)
    if not found:
        raise GatedevalError(f"{store.path} has no RULER average to draw: `gatedeval table` says what is missing")
    found = [c for c in found if len(c.lengths) > 1] or found  # a single point is no curve: the table has it
    figures = [("score_vs_length", length_figure(found, ruler_lengths(store), models))]
    number = 0
    for _, grids, differences in grids_of(store, baseline, candidate):
        for grid in grids.values():
            number += 1
            figures.append((f"tasks_{number}", heat_figure(grid)))
        figures += [
            (f"difference_{number}" + (f"_{i}" if i else ""), heat_figure(change, difference=True))
            for i, change in enumerate(differences)
        ]
    return figures
