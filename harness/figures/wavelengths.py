"""Wavelengths of the rotary encoding under each context setting, with the trained length marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.figures.colours import BAR
from harness.figures.style import COLUMN, PX, look
from harness.tables.wavelengths import Wavelengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCREEN_SIZE = (460, 330)  # CSS pixels of one panel of the report
_EVERY = 8  # a marker at every so many pairs: a line of 64 would hide the style of its dashes


def wavelength_figure(found: Sequence[Wavelengths]) -> Figure:
    """For a paper: a panel per kind of model, one below the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, 2.6 * len(found)), layout="constrained")
    for panel, one in zip(figure.subplots(len(found), squeeze=False).ravel(), found, strict=True):
        _draw(panel, one, title=len(found) > 1)
        panel.legend(loc="upper left", fontsize=6)
    return figure


def screen_figure(one: Wavelengths) -> Figure:
    """For the report: one kind of model; the page writes the title beside it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SCREEN_SIZE[0] * PX, SCREEN_SIZE[1] * PX), layout="constrained")
    panel = figure.subplots()
    _draw(panel, one, title=False)
    panel.legend(loc="upper left", fontsize=11)
    return figure


def described(one: Wavelengths) -> str:
    """The picture in words, for readers who cannot see it."""
    return "; ".join(
        f"{context}: wavelengths from {turns[0]:,.0f} to {max(turns):,.0f} tokens, {one.beyond(context)} of"
        f" {len(turns)} pairs do not turn once within {one.trained[0]:,} tokens"
        for context, turns in one.curves.items()
    )


def _draw(panel: Axes, one: Wavelengths, *, title: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    names = list(one.curves)
    for context, turns in one.curves.items():
        style = look(context, names)
        panel.plot(
            range(len(turns)), turns, color=style.color, linestyle=style.linestyle, marker=style.marker,
            markevery=max(1, len(turns) // _EVERY), label=context,
        )  # fmt: skip
    for trained in one.trained:
        panel.axhline(trained, color=BAR, linestyle="--", linewidth=1)
        panel.annotate(
            f"trained {trained:,}", (1, trained), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", ha="right", color=BAR, fontsize="small",
        )  # fmt: skip
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panel.minorticks_off()
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set(xlabel="rotated pair of dimensions", ylabel="wavelength, tokens")
    panel.grid(axis="y")
    if title:
        panel.set_title(", ".join(one.models))
