"""The lines beneath a table: how it was measured, how to read it, what is missing, and what moves a number."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.benchmarks.presentation import Planned, Presentation, presentation_of
from harness.benchmarks.rolling import ROLLING
from harness.config import TableOptions
from harness.store import Store
from harness.store.arithmetic import mixed_line
from harness.tables.aggregates import tasks_of
from harness.tables.answers import answer_lines
from harness.tables.arms import checkpoint_view
from harness.tables.arms_caption import arm_lines, inference_lines
from harness.tables.definitions import definition_lines
from harness.tables.frames import labels
from harness.tables.layout import DASH, Entry, Table
from harness.tables.paired import ALPHA, Comparison
from harness.tables.view import chosen
from harness.text import MINUS, counted
from harness.types import Cell

_MOST = 8  # missing or partial cells that a line names; the others are counted


# ------------------------------------------------------------------------------------------------- how it was measured


def config_entries(store: Store) -> dict[str, Mapping[str, Any]]:
    """Benchmark name -> its first entry in the config's `benchmarks`, in the config's order.

    An entry's first key is the benchmark's name; `{lm_eval: NAME}` is the benchmark NAME.
    """
    entries: dict[str, Mapping[str, Any]] = {}
    for entry in store.manifest.get("config", {}).get("benchmarks") or []:
        entries.setdefault(str(entry.get("lm_eval") or next(iter(entry), "")), entry)
    return entries


def planned_of(store: Store, benchmark: str, cells: Collection[Cell]) -> Planned:
    """What the run plans and has of one benchmark, among `cells`."""
    counts: dict[int, list[int]] = {}
    for cell in cells:
        if cell.benchmark == benchmark:
            counts.setdefault(cell.length, []).append(len(store.scores(cell).ids))
    entry = config_entries(store).get(benchmark)
    return Planned(name=benchmark, entry=entry, tasks=tasks_of(store, benchmark), counts=counts)


def scoring_lines(store: Store, cells: Collection[Cell]) -> list[str]:
    """One line per benchmark of `cells`: what the number is, and over how many samples."""
    there = {cell.benchmark for cell in cells}
    names = dict.fromkeys([*config_entries(store), *(cell.benchmark for cell in store.cells)])
    ordered = sorted((name for name in names if name in there), key=lambda name: presentation_of(name).rank)
    lines = [presentation_of(name).caption(planned_of(store, name, cells)) for name in ordered]
    return [line for line in lines if line]


def beside_lines(shown: Iterable[tuple[str, str | None]]) -> list[str]:
    """One line for every metric of ours among the (benchmark, metric) pairs that a table shows."""
    lines = []
    for benchmark, metric in dict.fromkeys(shown):
        presentation = presentation_of(benchmark)
        if metric is not None and metric in presentation.beside:
            ours = presentation.beside[metric]
            lines.append(f"{presentation.title}, {ours.title}: {ours.meaning}.")
    return lines


def perplexity_lines(shown: Iterable[tuple[str, str | None]]) -> list[str]:
    """A line where a table shows numbers of whole texts: what they are, and how they were computed."""
    there = [name for name in ROLLING if any(metric == name for _, metric in shown)]
    if not there:
        return []
    return [
        f"{', '.join(there)}: of all texts together, as lm-eval computes them: windows of at most max_length"
        f" {MINUS} 1 tokens, each predicted token once, the first token from BOS (or end-of-text); lower is better; not"
        " tested for differences."
    ]


# ------------------------------------------------------------------------------------------------- how to read it


@dataclass(kw_only=True)
class Uncertainty:
    """What a caption says about intervals and tests; half-widths and differences in points.

    `halves`: (column group, half-width of a score's 95% interval). `clustered`: benchmark -> half-widths with its tasks
    as clusters. `tested`: (column group, comparison) of every test. `untested`: why some models were not compared.
    `baselines`: the models that the others were compared with. `family`: the comparisons of the whole run, which Holm's
    adjustment is over.
    """

    halves: list[tuple[str, float]] = field(default_factory=list)
    clustered: dict[str, list[float]] = field(default_factory=dict)
    tested: list[tuple[str, Comparison]] = field(default_factory=list)
    untested: list[str] = field(default_factory=list)
    baselines: list[str] = field(default_factory=list)
    family: int = 0


def reading_lines(table: Table, uncertainty: Uncertainty, *, short: bool = False) -> list[str]:
    """How to read the table: signs, intervals, significance. Only what occurs in it; `short`: the signs alone."""
    lines = []
    if signs := _signs([e for row in table.rows for e, c in zip(row, table.columns, strict=True) if c.numeric]):
        lines.append("Reading: " + "; ".join(signs) + ".")
    if uncertainty.halves and not short:
        widths = spans(uncertainty.halves, "±")
        how = "Wilson for 0/1 scores, else bootstrap, stratified by task"
        if any(c.recipe for _, c in uncertainty.tested):
            how = "Student's t over an arm's checkpoints"
            if any(e.spread is not None and e.spread < 1e-9 for row in table.rows for e in row):
                how += "; where these have equal means, by sample, and about these files alone"
        elif any(e.samples is not None for row in table.rows for e in row):
            how = f"of samples in rounds as said there; of others {how}"
        lines.append(f"95% intervals: {widths} points ({how}).")
    for benchmark, halves in () if short else uncertainty.clustered.items():
        shown = presentation_of(benchmark)
        lines.append(
            f"{shown.title}'s interval is over questions of these {shown.unit}; over other {shown.unit} too "
            f"({shown.unit} as clusters) it is {spans([('', half) for half in halves], '±').strip()} points."
        )
    if tested := uncertainty.tested:
        tests = " or ".join(sorted({c.test if c.recipe else f"paired {c.test}" for _, c in tested}))
        tests = tests.replace(" or paired ", " or ")
        lines.append(
            f"▲ above, ▼ below {' or '.join(uncertainty.baselines)} under the same context setting: p < {ALPHA}, "
            f"{tests} test, Holm over {counted(uncertainty.family, 'comparison')}."
        )
        lines += inference_lines(comparison for _, comparison in tested)
    if tested and not short:
        lines.append(
            "Differences smaller than these may go unseen (80% power at the level of these comparisons, "
            f"{ALPHA}/{uncertainty.family}): {spans((g, c.mdd) for g, c in tested)} points."
        )
    if uncertainty.untested and not short:
        lines.append(f"Not tested ({len(uncertainty.untested)}): {uncertainty.untested[0]}.")
    return lines


def _signs(entries: list[Entry]) -> list[str]:
    """What the signs among a table's numbers mean."""
    parts = []
    if any(e.value is None for e in entries):
        parts.append(f"{DASH} beyond the context's reach, or not there")
    if any(e.note is not None and "±" in e.note for e in entries):
        parts.append("in brackets half the width of the 95% interval, and the number of samples")
        if any(e.drop is not None for e in entries):
            parts.append("in parentheses the change against the same model's first un-extended context")
    elif any(e.note is not None for e in entries):
        more = ", and the number of samples" if any(e.samples is not None for e in entries) else ""
        parts.append(f"in brackets the 95% interval{more}")
    elif any(e.drop is not None for e in entries):
        parts.append("in parentheses the change against the same model's first un-extended context")
    if any(e.best for e in entries):
        parts.append("bold the best model under one context setting")
    if any("†" in e.marks for e in entries):
        parts.append("† from a part of the planned samples or tasks")
    return parts


def spans(values: Iterable[tuple[str, float]], before: str = "") -> str:
    """ "RULER ±0.7 to ±3.9, MMLU ±11.2": the smallest and largest value of each group, one decimal."""
    by_group: dict[str, list[float]] = {}
    for group, value in values:
        by_group.setdefault(group, []).append(value)
    parts = []
    for group, numbers in by_group.items():
        low, high = f"{before}{min(numbers):.1f}", f"{before}{max(numbers):.1f}"
        parts.append(f"{group} {low}" + (f" to {high}" if high != low else ""))
    return ", ".join(parts)


def clusters_title(shown: Presentation) -> str:
    """ "subjects as clusters (would it hold on other subjects?)": the name of a clustered interval."""
    return f"{shown.unit} as clusters (would it hold on other {shown.unit}?)"


# ------------------------------------------------------------------------------------------------- what moves a number


def lines_beneath(
    store: Store,
    view: TableOptions,
    cells: Collection[Cell],
    *,
    full: Iterable[str],
    short: Iterable[str],
    missing: Iterable[str],
    arms: bool = True,
) -> list[str]:
    """All lines beneath a table over `cells`; `arms`: what its arms are, too.

    `full`: what its numbers are and how to read them; `short`: those of them that a short caption keeps. What a row
    means, seed and options stand in a full caption only; damaged answers, the config's own lines and what is missing in
    both.
    """
    answered, own = checkpoint_view(store, cells)
    warnings = [
        *answer_lines(answered, own),
        *_arithmetic_lines(answered),
        *_unreadable_lines(answered, own),
        *free_lines(store),
    ]
    if view.caption == "short":
        return [*short, *warnings, *missing]
    models, contexts = ({getattr(cell, key) for cell in cells} for key in ("model", "context"))
    definitions = definition_lines(
        store,
        [label for label in chosen(labels(store, "models"), view.models) if label in models],
        [label for label in chosen(labels(store, "contexts"), view.contexts) if label in contexts],
    )
    rows = [label for label in labels(store, "models") if label in models and arms]
    return [*full, *arm_lines(store, rows), *definitions, *_protocol_lines(store), *warnings, *missing]


def _protocol_lines(store: Store) -> list[str]:
    """Seed, and divergence options that were on."""
    lines = []
    if (seed := store.manifest.get("seed", store.manifest.get("config", {}).get("seed"))) is not None:
        lines.append(f"Seed {seed}.")
    options = {k: v for k, v in (store.manifest.get("options") or {}).items() if v not in (None, False)}
    if options:
        texts = ", ".join(k if v is True else f"{k} {v}" for k, v in options.items())
        lines.append(f"Divergences from upstream that were on: {texts}.")
    return lines


def _unreadable_lines(store: Store, cells: Collection[Cell]) -> list[str]:
    unreadable = sum(store.scores(cell).unreadable for cell in cells)
    if not unreadable:
        return []
    return [
        f"Left out: {counted(unreadable, 'damaged line')} in the sample files; the same command answers their samples"
        " again."
    ]


def _arithmetic_lines(store: Store) -> list[str]:
    """Over the whole run: which answers were computed under other arithmetic than the rest."""
    mixed = mixed_line(store.manifest.get("arithmetic") or {}, store.arithmetic())
    return [mixed] if mixed else []


def free_lines(store: Store) -> list[str]:
    """The config's own caption lines."""
    return [str(line) for line in store.manifest.get("caption") or []]


# ------------------------------------------------------------------------------------------------- what is missing


def missing_lines(missing: Iterable[str], partial: Iterable[str] = ()) -> list[str]:
    """Cells that are missing, and cells that are partly there, in words; at most eight of each are named."""
    return _listed("Missing", missing) + _listed("† partial", partial)


def _listed(title: str, items: Iterable[str]) -> list[str]:
    once = list(dict.fromkeys(items))
    if not once:
        return []
    more = f"; and {len(once) - _MOST} more" if len(once) > _MOST else ""
    return [f"{title} ({len(once)}): {'; '.join(once[:_MOST])}{more}."]
