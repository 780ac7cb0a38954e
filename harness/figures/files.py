"""Save a run's figures as SVG, PDF and PNG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config import TableOptions
from harness.figures.curves import drawn, length_figure
from harness.figures.heat import heat_figure, largest_difference
from harness.figures.probe import probe_figures
from harness.figures.style import PAPER, drawing
from harness.figures.svg import stand_alone
from harness.figures.training import contexts_of, training_figure
from harness.figures.wavelengths import wavelength_figure
from harness.store import Store
from harness.tables.arms import arms_of
from harness.tables.arms_view import read_by_arm
from harness.tables.comparisons import lines, task_marks
from harness.tables.curves import Grid, grids_of, scored_over_length
from harness.tables.family import adjust_lines
from harness.tables.training import curved_arms, has_steps, trainings
from harness.tables.wavelengths import wavelengths
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
    full: bool = False,
) -> list[Path]:
    """Draw a run's figures; returns the files written (below RUN/figures unless `out` says where).

    Names say what a figure shows: ruler_vs_length (all contexts side by side), ruler_vs_length_CONTEXT,
    training_CONTEXT (where arms have training steps), ruler_tasks_MODEL_CONTEXT, and
    ruler_difference_CANDIDATE_minus_BASELINE_CONTEXT, whose colours have one scale and
    whose significant differences (Holm over the pair's single tasks) are bold with a mark.
    `full`: curves over 0-100 instead of the range of the data. The same run gives the same bytes as SVG and PDF.
    Raises GatedevalError for an unknown format, for a run with no RULER average, and where
    the folder cannot be written.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown:
        raise GatedevalError(f"unknown figure format {unknown[0]!r}; choose from {', '.join(FORMATS)}")
    path = Path(path)
    store = read_by_arm(Store.read(path), baseline, candidate)
    folder = Path(out) if out is not None else path / "figures"
    written = []
    with drawing(PAPER):
        for name, figure in list(
            _figures(store, baseline, candidate, full)
        ):  # a wrong label is an error before any file
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


def _figures(store: Store, baseline: str | None, candidate: str | None, full: bool) -> Iterator[tuple[str, Figure]]:
    """Every figure with the name of its file."""
    found = drawn(store)
    others = [*probe_figures(store), *_training(store, baseline, candidate)]
    if encodings := wavelengths(store):
        others.append(("wavelengths", wavelength_figure(encodings)))
    yield from others
    if not found.lines and others:
        return
    if not found.lines:
        raise GatedevalError(f"{store.path} has no RULER average to draw: `gatedeval table` says what is missing")
    name = _Names(scored_over_length(store) or "")
    yield name("vs_length"), length_figure(found, full=full)
    if len(found.contexts) > 1:
        for context in found.contexts:
            yield name("vs_length", context), length_figure(found, [context], full=full)
    every = list(grids_of(store, baseline, candidate))
    largest = largest_difference(grid for _, _, differences in every for grid in differences)
    for context, grids, differences in every:
        for model, grid in grids.items():
            yield name("tasks", model, context), heat_figure(grid)
        for change in differences:
            title = change.title.removesuffix(f", {context}")
            marks = _marks(store, change)
            figure = heat_figure(change, difference=True, largest=largest, marks=marks)
            yield name("difference", title, context), figure


def _training(store: Store, baseline: str | None, candidate: str | None) -> Iterator[tuple[str, Figure]]:
    """Curves over training, one figure per context; none where no arm has two steps."""
    if arms_of(store) is None or not has_steps(store):
        return
    given = [name if name in curved_arms(store) else None for name in (baseline, candidate)]
    found, name = trainings(store, TableOptions(), *given), _Names("training")
    for context in contexts_of(found):
        yield name(context), training_figure(store, found, context)


def _marks(store: Store, change: Grid) -> dict[tuple[str, int], str]:
    """(task, length) -> the mark of a significant difference, tested among all single tasks of the two models."""
    try:
        found, _ = lines(store, change.baseline, change.model)
    except GatedevalError:  # the two were asked different things: the map shows means, and tests nothing
        return {}
    adjust_lines(store, found, change.baseline, change.model)
    every = task_marks(found)
    return {(task, length): mark for (context, task, length), mark in every.items() if context == change.context}


class _Names:
    """File names of figures: lower case, words joined by "_", no two the same."""

    def __init__(self, benchmark: str) -> None:
        self._benchmark = benchmark
        self._given: set[str] = set()

    def __call__(self, *parts: str) -> str:
        """The benchmark and the `parts` as one name; letters and digits of any script stay."""
        words = [re.sub(r"[^\w.+-]+", "_", part.lower()).strip("_.") for part in (self._benchmark, *parts)]
        name = "_".join(word for word in words if word)[:120]
        number = 1
        while (unique := name if number == 1 else f"{name}_{number}") in self._given:
            number += 1
        self._given.add(unique)
        return unique
