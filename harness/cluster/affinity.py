"""Which requests begin alike, seen while they pass: an engine that has one of them has their beginning in its cache."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from harness.cluster.load import Work
from harness.cost.requests import RequestCosts
from harness.engine.requests import Prompt, Question

ALIKE = 64
"""Tokens. Requests whose first tokens are the same belong to one group."""
_REMEMBERED = 100_000  # groups


class Beginnings:
    """Turns the requests of one stream into the scheduler's `Work`.

    What the requests of a group share is measured once, on its first two.
    """

    def __init__(self, costs: RequestCosts) -> None:
        self._costs = costs
        self._first: dict[Hashable, Sequence[int]] = {}  # of groups with one request so far
        self._shared: dict[Hashable, float] = {}  # cost of the common beginning

    def work(self, key: Hashable, request: Prompt | Question) -> Work:
        """`request` as the scheduler sees it, under `key`."""
        ids = request.ids if isinstance(request, Prompt) else request.options[0][0]
        tokens = len(ids) if isinstance(request, Prompt) else sum(map(len, {c for c, _ in request.options}))
        group = hash(tuple(ids[:ALIKE]))
        if group not in self._shared:
            if (first := self._first.pop(group, None)) is not None:
                self._shared[group] = self._costs.prompt(_common(first, ids))
            elif len(self._first) < _REMEMBERED:
                self._first[group] = ids
        return Work(key, self._costs.request(request), tokens, group, self._shared.get(group, 0.0))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two prompts have in common at their beginning."""
    n = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:n]) != np.asarray(other[:n]))
    return int(differ[0]) if len(differ) else n
