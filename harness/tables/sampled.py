"""Numbers whose samples came in rounds: their values, intervals and tests, and what a caption says about the rounds."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness import stats
from harness.benchmarks.presentation import presentation_of
from harness.stats.decision import LATER_LOOKS, sequential_difference
from harness.stats.sequential import Design, sequential_interval
from harness.store import Store
from harness.store.rounds import Rounds
from harness.tables.arms import checkpoint_view
from harness.tables.layout import length_title
from harness.text import counted
from harness.types import Cell

Columns = Sequence[NDArray[np.float64]]
SIMULATED = 50
"""Samples per task of the first round from which on `bench/precision.py` finds a coverage of at least 94.5 %."""
_VERDICTS = {"above": "above", "below": "below", "equal": "equal within the margin"}


def in_rounds(store: Store, cells: Iterable[Cell]) -> bool:
    """Whether the samples of any of the cells came in rounds."""
    return any(store.rounds(cell) is not None for cell in cells)


def design_of(store: Store, cells: Sequence[Cell], *, pooled: bool) -> Design:
    """The cells as strata: equal weights, or (`pooled`) each as many as it has questions.

    A cell with a plain count is a stratum whose number of samples nobody chose by looking.
    """
    weights, pilot, most, sizes = [], [], [], []
    for cell in cells:
        entry, n = store.rounds(cell), len(store.scores(cell).ids)
        at = None if entry is None else entry.tasks.index(cell.task)
        whole = math.inf if entry is None or at is None or entry.population is None else entry.population[at]
        most.append(max(n, entry.most[at]) if entry is not None and at is not None else n)
        pilot.append(min(entry.at_least if entry is not None else n, n))
        sizes.append(max(whole, n))
        weights.append((n if math.isinf(whole) else whole) if pooled else 1.0)
    w = np.asarray(weights, dtype=np.float64)
    return Design(w / w.sum(), np.asarray(pilot, float), np.asarray(most, float), np.asarray(sizes, float))


def mean_in_rounds(
    store: Store, cells: Sequence[Cell], columns: Columns, *, pooled: bool
) -> tuple[float, stats.Interval]:
    """The reported number over the cells and its interval, 0..1; `columns`: the scores of each, none empty.

    Pooled over questions, a subject counts as many times as it has questions, and not as many as were asked.
    """
    design = design_of(store, cells, pooled=pooled)
    value = float(sum(w * c.mean() for w, c in zip(design.weights, columns, strict=True)))
    return value, sequential_interval(columns, design)


def difference_in_rounds(
    store: Store, pairs: Sequence[tuple[Cell, Cell]], differences: Columns, *, pooled: bool
) -> tuple[float, stats.Interval, float, str]:
    """Difference, interval, p-value and the test's name, -1..1, of models whose samples came in rounds.

    Of a decision, all looks' intervals hold at once, and so does the p-value. Else the look is taken for the only one.
    """
    design = design_of(store, [b for _, b in pairs], pooled=pooled)
    entry = decision_of(store, pairs)
    looks = 1 if entry is None else LATER_LOOKS
    found = sequential_difference(differences, entry.design if entry else design, looks, entry.tests if entry else 1)
    name = "z" if entry is None else f"repeated z ({counted(len(entry.samples), 'look')})"
    return found.difference, found.interval, found.p, name


def decision_of(store: Store, pairs: Sequence[tuple[Cell, Cell]]) -> Rounds | None:
    """The decision that is about exactly these (baseline, candidate) pairs of cells, in either order; else None."""
    entry = store.rounds(pairs[0][0]) if pairs else None
    if entry is None or entry.goal != "decide":
        return None
    own = list(zip(entry.cells(entry.models[0]), entry.cells(entry.models[1]), strict=True))
    other = [(b, a) for a, b in own]
    return entry if set(pairs) in (set(own), set(other)) and len(own) == len(pairs) else None


# ------------------------------------------------------------------------------------------------- captions


def rounds_lines(store: Store, cells: Collection[Cell]) -> list[str]:
    """The method with its literature, goals that were not reached, and what was decided; nothing for plain counts."""
    entries = entries_of(store, cells)
    if not entries:
        return []
    precise = [e for e in entries if e.goal == "precision"]
    decided = [e for e in entries if e.goal == "decide"]
    lines = [_method(entries)]
    if precise:
        lines[0] += _goals(precise, store, cells)
        lines += _small_starts(precise)
    lines += _not_reached(precise)
    if decided:
        lines.append(
            f"Decisions between {decided[0].models[1]} and {decided[0].models[0]} after every round, by repeated "
            "confidence intervals (Jennison & Turnbull 1989; constant critical value, Pocock 1977), family-wise level "
            f"0.05 over {counted(len(decided), 'decision')}: " + "; ".join(map(_decided, decided)) + "."
        )
    return lines


def entries_of(store: Store, cells: Collection[Cell]) -> list[Rounds]:
    """The entries about any of the cells, each once, in the order of the plan; of an arm those of every checkpoint."""
    store, cells = checkpoint_view(store, cells)
    found = [entry for cell in store.cells if cell in cells and (entry := store.rounds(cell)) is not None]
    return list(dict.fromkeys(found))


def _method(entries: Sequence[Rounds]) -> str:
    least = sorted({e.at_least for e in entries})
    most = sorted({n for e in entries for n in e.most})
    drawn = any(e.population is not None for e in entries)
    return (
        f"Samples in rounds: a first one of {_span(least)} per task, then where they lower the variance most (Neyman "
        f"1934, variances shrunk), at most {_span(most)}; an interval that allows for stopping by looking (Chow & "
        "Robbins 1965; its coverage in simulation: docs/statistics.md; for means in 0..1 without "
        "approximation see Waudby-Smith & Ramdas 2023)"
        + (
            "; questions drawn at random without replacement, intervals about the whole set of questions (finite "
            "populations: Wu, Nair & Candès 2026)"
            if drawn
            else ""
        )
        + "."
    )


def _small_starts(entries: Sequence[Rounds]) -> list[str]:
    """What is known of intervals after first rounds that are smaller than those whose coverage was simulated."""
    small = sorted({e.at_least for e in entries if e.at_least < SIMULATED and e.samples[-1] != e.population})
    if not small:
        return []
    return [
        f"A first round of {_span(small)} samples per task is small: where some tasks rarely fail, 95% intervals cover"
        f" as little as 85% in simulation; with at_least: {SIMULATED} they cover at least 94.5% (docs/statistics.md)."
    ]


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _goals(entries: Sequence[Rounds], store: Store, cells: Collection[Cell]) -> str:
    """The precisions asked for; of a part of a number's tasks, that it is."""
    store, cells = checkpoint_view(store, cells)
    tasks: dict[Cell, set[str]] = {}  # a number -> its tasks
    for cell in cells:
        tasks.setdefault(replace(cell, task=""), set()).add(cell.task)
    goals: dict[str, list[float]] = {}
    for e in entries:
        title, whole = presentation_of(e.benchmark).title, tasks.get(replace(e.all_cells[0], task=""), set())
        part = "single tasks" if len(e.tasks) == 1 else f"{len(e.tasks)} tasks"
        goals.setdefault(title if whole <= {*e.tasks} else f"{part} of {title}", []).append(e.target)
    parts = [f"{name} ±{', ±'.join(f'{t:g}' for t in sorted(set(targets)))}" for name, targets in goals.items()]
    return f" Goal: {', '.join(parts)} points."


def _not_reached(entries: Sequence[Rounds]) -> list[str]:
    missed = [e for e in entries if e.ended is not None and e.ended != "precision reached"]
    if not missed:
        return []
    named = [f"{where(e)} ({'±' + format(e.widths[-1], '.2f') if e.widths else e.ended})" for e in missed[:8]]
    more = f"; and {len(missed) - 8} more" if len(missed) > 8 else ""
    return [f"Precision not reached ({len(missed)}), with all samples that at_most allows: {'; '.join(named)}{more}."]


def where(entry: Rounds) -> str:
    """What an entry is about, in words: "baseline, native, RULER 4K"."""
    title = entry.tasks[0] if len(entry.tasks) == 1 else presentation_of(entry.benchmark).title
    at = f" {length_title(entry.length)}" if entry.length else ""
    model = entry.models[0] if entry.goal == "precision" else f"{entry.models[1]} against {entry.models[0]}"
    return f"{model}, {entry.context}, {title}{at}"


def _decided(entry: Rounds) -> str:
    title = entry.tasks[0] if len(entry.tasks) == 1 else presentation_of(entry.benchmark).title
    at = f" {length_title(entry.length)}" if entry.length else ""
    verdict = _VERDICTS.get(entry.ended or "", entry.ended or "not decided yet")
    if entry.ended == "equal":
        verdict = f"equal within ±{entry.target:g}"
    looks = f"{counted(len(entry.samples), 'look')}, {sum(entry.samples[-1]):,} samples each"
    return f"{entry.context}, {title}{at}: {verdict} ({looks})"


def added(entry: Rounds) -> list[int]:
    """Samples that every round added, over all tasks of one model; the first is the pilot."""
    totals = [sum(counts) for counts in entry.samples]
    return totals[:1] + [b - a for a, b in pairwise(totals)]
