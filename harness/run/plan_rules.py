"""What a plan refuses about samples in rounds, once its cells are known: goals that no number of samples can reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from harness.config.sampling import Decide, Sampling
from harness.types import Cell


def undecidable(decide: Decide | None, rules: Mapping[Cell, Sampling | None]) -> list[str]:
    """Why `decide` can decide nothing, or leaves samples without an end: numbers that only one of its models has.

    `rules`: the rule of every cell's samples; None: a plain count.
    """
    if decide is None:
        return []
    two = (decide.baseline, decide.candidate)
    ruled = {c: rule for c, rule in rules.items() if rule is not None and c.model in two}
    both = "give both the same contexts, within the reach of both"
    alone = [c for c in ruled if dataclasses.replace(c, model=two[c.model == two[0]]) not in ruled]
    if len(alone) == len(ruled):
        return [f"decide: {two[0]!r} and {two[1]!r} have no samples in common whose number may grow; {both}"]
    endless = [c for c in alone if ruled[c].precision is None]
    places = dict.fromkeys((c.model, c.context, c.benchmark, c.length) for c in endless)
    return [
        f"decide: of the two models only {model!r} has {benchmark}{f' at {length}' if length else ''} under"
        f" {context!r}, so nothing says when to stop there; add precision to its samples, or {both}"
        for model, context, benchmark, length in places
    ]


def without_points(ruled: Iterable[Cell], in_points: Callable[[Cell], bool]) -> list[str]:
    """Tasks whose samples come in rounds and whose numbers are no points: a goal in points means nothing to them."""
    tasks = {(cell.benchmark, cell.task): cell for cell in ruled}
    return [
        f"{benchmark}{'' if task == benchmark else f' {task}'}: its samples have a goal in points, and it reports"
        " perplexities; give a number of samples, or leave `samples` out for all of its texts"
        for (benchmark, task), cell in tasks.items()
        if not in_points(cell)
    ]
