"""The map of a sweep: RoPE base x YaRN factor, one panel per model (rows) and length (columns)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from harness.figures.colours import EMPTY, score_colour
from harness.figures.heat import Field, draw_heat
from harness.figures.style import PX, SCREEN, drawing
from harness.figures.svg import stand_alone
from harness.store import Store
from harness.store.files import write_atomic
from harness.tables.layout import length_title
from harness.tables.sweep import Panel, caption, field_text, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# All sizes in CSS pixels.
_FIELD_WIDTH, _FIELD_HEIGHT = 58, 26
_ABOVE, _BELOW, _GAP, _MARGIN = 62, 46, 24, 10  # a panel's title; its factors; space between panels; around the figure
_LETTER, _LINE = 7.5, 18  # width of a letter (13 pixels high), at most nearly always; distance of caption lines


def save(store: Store) -> Path:
    """Write RUN/sweep.svg; returns the file. The same run gives the same bytes."""
    file = store.path / "sweep.svg"
    write_atomic(file, sweep_svg(store))
    return file


def sweep_svg(store: Store) -> str:
    """The map with its caption as a document of its own; an empty string where the run is no sweep."""
    found = panels(store)
    if not found:
        return ""
    with drawing(SCREEN):
        return stand_alone(sweep_figure(found, caption(store, found)), described(found))


def sweep_figure(found: Sequence[Panel], notes: Sequence[str] = ()) -> Figure:
    """The map. `notes` are written below it, wrapped to the width of the figure."""
    from matplotlib.figure import Figure

    models, lengths = list(dict.fromkeys(p.model for p in found)), list(dict.fromkeys(p.length for p in found))
    titles = {id(p): f"{p.model}, {length_title(p.length)}" for p in found}
    left = 16 + _LETTER * max(len(base) for base in ("base", *found[0].bases))
    fields_wide, fields_high = _FIELD_WIDTH * len(found[0].factors), _FIELD_HEIGHT * len(found[0].bases)
    across = left + max(fields_wide, _LETTER * max(map(len, titles.values()))) + _GAP
    down = _ABOVE + fields_high + _BELOW
    width = max(_MARGIN + across * len(lengths), 400)
    lines = [part for note in notes for part in wrap(note, int((width - 2 * _MARGIN) / 6.8))]
    height = down * len(models) + _LINE * len(lines) + _MARGIN

    figure = Figure(figsize=(width * PX, height * PX))
    for panel in found:
        x = left + across * lengths.index(panel.length)
        bottom = height - down * models.index(panel.model) - _ABOVE - fields_high
        axes = figure.add_axes((x / width, bottom / height, fields_wide / width, fields_high / height))
        draw_heat(axes, _fields(panel), panel.bases, panel.factors, fontsize=12)
        axes.set_xlabel("YaRN factor")
        at: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
        axes.annotate("base", (0, 1), (-7, 6), ha="right", **at)
        axes.annotate(titles[id(panel)], (0, 1), (0, 40), fontweight="bold", **at)
        if not math.isnan(panel.native):
            axes.annotate(f"native {panel.native:.1f}", (0, 1), (0, 22), **at)
    for i, line in enumerate(reversed(lines)):
        figure.text(_MARGIN / width, (_MARGIN + _LINE * i) / height, line, fontsize=12)
    return figure


def described(found: Sequence[Panel]) -> str:
    """The map in words, for readers who cannot see it."""
    return "; ".join(
        f"{panel.model} at {length_title(panel.length)}: "
        + ", ".join(
            f"base {base}, factor {factor}: {field_text(panel, i, j)}"
            for i, base in enumerate(panel.bases)
            for j, factor in enumerate(panel.factors)
        )
        for panel in found
    )


def _fields(panel: Panel) -> list[list[Field]]:
    """The panel's fields; the best ones are bold and have a star."""
    return [[_field(panel, i, j) for j in range(len(panel.factors))] for i in range(len(panel.bases))]


def _field(panel: Panel, i: int, j: int) -> Field:
    value, text = float(panel.values[i, j]), field_text(panel, i, j)
    best = text == f"{panel.best:.1f}"
    return Field(text + "*" * best, EMPTY if math.isnan(value) else score_colour(value), best)
