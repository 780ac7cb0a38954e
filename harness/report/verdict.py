"""The verdicts on top of the page: for every pair of models that the run's table tests, what `compare` says of it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.store import Store
from harness.tables.arms_caption import inference_lines
from harness.tables.compare import count_sentence, line_name, sentence
from harness.tables.comparisons import Line, choose, headlines, lines, task_marks
from harness.tables.family import adjust_lines
from harness.tables.rows import declared_comparisons
from harness.text import interval_text, number_text
from harness.types import GatedevalError

_MOST_SENTENCES = 3  # significant comparisons that a verdict spells out; the fold has all
_MARGIN = 1.08  # the drawn scale is this much longer than the longest interval


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One comparison as the fold draws it: texts, and places on the track in percent of its width."""

    context: str
    name: str
    samples: int
    baseline: str
    candidate: str
    difference: str
    interval: str
    p: str
    kind: str  # "gain", "loss" or "none"
    low: float
    high: float
    at: float
    gained: int
    lost: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Candidate against baseline in words.

    `lead`: one short sentence. `sentences`: `compare`'s own on the comparisons that decide, else on the largest
    difference; `counts`: its sentences on all comparisons. `rows`: every comparison of a benchmark, with `scale`: the
    difference in points at the ends of the track. `marks`: (context, task, length) -> "▲" or "▼" for the single tasks
    with a significant difference.
    """

    baseline: str
    candidate: str
    lead: str
    sentences: list[str]
    counts: list[str]
    rows: list[Drawn]
    scale: float
    marks: dict[tuple[str, str, int], str]
    unit: str  # what the tests take as independent
    about: list[str]  # of arms: what the comparisons are about


def verdicts(
    store: Store, baseline: str | None = None, candidate: str | None = None
) -> tuple[list[Verdict], list[str]]:
    """A verdict per pair, in the order of the table, and the reasons why pairs have none.

    `baseline` and `candidate` together choose one pair; the baseline alone, whom all others are compared with.
    """
    if baseline is not None and candidate is not None:
        pairs = [choose(store, baseline, candidate)]
    else:
        compared = (c.cells[0] for c, _ in declared_comparisons(store, baseline))
        pairs = [p for p in dict.fromkeys((a.model, b.model) for a, b in compared) if candidate in (None, p[1])]
    found, absent = [], []
    for pair in pairs:
        try:
            if (verdict := _verdict(store, *pair)) is not None:
                found.append(verdict)
        except GatedevalError as error:
            absent.append(str(error))
    return found, absent


def _verdict(store: Store, baseline: str, candidate: str) -> Verdict | None:
    found, _ = lines(store, baseline, candidate)
    if not found:
        return None
    families = adjust_lines(store, found, baseline, candidate)
    main = headlines(found)
    single = [line for line in found if line not in main]
    told: list[str] = []
    counted = [count_sentence(main, candidate, "comparisons", families[0])]
    if single:
        counted.append(count_sentence(single, candidate, "single tasks", families[1]))
    decisive = sorted((x for x in main if x.comparison.significant), key=lambda x: x.comparison.p)[:_MOST_SENTENCES]
    if not decisive:
        largest = max(main, key=lambda x: abs(x.comparison.difference))
        told.append(f"The largest difference: {largest.context}, {sentence(largest, baseline, candidate)}.")
    told += [f"{line.context}, {sentence(line, baseline, candidate)}." for line in decisive]
    ends = [abs(v) for x in main for v in (x.comparison.low, x.comparison.high, x.comparison.difference)]
    scale = max(1.0, _MARGIN * max(ends))
    return Verdict(
        baseline=baseline,
        candidate=candidate,
        lead=_lead(main, baseline, candidate),
        sentences=told,
        counts=counted,
        rows=[_drawn(line, scale) for line in main],
        scale=scale,
        marks=task_marks(found),
        unit="with checkpoints as the unit" if any(x.comparison.recipe for x in main) else "paired on the same samples",
        about=inference_lines(x.comparison for x in main),
    )


def _lead(main: list[Line], baseline: str, candidate: str) -> str:
    won = [x for x in main if x.comparison.significant and x.comparison.difference > 0]
    lost = [x for x in main if x.comparison.significant and x.comparison.difference < 0]
    under = " or ".join(dict.fromkeys(x.context for x in main))
    if not won and not lost:
        return f"No difference is shown between {candidate} and {baseline} under {under}."
    parts = [f"{word} in {len(x)}{_by(x)}" for word, x in (("better", won), ("worse", lost)) if x]
    return f"Of {len(main)} comparisons with {baseline}, {candidate} is {' and '.join(parts)}."


def _by(decisive: list[Line]) -> str:
    """ " (by 8.5 to 10.0 points)", or the one comparison: " (RULER at 8K under YaRN, by 12.5 points)"."""
    sizes = sorted(abs(x.comparison.difference) for x in decisive)
    low, high = f"{sizes[0]:.1f}", f"{sizes[-1]:.1f}"
    if len(decisive) == 1:
        return f" ({line_name(decisive[0])} under {decisive[0].context}, by {low} points)"
    return f" (by {low} to {high} points)" if low != high else f" (by {low} points)"


def _drawn(line: Line, scale: float) -> Drawn:
    c = line.comparison

    def place(points: float) -> float:
        return round(50 * (1 + points / scale), 2)

    kind = "none" if not c.significant else "gain" if c.difference > 0 else "loss"
    return Drawn(
        context=line.context,
        name=line_name(line),
        samples=c.samples,
        baseline=number_text(c.baseline, 2),
        candidate=number_text(c.candidate, 2),
        difference=number_text(c.difference, 2, signed=True) + c.mark,
        interval=interval_text(c.low, c.high),
        p=f"{c.adjusted:.2g}",
        kind=kind,
        low=place(c.low),
        high=place(c.high),
        at=place(c.difference),
        gained=c.gained,
        lost=c.lost,
    )
