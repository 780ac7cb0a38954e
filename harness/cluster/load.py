"""What the scheduler knows of a request, of requests that begin alike, and of an engine. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Work:
    """One request. `cost`: in any unit. `tokens`: of its prompt. `group`: requests of a group begin alike.

    `shared`: the cost of the group's common beginning, which an engine that joins the group computes once more.
    """

    key: Hashable
    cost: float
    tokens: int = 1
    group: Hashable = None
    shared: float = 0.0


@dataclass(frozen=True)
class Limit:
    """What an engine holds at most. Another request is given while both counts are below them."""

    requests: int = 512
    tokens: int = 8_000_000


@dataclass(frozen=True)
class Finished:
    """`first`: no other engine has answered this request. `cancel`: engines that still have it."""

    first: bool
    cancel: tuple[str, ...] = ()


@dataclass
class Group:
    """Requests that begin alike. `owners`: engines that have their beginning in their cache."""

    waiting: deque[Work] = field(default_factory=deque)
    cost: float = 0.0  # of all that wait
    owners: set[str] = field(default_factory=set)


@dataclass
class EngineLoad:
    """What an engine has and what it has done."""

    limit: Limit
    held: dict[Hashable, Work] = field(default_factory=dict)  # in the order in which they were given
    tokens: int = 0
    cost: float = 0.0
    warm: dict[Hashable, None] = field(default_factory=dict)  # groups, the one used last at the end
    alone: bool = False  # it runs suspects, and nothing else
    done: float = 0.0  # cost of what it has answered
    busy_since: float | None = None
    busy: float = 0.0  # seconds with work
    progress: float = 0.0  # when it was last given work while idle, or last answered

    def rate(self, now: float) -> float | None:
        """Cost per second; None before its first answer."""
        busy = self.busy + (now - self.busy_since if self.busy_since is not None else 0.0)
        return self.done / busy if self.done and busy > 0 else None

    def seconds_left(self, rate: float | None, now: float) -> float:
        """Seconds until it will have answered all that it has; infinite where it is overdue, or nothing is known."""
        if rate is None:
            return math.inf
        whole, idle = self.cost / rate, now - self.progress
        return math.inf if idle > 2 * whole else max(0.0, whole - idle)
