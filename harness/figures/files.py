"""Save a run's figures as SVG, PDF and PNG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.figures.curves import drawn, length_figure
from harness.figures.heat import heat_figure
from harness.figures.probe import probe_figures
from harness.figures.style import PAPER, drawing
from harness.figures.svg import stand_alone
from harness.store import Store
from harness.tables.curves import grids_of, planned_lengths
from harness.types import GatedevalError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")


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
    same run gives the same bytes as SVG and PDF. Raises GatedevalError for an unknown format, for a run with no RULER
    average, and where the folder cannot be written.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown:
        raise GatedevalError(f"unknown figure format {unknown[0]!r}; choose from {', '.join(FORMATS)}")
    path = Path(path)
    store = Store.read(path)
    folder = Path(out) if out is not None else path / "figures"
    written = []
    with drawing(PAPER):
        for name, figure in list(_figures(store, baseline, candidate)):  # a wrong label is an error before any file
            for fmt in formats:
                file = folder / f"{name}.{fmt}"
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    _save(figure, file)
                except OSError as error:
                    raise GatedevalError(f"cannot write {file}: {error.strerror}; give another directory") from error
                written.append(file)
    return written


def _save(figure: Figure, file: Path) -> None:
    if file.suffix == ".svg":
        file.write_text(stand_alone(figure), encoding="utf-8")
    else:
        figure.savefig(file, dpi=300, metadata={"CreationDate": None} if file.suffix == ".pdf" else None)


def _figures(store: Store, baseline: str | None, candidate: str | None) -> Iterator[tuple[str, Figure]]:
    """Every figure with the name of its file."""
    lines, models = drawn(store)
    probed = list(probe_figures(store))
    yield from probed
    if not lines and probed:
        return
    if not lines:
        raise GatedevalError(f"{store.path} has no RULER average to draw: `gatedeval table` says what is missing")
    yield "score_vs_length", length_figure(lines, planned_lengths(store), models)
    number = 0
    for _, grids, differences in grids_of(store, baseline, candidate):
        for grid in grids.values():
            number += 1
            yield f"tasks_{number}", heat_figure(grid)
        for i, change in enumerate(differences):
            yield f"difference_{number}" + (f"_{i}" if i else ""), heat_figure(change, difference=True)
