"""Which engine answers which request: long ones first, common beginnings together, and nothing lost when one dies.

Pure: no Ray, no threads, no clock (`now` is an argument). `harness.cluster.pool` runs it with real engines,
`harness.cluster.simulation` with a virtual clock.

An engine asks for work (`next_batch`) when it has room. It gets, in this order:

1. requests of a group that it has begun (requests of a group begin alike, so their beginning is in its prefix cache);
2. the most expensive group that no engine has begun;
3. requests of the group that others have begun and that gains most by one engine more;
4. when nothing waits: requests that killed three engines, alone, in halves, until one is named;
5. copies of requests that a slower engine still has. The first answer counts.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Hashable

from harness.cluster.copies import copies_for
from harness.cluster.load import EngineLoad, Finished, Group, Limit, Work

SUSPECT_DEATHS = 3
"""A request that was in flight when so many engines died runs alone from then on."""
_SHARE = 0.5
"""Part of its even share of the known work that an engine holds at most: what is left is for whoever is free first."""
_AT_LEAST = 4
"""Requests that an engine may hold whatever its share: one at a time would leave a GPU idle between two answers."""
_WARM = 256
"""Groups per engine whose beginning is taken to be in its cache."""


class Scheduler:
    """Requests that wait, and engines that join, ask, answer and leave.

    `ended`: no more requests will be added; only then are copies given. `deaths`: request -> engines that died with it.
    """

    def __init__(self) -> None:
        self.ended = False
        self.deaths: Counter[Hashable] = Counter()
        self.copies = 0  # requests that were given to a second engine
        self._groups: dict[Hashable, Group] = {}
        self._untouched: list[tuple[float, int, Hashable]] = []  # a heap of groups that no engine has begun
        self._begun: dict[Hashable, None] = {}  # groups that engines have begun and of which requests wait
        self._engines: dict[str, EngineLoad] = {}
        self._holders: dict[Hashable, list[str]] = {}
        self._suspects: deque[list[Work]] = deque()
        self._count = itertools.count()
        self._waiting = 0
        self._cost = 0.0  # of all that wait or are held, copies once
        self._tokens = 0  # prompt tokens that wait

    # --- requests -------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """Requests without an answer."""
        return self._waiting + len(self._holders) + sum(map(len, self._suspects))

    @property
    def waiting(self) -> int:
        """Requests that no engine has, suspects not counted."""
        return self._waiting

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the requests that no engine has."""
        return self._tokens

    def add(self, work: Work) -> None:
        """A new request waits. Within a group the order of `add` is kept."""
        self._cost += work.cost
        self._wait(work)

    def _wait(self, work: Work, *, front: bool = False) -> None:
        group = self._groups.setdefault(work.group, Group())
        if not group.waiting and not group.owners:
            heapq.heappush(self._untouched, (-work.cost, next(self._count), work.group))
        (group.waiting.appendleft if front else group.waiting.append)(work)
        if group.owners:
            self._begun[work.group] = None
        group.cost += work.cost
        self._waiting += 1
        self._tokens += work.tokens

    # --- engines --------------------------------------------------------------------------------------------------

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that have joined and not left."""
        return tuple(self._engines)

    def held(self, engine: str) -> tuple[Hashable, ...]:
        """The requests that an engine has."""
        return tuple(self._engines[engine].held)

    def join(self, engine: str, limit: Limit, now: float) -> None:
        """A new engine, with a name that no present one has."""
        assert engine not in self._engines, engine
        self._engines[engine] = EngineLoad(limit, progress=now)

    def leave(self, engine: str, *, died: bool) -> list[Work]:
        """An engine is gone. What only it had waits again, in front.

        `died`: it counts against the requests that it had. Returns the requests that are now known to kill engines:
        they were alone on an engine that died. They are finished.
        """
        gone = self._engines.pop(engine)
        for group in gone.warm:
            self._disown(engine, group)
        back = []
        for work in gone.held.values():
            holders = self._holders[work.key]
            holders.remove(engine)
            self.deaths[work.key] += died
            if not holders:
                del self._holders[work.key]
                back.append(work)
        if gone.alone and died and len(back) == 1:
            self._forget(back[0])
            return back
        if gone.alone:
            half = (len(back) + 1) // 2 if died else len(back)
            self._suspects.extendleft(part for part in (back[half:], back[:half]) if part)
            return []
        suspects = [work for work in back if self.deaths[work.key] >= SUSPECT_DEATHS]
        if suspects:
            self._suspects.append(suspects)
        for work in reversed(back):
            if self.deaths[work.key] < SUSPECT_DEATHS:
                self._wait(work, front=True)
        return []

    def finished(self, engine: str, key: Hashable, now: float) -> Finished:
        """An engine has answered a request, or has given up on it. Not `first`: another one has answered it before."""
        holders = self._holders.get(key, [])
        if engine not in holders:
            return Finished(False)
        del self._holders[key]
        self._forget(self._engines[engine].held[key])
        for name in holders:
            self._release(self._engines[name], key, now, done=name == engine)
        return Finished(True, tuple(name for name in holders if name != engine))

    def _release(self, engine: EngineLoad, key: Hashable, now: float, *, done: bool) -> None:
        work = engine.held.pop(key)
        engine.tokens -= work.tokens
        engine.cost -= work.cost
        if done:
            engine.done += work.cost
            engine.progress = now
        if not engine.held:
            engine.alone = False
            engine.cost = 0.0  # no sum of rounding errors
            if engine.busy_since is not None:
                engine.busy += now - engine.busy_since
                engine.busy_since = None

    def _forget(self, work: Work) -> None:
        self._cost -= work.cost
        self.deaths.pop(work.key, None)

    # --- who gets what --------------------------------------------------------------------------------------------

    def next_batch(self, engine: str, now: float) -> list[Work]:
        """What `engine` is given now; it holds them from here on. Empty: it has enough, or there is nothing for it."""
        state = self._engines[engine]
        if state.alone:
            return []
        batch: list[Work] = []
        while self._has_room(state) and (work := self._pick(engine, state)) is not None:
            self._give(engine, state, work, now)
            batch.append(work)
        if not state.held and not self._waiting and self._suspects:
            batch = self._suspects.popleft()
            for work in batch:
                self._give(engine, state, work, now)
            state.alone = True
        if not state.held and not self._waiting and self.ended:
            batch = copies_for(state, self._engines.values(), self._may_copy, now)
            for work in batch:
                self._give(engine, state, work, now)
            self.copies += len(batch)
        return batch

    def _has_room(self, state: EngineLoad) -> bool:
        if not state.held:
            return True
        if len(state.held) >= state.limit.requests or state.tokens >= state.limit.tokens:
            return False
        if len(self._engines) == 1 or len(state.held) < _AT_LEAST:
            return True
        return state.cost < _SHARE * self._cost / len(self._engines)

    def _give(self, name: str, state: EngineLoad, work: Work, now: float) -> None:
        if not state.held:
            state.busy_since = state.progress = now
        state.held[work.key] = work
        state.tokens += work.tokens
        state.cost += work.cost
        self._holders.setdefault(work.key, []).append(name)
        self._own(name, state, work.group)

    def _own(self, name: str, state: EngineLoad, key: Hashable) -> None:
        """The group's beginning is in the engine's cache from now on, and the group used longest ago no longer."""
        state.warm.pop(key, None)
        state.warm[key] = None
        group = self._groups.setdefault(key, Group())
        group.owners.add(name)
        if group.waiting:
            self._begun[key] = None
        if len(state.warm) > _WARM:
            oldest = next(iter(state.warm))
            del state.warm[oldest]
            self._disown(name, oldest)

    def _disown(self, name: str, key: Hashable) -> None:
        group = self._groups[key]
        group.owners.discard(name)
        if not group.owners:
            self._begun.pop(key, None)
            if group.waiting:
                heapq.heappush(self._untouched, (-group.waiting[0].cost, next(self._count), key))
            else:
                del self._groups[key]

    def _pick(self, name: str, state: EngineLoad) -> Work | None:
        if not self._waiting:
            return None
        last = next(reversed(state.warm), None)
        if last in self._begun and state.warm:
            return self._take(last)
        for key in self._begun:
            if name in self._groups[key].owners:
                return self._take(key)
        while self._untouched:
            key = heapq.heappop(self._untouched)[2]
            group = self._groups.get(key)
            if group is not None and group.waiting and not group.owners:
                return self._take(key)
        joined = max(self._begun, key=self._gain, default=None)
        return None if joined is None and not self._begun else self._take(joined)

    def _gain(self, key: Hashable) -> float:
        """What another engine would take over of a group that engines have begun, less what it would compute again."""
        group = self._groups[key]
        return group.cost / (len(group.owners) + 1) - group.waiting[0].shared

    def _take(self, key: Hashable) -> Work:
        group = self._groups[key]
        work = group.waiting.popleft()
        group.cost -= work.cost
        if not group.waiting:
            self._begun.pop(key, None)
        self._waiting -= 1
        self._tokens -= work.tokens
        return work

    def _may_copy(self, work: Work) -> bool:
        """Each request is copied once; one that may kill engines is not."""
        return len(self._holders[work.key]) == 1 and self.deaths[work.key] < SUSPECT_DEATHS
