"""All processes of a run's engines: which of them no model has at present."""

from __future__ import annotations

from collections.abc import Iterable

from harness.cluster.member import Member, State


class Roster:
    """`members`: processes that are there already. `everyone`: those that a model has, too."""

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self.everyone = list(members)
        self._free = list(self.everyone)

    def take(self) -> Member:
        """A member that no model has, best one with a process; a new one where there is none."""
        if not self._free:
            self.everyone.append(Member(len(self.everyone) + 1))
            self._free.append(self.everyone[-1])
        member = min(self._free, key=lambda m: (m.handle is None, m.slot))
        self._free.remove(member)
        member.failures = member.engines = 0
        if member.state is State.GIVEN_UP:
            member.state, member.retry_at = State.GONE, 0.0
        return member

    def give_back(self, members: Iterable[Member]) -> None:
        """A model does not need these any more."""
        self._free += members

    @property
    def idle(self) -> bool:
        """Whether a member that no model has has a process, and so a place on a node."""
        return any(m.handle is not None and m.state is not State.SPAWNING for m in self._free)
