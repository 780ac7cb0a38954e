"""How figures look: sizes, fonts, and the line of each model. The user's own matplotlibrc has no effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from harness.figures.colours import INK, MODELS, RULE

COLUMN = 3.35  # inches: one column of a two-column paper
PX = 1 / 72  # inches: one unit of an SVG that matplotlib writes, and one CSS pixel where the report shows it unscaled

_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
_LINES = ("-", "--", "-.", (0, (5, 1)), ":", (0, (3, 1, 1, 1)), (0, (8, 2)), (0, (1, 1)))

_BOTH: dict[str, Any] = {
    "text.parse_math": False,  # a "$" in a label is a dollar sign
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.axisbelow": True, "grid.color": RULE, "ytick.major.size": 0, "legend.frameon": False,
    "svg.hashsalt": "gatedeval", "svg.fonttype": "none", "pdf.fonttype": 42,
}  # fmt: skip
PAPER: dict[str, Any] = _BOTH | {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "lines.linewidth": 1.2, "lines.markersize": 3.5, "grid.linewidth": 0.5,
}  # fmt: skip
SCREEN: dict[str, Any] = _BOTH | {
    "font.size": 13, "axes.titlesize": 13, "axes.labelsize": 13, "xtick.labelsize": 13, "ytick.labelsize": 13,
    "lines.linewidth": 2, "lines.markersize": 7, "grid.linewidth": 1,
}  # fmt: skip


class Look(NamedTuple):
    """The colour, marker and line style of one model, as matplotlib names them."""

    color: str
    marker: str
    linestyle: Any


def look(model: str, models: Sequence[str]) -> Look:
    """How `model` is drawn. `models` are all models of the run: a model looks the same in every figure of the run."""
    i = models.index(model)
    return Look(MODELS[i % len(MODELS)], _MARKERS[i % len(_MARKERS)], _LINES[i % len(_LINES)])


@contextmanager
def drawing(style: dict[Any, Any]) -> Iterator[None]:
    """Draw and save figures under `style` (PAPER or SCREEN) and matplotlib's own defaults."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)
        yield
