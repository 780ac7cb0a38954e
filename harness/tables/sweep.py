"""A finished sweep -> one panel per model and length: score over RoPE base x YaRN factor. Reads the run alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.benchmarks.presentation import presentation_of
from harness.config import SCALINGS
from harness.run.sweep import number_text
from harness.store import Store
from harness.tables.aggregates import lengths_of, over_length, task_mean, tasks_of
from harness.tables.caption import free_lines
from harness.tables.frames import labels
from harness.tables.layout import DASH, length_title
from harness.text import align, counted
from harness.types import Cell


@dataclass(frozen=True, kw_only=True)
class Panel:
    """RULER's average of one model at one length; all scores 0-100, NaN where there is none.

    values: (bases, factors). `half_width`: of the widest 95% interval among the fields, in points. `native`: under the
    checkpoint's own setting, where the run has it. `planned`: (bases, factors), whether the setting reaches the length.
    """

    model: str
    length: int
    bases: list[str]
    factors: list[str]
    values: np.ndarray
    planned: np.ndarray
    native: float
    half_width: float
    samples: int  # behind each field; the smallest where they differ

    @property
    def best(self) -> float:
        """The best field as printed; NaN where all are equal, or where there is only one."""
        shown = {round(float(v), 1) for v in self.values.ravel() if not math.isnan(v)}
        return max(shown) if len(shown) > 1 else math.nan


@dataclass(frozen=True)
class Axes:
    """The settings of a run as a grid: (base, factor) -> context label. Empty where the run is no sweep."""

    bases: list[float | None] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    labels: dict[tuple[float | None, float], str] = field(default_factory=dict)
    native: str = ""
    original: int | None = None


def axes(store: Store) -> Axes:
    """The run's contexts as a grid of base x factor.

    A run is a sweep where its contexts are native, bases and YaRN factors over one original length and nothing else,
    every base has every factor, and there are at least three of them.
    """
    found: dict[tuple[float | None, float], str] = {}
    native, originals = "", set()
    for entry in store.manifest.get("config", {}).get("contexts") or []:
        yarn: dict[str, Any] = entry.get("yarn") or {}
        key = (entry.get("rope_theta"), float(yarn.get("factor") or 1))
        if any(entry.get(kind) for kind in SCALINGS if kind != "yarn") or key in found:
            return Axes()
        if key == (None, 1.0):
            native = entry["label"]
            continue
        originals |= {yarn["original_max_position_embeddings"]} if yarn else set()
        found[key] = entry["label"]
    if native and any(base is None for base, _ in found):
        found[None, 1.0] = native  # where the base is the checkpoint's own, factor 1 is the native setting
    bases = sorted({b for b, _ in found}, key=lambda b: b or 0.0)
    factors = sorted({f for _, f in found})
    if len(found) < 3 or len(originals) > 1 or len(found) < len(bases) * len(factors):
        return Axes()
    return Axes(bases, factors, found, native, originals.pop() if originals else None)


def panels(store: Store) -> list[Panel]:
    """A panel per model and length in the run's order; none where the run is no sweep."""
    grid, benchmark = axes(store), next(iter(over_length(store)), None)
    if not grid.labels or benchmark is None:
        return []
    lengths = lengths_of(store, benchmark)
    return [_panel(store, grid, benchmark, m, n) for m in labels(store, "models") for n in lengths]


def _panel(store: Store, grid: Axes, benchmark: str, model: str, length: int) -> Panel:
    shape = (len(grid.bases), len(grid.factors))
    values, planned = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    widths, counts = [], []

    def mean(label: str) -> tuple[float, bool]:
        cells = [Cell(model, label, benchmark, task, length) for task in tasks_of(store, benchmark)]
        if not all(cell in store.cells for cell in cells):
            return math.nan, False
        average = task_mean(store, cells)  # a missing task blocks the field: NaN, never an average of what is there
        if not math.isnan(average.value):
            widths.append(50 * (average.interval.high - average.interval.low))
            counts.append(average.samples)
        return average.value, True

    for (base, factor), label in grid.labels.items():
        at = grid.bases.index(base), grid.factors.index(factor)
        values[at], planned[at] = mean(label)
    native = mean(grid.native)[0]
    return Panel(
        model=model,
        length=length,
        bases=["own" if b is None else number_text(b) for b in grid.bases],
        factors=[number_text(f) for f in grid.factors],
        values=values,
        planned=planned,
        native=native,
        half_width=max(widths, default=math.nan),
        samples=min(counts, default=0),
    )


def caption(store: Store, found: list[Panel]) -> list[str]:
    """What a reader must know to read the map, one line per fact."""
    grid, benchmark = axes(store), over_length(store)[0]
    tasks, title = tasks_of(store, benchmark), presentation_of(benchmark).title
    what = tasks[0] if len(tasks) == 1 else f"the mean of {len(tasks)} {title} tasks ({', '.join(tasks)})"
    lines = [f"Score, 0-100: {what}. YaRN factor 1 is the base alone."]
    if grid.original is not None:
        lines[0] += f" Factors stretch {grid.original} tokens."
    widths = [p.half_width for p in found if not math.isnan(p.half_width)]
    if widths:
        few = min(p.samples for p in found if p.samples)
        lines.append(
            f"At least {counted(few, 'sample')} a field; the widest 95% interval is ±{max(widths):.1f} points."
        )
    if any(not math.isnan(p.best) for p in found):
        lines.append("*: best of its map; differences within the interval may be chance.")
    if any(not p.planned.all() for p in found):
        lines.append(f"{DASH}: the setting does not reach the length.")
    if any((np.isnan(p.values) & p.planned).any() for p in found):
        lines.append("?: not finished or failed; the same command goes on.")
    return lines + free_lines(store)


def field_text(panel: Panel, i: int, j: int) -> str:
    """One field: the score with one decimal, a dash where the length is out of reach, ? where it is not finished."""
    value = float(panel.values[i, j])
    if not math.isnan(value):
        return f"{value:.1f}"
    return "?" if panel.planned[i, j] else DASH


def render(store: Store) -> str:
    """The sweep as text: a small table per model and length, `*` at the best fields, and the caption."""
    found = panels(store)
    if not found:
        return f"{store.path} is no sweep: its contexts are no grid of RoPE bases and YaRN factors\n"
    blocks = [*map(_panel_text, found), "\n".join(caption(store, found))]
    return "\n\n".join(blocks) + "\n"


def _panel_text(panel: Panel) -> str:
    """One panel as aligned text; a star hangs beyond the digits, which line up without it."""
    rows = [["base \\ YaRN ", *(f"{factor} " for factor in panel.factors)]]
    for i, base in enumerate(panel.bases):
        fields = [field_text(panel, i, j) for j in range(len(panel.factors))]
        rows.append([f"{base} ", *(text + ("*" if text == f"{panel.best:.1f}" else " ") for text in fields)])
    native = "" if math.isnan(panel.native) else f" (native: {panel.native:.1f})"
    title = f"{panel.model}, {length_title(panel.length)}{native}"
    return "\n".join([title, *align(rows, right=range(1, len(rows[0])))])
