"""Which comparisons are tested together: one declared family per run, the same in table, report, delta and compare.

The declared family are the comparisons of Table 5: in every context, every other model against that context's
baseline, in every score column. run.json names the baselines (`comparisons.baselines`); a run without them has each
context's first planned model. A caller who names another baseline gets the family of the table with that baseline.
Single tasks are a family of their own. The commands name the family beside their verdicts.
"""

from __future__ import annotations

from harness.store import Store
from harness.tables.comparisons import Line, headlines
from harness.tables.paired import Comparison, adjust
from harness.tables.rows import declared_comparisons
from harness.text import counted
from harness.types import Cell

_Key = tuple[frozenset[tuple[Cell, Cell]], str]


def adjust_lines(store: Store, found: list[Line], baseline: str, candidate: str) -> list[str]:
    """Adjust the p-values of the lines in place. Returns one sentence per family: how many comparisons, and of what."""
    main = headlines(found)
    single = [line for line in found if line not in main]
    declared = {_key(store, c, metric): c for c, metric in declared_comparisons(store)}
    whose = "the run's table"
    if not any(_key(store, line.comparison, line.metric) in declared for line in main):
        declared = {_key(store, c, metric): c for c, metric in declared_comparisons(store, baseline)}
        whose = f"the table with baseline {baseline}"
    members = [declared.get(_key(store, line.comparison, line.metric)) for line in main]
    if main and all(member is not None for member in members):
        for line, member in zip(main, members, strict=True):
            assert member is not None
            line.comparison.judge(member.family)
            line.comparison.adjusted = member.adjusted
        sentences = [f"benchmarks: Holm over the {counted(len(declared), 'comparison')} of {whose}"]
    else:
        adjust([line.comparison for line in main])
        sentences = [f"benchmarks: Holm over {_these(main)} (the table does not have all of them)"]
    if single:
        adjust([line.comparison for line in single])
        sentences.append(f"single tasks: Holm over {_these(single)}")
    return sentences


def _these(lines: list[Line]) -> str:
    return f"these {len(lines)} comparisons" if len(lines) > 1 else "this comparison alone"


def _key(store: Store, comparison: Comparison, metric: str | None) -> _Key:
    """What a comparison is about: its pairs of cells, and the metric (the headline metric where none is named)."""
    first = comparison.cells[0][0]
    return frozenset(comparison.cells), metric or store.scores(first).headline or ""
