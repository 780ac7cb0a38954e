"""How many engines each model gets, when several models are answered at once. Pure.

An engine goes to the model that has most work per engine, one after the other. That makes the longest time over models
as short as whole engines allow. No model gets more engines than it can use.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

AT_ONCE = 8
"""Models at most. Each has a process of its own that makes its samples, and one driver serves them all."""


def usable(work: float, longest: float, requests: int) -> int:
    """Engines that can work on `requests` at once: with more, the `longest` request alone would decide the time.

    `work`: of all of them, in the unit of `longest`.
    """
    if not requests:
        return 1
    return max(1, min(requests, math.ceil(work / longest)) if longest > 0 else requests)


def divide(
    engines: int, work: Mapping[str, float], most: Mapping[str, int], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Model -> engines, from `given` on, which nobody loses; at least one each as long as there are engines.

    `engines`: all there are. `work`: of each model, in one unit. `most`: engines that each can use.
    """
    shares = {label: (given or {}).get(label, 0) for label in work}
    order = {label: n for n, label in enumerate(work)}

    def need(label: str) -> tuple[float, int, str]:
        per_engine = work[label] / shares[label] if shares[label] else math.inf
        return -per_engine, order[label], label

    queue = [need(label) for label in work if shares[label] < most[label]]
    heapq.heapify(queue)
    for _ in range(engines - sum(shares.values())):
        if not queue:
            break
        label = heapq.heappop(queue)[-1]
        shares[label] += 1
        if shares[label] < most[label]:
            heapq.heappush(queue, need(label))
    return shares


@dataclass
class Share:
    """One model's part. `left`: its work that is not done; `most`: engines that it can use; `given`: those it has.

    `since`: when it began to answer, with `then` work left; `start_seconds`: what its engine's start took.
    """

    left: Callable[[], float]
    most: int
    given: int = 0
    since: float | None = None
    then: float = 0.0
    start_seconds: float = 0.0

    def begins(self, now: float, start_seconds: float) -> None:
        """Its first engine is there."""
        self.since, self.then, self.start_seconds = now, self.left(), start_seconds

    def worth_more(self, now: float) -> bool:
        """Whether another engine would answer for longer than it takes to start."""
        if self.since is None or (done := self.then - (left := self.left())) <= 0:
            return True
        return left * (now - self.since) / done > 2 * self.start_seconds
