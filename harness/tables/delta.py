"""Candidate minus baseline, paired: every task, every average, with interval, test and what could not be seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from harness import stats
from harness.benchmarks.presentation import presentation_of
from harness.config import TableOptions
from harness.store import Store
from harness.tables.aggregates import over_length, tasks_of
from harness.tables.arms_caption import inference_lines
from harness.tables.caption import clusters_title, lines_beneath, missing_lines
from harness.tables.comparisons import Line, check_found, choose, lines
from harness.tables.family import adjust_lines
from harness.tables.layout import Column, Entry, Table, length_title
from harness.tables.paired import ALPHA
from harness.tables.sampled import rounds_lines
from harness.tables.view import viewed
from harness.text import counted, interval_text
from harness.types import GatedevalError

COLUMNS: dict[str, Callable[[Line], Any]] = {
    "context": lambda x: x.context,
    "benchmark": lambda x: x.benchmark,
    "task": lambda x: x.task,
    "length": lambda x: x.length,  # tokens; 0 where the benchmark has none, empty in CSV
    "samples": lambda x: x.comparison.samples,
    "baseline": lambda x: x.comparison.baseline,  # 0-100, or on the metric's own scale; so are the next four
    "candidate": lambda x: x.comparison.candidate,
    "difference": lambda x: x.comparison.difference,  # candidate - baseline
    "ci_low": lambda x: x.comparison.low,  # of the difference, 95%
    "ci_high": lambda x: x.comparison.high,
    "p": lambda x: x.comparison.p,
    "p_adjusted": lambda x: x.comparison.adjusted,  # Holm over the table
    "significant": lambda x: x.comparison.significant,
    "test": lambda x: x.comparison.test,
    "gained": lambda x: x.comparison.gained,  # samples that only the candidate scores higher
    "lost": lambda x: x.comparison.lost,  # samples that only the baseline scores higher
    "mdd": lambda x: x.comparison.mdd,  # minimum detectable difference, 80% power; unit of the difference
    "metric": lambda x: x.metric or "",
    "cluster_low": lambda x: (x.comparison.clustered or (math.nan,))[0],  # of the difference, tasks as clusters
    "cluster_high": lambda x: (x.comparison.clustered or (math.nan,))[-1],
}
"""The columns of `frame_of`, in order, and how each is computed from a line."""


def _of_arm(side: int, of: Callable[[Any], float]) -> Callable[[Line], Any]:
    return lambda x: of(x.comparison.checkpoints[side]) if x.comparison.checkpoints else math.nan


ARM_COLUMNS: dict[str, Callable[[Line], Any]] = {
    "checkpoints_baseline": _of_arm(0, len),
    "checkpoints_candidate": _of_arm(1, len),
    "sd_baseline": lambda x: x.comparison.scale * _of_arm(0, stats.spread)(x),  # between checkpoints
    "sd_candidate": lambda x: x.comparison.scale * _of_arm(1, stats.spread)(x),
    "infer": lambda x: "recipe" if x.comparison.recipe else "files",
    "hierarchical_low": lambda x: (x.comparison.hierarchical or (math.nan,))[0],  # for other samples too
    "hierarchical_high": lambda x: (x.comparison.hierarchical or (math.nan,))[-1],
}
"""Columns that follow where a row is an arm of several checkpoints."""


def delta_table(store: Store, baseline: str | None = None, candidate: str | None = None) -> Table:
    """Rows: context, benchmark, task, length. Columns: both scores, their difference with its 95% interval, the
    Holm-adjusted p-value, samples gained and lost, and the difference that these samples could show.

    Raises GatedevalError where the two have no cell in common that both have scores for.
    """
    store, view = viewed(store)
    baseline, candidate = choose(store, baseline, candidate)
    found, absent = lines(store, baseline, candidate)
    check_found(found, absent, baseline, candidate)
    families = adjust_lines(store, found, baseline, candidate)
    found = [line for line in found if _shown(view, line)]
    if not found:
        raise GatedevalError(
            f"{candidate!r} and {baseline!r} have no number in common under the chosen contexts, benchmarks and lengths"
        )
    columns = [
        *(Column(title=t, numeric=False) for t in ("context", "benchmark", "task")),
        Column(title="length", plain=True),
        Column(title=baseline),
        Column(title=candidate),
        Column(title="difference", plain=True),
        Column(title="95% interval", numeric=False),
        Column(title="p (Holm)", plain=True),
        Column(title="gained", plain=True),
        Column(title="lost", plain=True),
        Column(title="detectable", plain=True),
    ]
    rows, breaks, previous = [], set(), None
    for line in found:
        if previous is not None and previous != (line.context, line.benchmark, line.length):
            breaks.add(len(rows))
        previous = (line.context, line.benchmark, line.length)
        rows.append(_row(line, view.digits))
    table = Table(
        style="delta",
        title=str(store.manifest.get("name", store.path.name)),
        columns=columns,
        rows=rows,
        make_frame=lambda: frame_of(found),
        breaks=breaks,
        missing=missing_lines(absent),
    )
    table.headline, table.label = f"{candidate} minus {baseline}, paired on the same samples.", view.label
    cells = {cell for line in found for pair in line.comparison.cells for cell in pair}
    reading = _reading(store, baseline, candidate, found, families)
    table.caption = lines_beneath(
        store,
        view.model_copy(update={"models": (baseline, candidate)}),
        [cell for cell in store.cells if cell in cells],
        full=reading,
        short=reading[:3],
        missing=[*table.missing, *_unpaired(found)],
    )
    return table


def _shown(view: TableOptions, line: Line) -> bool:
    return (
        (view.contexts is None or line.context in view.contexts)
        and (view.benchmarks is None or line.benchmark in view.benchmarks)
        and (view.lengths is None or not line.length or line.length in view.lengths)
    )


def _reading(store: Store, baseline: str, candidate: str, found: list[Line], families: list[str]) -> list[str]:
    """What the numbers are and how to read them; the first three lines are what a short caption keeps."""
    recipe = any(line.comparison.recipe for line in found)
    averages = [(presentation_of(name).title, len(tasks_of(store, name))) for name in over_length(store)]
    how = "bootstrap of the per-sample differences, stratified by task"
    tests = "exact McNemar for 0/1 scores, sign-flip permutation for fractional ones and averages"
    if recipe:
        how, tests = "Welch's t over checkpoints", " or ".join(sorted({line.comparison.test for line in found}))
    return [
        f"{candidate} minus {baseline}, points on 0-100, paired on the same samples; intervals by {how}.",
        f"▲ {candidate} above, ▼ below: p < {ALPHA} after Holm's adjustment ({'; '.join(families)}); {tests}.",
        "gained, lost: samples on which only one of the two scores higher; detectable: the smallest difference that "
        f"these {'checkpoints' if recipe else 'samples'} show with 80% power at the level of their family, {ALPHA} "
        "divided by its comparisons.",
        *inference_lines(line.comparison for line in found),
        *rounds_lines(store, {cell for line in found for pair in line.comparison.cells for cell in pair}),
        *(
            ["Where samples came in rounds: intervals and p-values of a z test; of a decision, over all its looks."]
            if any(line.comparison.test.startswith(("z", "repeated z")) for line in found)
            else []
        ),
        *(f"average: mean over {n} {title} tasks with equal weight." for title, n in averages if n > 1),
        *(
            f"{line.context}: {line.shown.title}'s difference with {clusters_title(line.shown)}: "
            f"{interval_text(*line.comparison.clustered)}."
            for line in found
            if line.comparison.clustered is not None
        ),
    ]


def _unpaired(found: list[Line]) -> list[str]:
    unpaired = sum(line.comparison.unpaired for line in found if not line.whole)
    return [f"Left out: {counted(unpaired, 'sample')} that only one of the two models has."] if unpaired else []


def _row(line: Line, digits: int) -> list[Entry]:
    c = line.comparison
    mode = line.shown.mode(line.metric)
    length = length_title(line.length) if line.length else ""
    best = round(c.candidate, digits) - round(c.baseline, digits)
    own = [tuple(c.scale * float(m) for m in means) for means in c.checkpoints or ((), ())]
    return [
        Entry(text=line.context),
        Entry(text=line.benchmark),
        Entry(text=line.task + (f" ({mode})" if mode else "")),
        Entry(text=length),
        Entry(value=c.baseline, best=best < 0, decimals=digits, checkpoints=own[0]),
        Entry(value=c.candidate, best=best > 0, decimals=digits, checkpoints=own[1]),
        Entry(value=c.difference, signed=True, marks=c.mark, decimals=digits),
        Entry(text=interval_text(c.low, c.high, digits)),
        Entry(value=c.adjusted, decimals=4),
        Entry(value=c.gained, decimals=0),
        Entry(value=c.lost, decimals=0),
        Entry(value=c.mdd, decimals=digits),
    ]


def frame_of(found: list[Line]) -> pd.DataFrame:
    """The comparisons as a tidy frame, one row per line; `COLUMNS` says the columns and their units.

    Where arms are compared, `ARM_COLUMNS` follow.
    """
    columns = COLUMNS | (ARM_COLUMNS if any(x.comparison.checkpoints for x in found) else {})
    return pd.DataFrame([[value(x) for value in columns.values()] for x in found], columns=list(columns))
