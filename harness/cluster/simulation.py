"""The scheduler under a virtual clock: how long a grid takes on many engines, with slow ones and with deaths.

Only the clock and the engines are invented. An engine answers one request after another at a constant rate, and knows
the beginnings that are in its prefix cache; a new one needs `start_seconds` before its first request.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from harness.cluster.load import Limit, Work
from harness.cluster.scheduler import Scheduler

_LIMIT = Limit(512, 2_000_000)


@dataclass(frozen=True, kw_only=True)
class Machines:
    """`rates`: cost per second of each engine. `deaths`: per second, over all engines.

    `start_seconds`: of an engine, at the beginning and after a death. `limit`: what an engine holds at most. `ahead`:
    prompt tokens that wait.
    """

    rates: Sequence[float]
    start_seconds: float = 60.0
    deaths: float = 0.0
    limit: Limit = _LIMIT
    ahead: int = 64_000_000
    seed: int = 0


@dataclass
class Outcome:
    """`seconds`: until the last answer. `ideal`: the same work without a pause, spread evenly by rate, and one start.

    `shared`: cost that prefix caches saved. `worked`: cost that was computed, copies and lost work included.
    `poisoned`: keys that were named. `twice`: answers that were dropped, because another engine's was there.
    """

    seconds: float = 0.0
    ideal: float = 0.0
    answered: dict[Hashable, str] = field(default_factory=dict)
    poisoned: list[Hashable] = field(default_factory=list)
    shared: float = 0.0
    worked: float = 0.0
    died: int = 0
    copies: int = 0
    twice: int = 0

    @property
    def efficiency(self) -> float:
        """Ideal time over time."""
        return self.ideal / self.seconds


@dataclass
class _Node:
    rate: float
    name: str = ""
    queue: deque[Work] = field(default_factory=deque)
    cached: set[Hashable] = field(default_factory=set)
    alive: bool = False
    working: int = 0  # the number of the event that ends what it works on; 0: idle


class Simulation:
    """One phase after the other (a model under a context setting is one), each to its end, as a run does it."""

    def __init__(self, machines: Machines, poison: Iterable[Hashable] = ()) -> None:
        self.machines, self.poison = machines, frozenset(poison)
        self.outcome = Outcome()
        self.now = 0.0
        self._random = random.Random(machines.seed)
        self._nodes = [_Node(rate) for rate in machines.rates]
        self._names = itertools.count(1)
        self._events: list[tuple[float, int, str, int]] = []  # time, number, kind, node
        self._numbers = itertools.count(1)
        self.scheduler = Scheduler()
        for index in range(len(self._nodes)):
            self._event(machines.start_seconds, "started", index)
        if machines.deaths:
            self._event(self._random.expovariate(machines.deaths), "death", 0)
        self.outcome.ideal = machines.start_seconds

    def run(self, phases: Iterable[Iterable[Work]]) -> Outcome:
        """Answer every request of every phase."""
        for phase in phases:
            self._phase(phase)
        self.outcome.seconds = self.now
        return self.outcome

    def _phase(self, works: Iterable[Work]) -> None:
        self.scheduler, source = Scheduler(), iter(works)
        begun: set[Hashable] = set()
        for node in self._nodes:
            node.cached.clear()  # another setting, another cache
            node.queue.clear()
            if node.alive:
                self.scheduler.join(node.name, self.machines.limit, self.now)
        self._fill(source, begun)
        changed = True
        while self.scheduler.unfinished:
            for index, node in enumerate(self._nodes):
                if changed and node.alive and not node.queue:
                    self._ask(index)
            changed = self._next_event()
            changed |= self._fill(source, begun)
        self.outcome.copies += self.scheduler.copies
        for node in self._nodes:
            node.working = 0  # what still runs are copies, and cancelled

    def _fill(self, source: Iterable[Work], begun: set[Hashable]) -> bool:
        """Let more requests wait where there is room; whether any were added, or their end was reached."""
        if self.scheduler.ended or self.scheduler.waiting_tokens >= self.machines.ahead // 2:
            return False
        for work in source:
            self.scheduler.add(work)
            saved = work.shared if work.group in begun else 0.0
            begun.add(work.group)
            self.outcome.ideal += (work.cost - saved) / sum(self.machines.rates)
            if self.scheduler.waiting_tokens >= self.machines.ahead:
                return True
        self.scheduler.ended = True
        return True

    def _event(self, delay: float, kind: str, node: int) -> int:
        number = next(self._numbers)
        heapq.heappush(self._events, (self.now + delay, number, kind, node))
        return number

    def _next_event(self) -> bool:
        """Whether engines without work may now be given some: one has come or gone, or has nothing left."""
        self.now, number, kind, index = heapq.heappop(self._events)
        node = self._nodes[index]
        if kind == "started":
            node.alive, node.name = True, f"engine {index + 1}.{next(self._names)}"
            self.scheduler.join(node.name, self.machines.limit, self.now)
        elif kind == "death":
            alive = [i for i, n in enumerate(self._nodes) if n.alive]
            if alive:
                self._die(self._random.choice(alive))
            self._event(self._random.expovariate(self.machines.deaths), "death", 0)
        elif number == node.working:
            self._answered(index)
            return not node.queue
        else:
            return False
        return True

    def _answered(self, index: int) -> None:
        node = self._nodes[index]
        work, node.working = node.queue.popleft(), 0
        if work.key in self.poison:
            self._die(index)
            return
        node.cached.add(work.group)
        if self.scheduler.finished(node.name, work.key, self.now).first:
            assert work.key not in self.outcome.answered
            self.outcome.answered[work.key] = node.name
        else:
            self.outcome.twice += 1
        self._ask(index)

    def _ask(self, index: int) -> None:
        node = self._nodes[index]
        node.queue.extend(self.scheduler.next_batch(node.name, self.now))
        held = set(self.scheduler.held(node.name)) if node.queue and self.scheduler.copies else None
        while held is not None and node.queue and node.queue[0].key not in held:
            node.queue.popleft()  # another engine has answered it meanwhile
        if node.queue and not node.working:
            work = node.queue[0]
            saved = work.shared if work.group in node.cached else 0.0
            self.outcome.shared += saved
            self.outcome.worked += work.cost - saved
            node.working = self._event((work.cost - saved) / node.rate, "answer", index)

    def _die(self, index: int) -> None:
        node = self._nodes[index]
        self.outcome.died += 1
        self.outcome.poisoned += [work.key for work in self.scheduler.leave(node.name, died=True)]
        node.alive, node.working = False, 0
        node.queue.clear()
        node.cached.clear()
        self._event(self.machines.start_seconds, "started", index)


def naive_seconds(cells: Iterable[tuple[Hashable, Sequence[Work]]], machines: Machines) -> float:
    """Seconds of the simplest way: each free engine takes the next cell and answers all of it.

    `cells`: (model, the cell's requests) in the order of a plan. An engine that gets a cell of another model starts
    again. No deaths.
    """
    free = [(0.0, index, None) for index in range(len(machines.rates))]
    heapq.heapify(free)
    for model, works in cells:
        now, index, had = heapq.heappop(free)
        now += machines.start_seconds if had != model else 0.0
        groups: set[Hashable] = set()
        cost = 0.0
        for work in works:
            cost += work.cost - (work.shared if work.group in groups else 0.0)
            groups.add(work.group)
        heapq.heappush(free, (now + cost / machines.rates[index], index, model))  # type: ignore[misc]
    return max(now for now, _, _ in free)
