"""What a cell's answers look like beside their scores: empty, all the same, cut by their budget, tied options.

A model whose weights are damaged still gets a score, and on multiple choice not even a low one. These counts show it. A
line is printed only for a share that chance does not explain, and it states its rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness import stats
from harness.store import Store
from harness.store.scores import EMPTY, CellScores
from harness.tables.aggregates import describe
from harness.types import Cell

CAPPED_SHARE = 0.01  # a line names cells with more length-capped answers than this share
EMPTY_RATE = 0.01  # empty answers that a sound model may give
SAME_SHARE = 0.9  # share of one answer from which a cell's answers count as the same
LEVEL = 0.001  # of the binomial tests: one cell in a thousand is named by chance
_MOST = 6  # cells that a line names; of more, the tasks are named


@dataclass(frozen=True, kw_only=True)
class AnswerCounts:
    """Counts over a cell's samples.

    `empty`: answers without a visible character after the thought. `same`: the most frequent answer that is not empty.
    `same_reference`: the most frequent reference. `capped`: answers cut by their token budget. `tied`: questions whose
    highest option score is shared exactly by two or more options; the first of them is then the answer.
    """

    samples: int
    empty: int
    same: int
    same_reference: int
    capped: int
    tied: int

    @property
    def many_empty(self) -> bool:
        """Whether there are more empty answers than a rate of 1% gives by chance."""
        return self.empty > 0 and stats.binomial_tail(self.empty, self.samples, EMPTY_RATE) < LEVEL

    @property
    def nearly_all_same(self) -> bool:
        """Whether at least 90% of the answers are one answer, more often than the most frequent reference explains."""
        if not self.samples or self.same < SAME_SHARE * self.samples:
            return False
        return stats.binomial_tail(self.same, self.samples, self.same_reference / self.samples) < LEVEL


def answer_counts(columns: CellScores) -> AnswerCounts:
    """The counts of one cell."""
    visible = columns.answers[columns.answers != EMPTY]
    return AnswerCounts(
        samples=len(columns.ids),
        empty=int((columns.answers == EMPTY).sum()),
        same=_most_frequent(visible),
        same_reference=_most_frequent(columns.references),
        capped=int(columns.capped.sum()),
        tied=int(columns.tied.sum()),
    )


def _most_frequent(numbers: np.ndarray) -> int:
    return int(np.unique(numbers, return_counts=True)[1].max()) if numbers.size else 0


def answer_lines(store: Store, cells: Iterable[Cell]) -> list[str]:
    """One line per kind of answer among `cells` that a reader should know of; none where nothing stands out."""
    counts = {cell: found for cell in cells if (found := answer_counts(store.scores(cell))).samples}
    lines = []
    for title, chosen in (
        (
            "Answers cut by their token budget in more than 1% of samples",
            {cell: c.capped for cell, c in counts.items() if c.capped > CAPPED_SHARE * c.samples},
        ),
        (
            f"Empty answers, more than a rate of 1% explains (binomial test, p < {LEVEL})",
            {cell: c.empty for cell, c in counts.items() if c.many_empty},
        ),
        (
            "The same answer to at least 90% of samples whose references differ more than that (binomial test, "
            f"p < {LEVEL})",
            {cell: c.same for cell, c in counts.items() if c.nearly_all_same},
        ),
    ):
        if chosen:
            shares = {cell: number / counts[cell].samples for cell, number in chosen.items()}
            lines.append(f"{title}: {', '.join(_where(shares, counts))}.")
    tied = {cell: c.tied for cell, c in counts.items() if c.tied}
    if tied:
        lines.append(
            "Questions whose highest option score is shared exactly by two or more options (the first of them counts "
            f"as the answer): {', '.join(_tied(tied, counts))}."
        )
    return lines


def _where(shares: dict[Cell, float], counts: dict[Cell, AnswerCounts]) -> list[str]:
    """The cells with their shares; where they are many, the tasks with their highest share."""
    if len(shares) <= _MOST:
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        return [f"{describe(cell)} {100 * share:.0f}%" for cell, share in ranked]
    tasks: dict[str, list[float]] = {}
    for cell, share in shares.items():
        tasks.setdefault(cell.task, []).append(share)
    of = Counter(cell.task for cell in counts)
    return [
        f"{task} up to {100 * max(found):.0f}% (in {len(found)} of {of[task]} cells)"
        for task, found in sorted(tasks.items(), key=lambda item: -max(item[1]))
    ]


def _tied(tied: dict[Cell, int], counts: dict[Cell, AnswerCounts]) -> list[str]:
    """The cells with their numbers of ties; where they are many, the sums per model, context and benchmark."""
    if len(tied) <= _MOST:
        return [f"{describe(cell)} {number} of {counts[cell].samples}" for cell, number in tied.items()]
    groups: dict[str, list[int]] = {}
    for cell, count in counts.items():
        key = f"{cell.model} / {cell.context} / {cell.benchmark}"
        tally = groups.setdefault(key, [0, 0])
        tally[0] += tied.get(cell, 0)
        tally[1] += count.samples
    return [f"{key} {number} of {samples}" for key, (number, samples) in groups.items() if number]
