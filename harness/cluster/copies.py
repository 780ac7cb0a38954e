"""Copies of what a slow engine still has, for an engine that has nothing left: the first answer counts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.cluster.load import EngineLoad, Work


def copies_for(
    idle: EngineLoad, engines: Iterable[EngineLoad], may_copy: Callable[[Work], bool], now: float
) -> list[Work]:
    """Half of what the engine that will end last still has, taken from its end.

    `may_copy`: whether a request may be given to a second engine.
    """
    own = idle.rate(now)
    slowest: tuple[float, EngineLoad] | None = None
    for state in engines:
        if state.held and not state.alone:
            left = state.seconds_left(state.rate(now) or own, now)
            if slowest is None or left > slowest[0]:
                slowest = left, state
    if slowest is None:
        return []
    left, state = slowest
    copies: list[Work] = []
    cost = 0.0
    for work in reversed(state.held.values()):
        if not may_copy(work):
            continue
        # worth it where this engine would be done with it before the other one
        if own is not None and (cost + work.cost) / own >= left:
            break
        if copies and cost + work.cost > state.cost / 2:
            break
        if len(copies) >= idle.limit.requests:
            break
        copies.append(work)
        cost += work.cost
    copies.reverse()
    return copies
