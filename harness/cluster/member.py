"""One engine of a pool: its process, its state, and what it has done."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.cluster.backend import Handle, Ref
from harness.cluster.load import Limit


class State(enum.Enum):
    """Where a member stands. A member with a pending call goes on to the next state when the reply comes."""

    GONE = "has no process; another one is started at `retry_at`"
    SPAWNING = "waits for its process"
    CHECKING = "looks for the models' files"
    IDLE = "has a process and no engine"
    STARTING = "starts its engine"
    STARTED = "has an engine that is not under the pool's context setting"
    SETTING = "changes to a context setting and checks itself"
    READY = "answers"
    REFUSED = "its engine is not right under the present context setting"
    GIVEN_UP = "failed too often"


@dataclass
class Member:
    """`slot`: its number, from 1. `name`: of its present engine; a new engine has a new one."""

    slot: int
    state: State = State.GONE
    handle: Handle = None
    call: Ref = None  # the pending call that changes its state
    poll: Ref = None  # the pending poll; there is always one, so that no answer is lost
    place: str = ""
    info: dict[str, Any] = field(default_factory=dict)  # `EngineWorker.describe`
    cores: tuple[int, ...] = ()
    started: dict[str, Any] = field(default_factory=dict)  # `EngineWorker.start`
    setting: str = ""  # label of the context setting that the pending or last call has set
    engines: int = 0  # engines that it has started
    failures: int = 0  # in a row, without an engine that became ready
    retry_at: float = 0.0
    drain: bool = False  # it may still have requests of an earlier stream
    obsolete: bool = False  # the engine that it starts is of a model that is finished

    @property
    def name(self) -> str:
        """ "engine 2"; "engine 2 (3rd)" where two engines before it died."""
        return f"engine {self.slot}" + (f" ({_ordinal(self.engines)})" if self.engines > 1 else "")

    @property
    def limit(self) -> Limit:
        """What its engine takes at once."""
        return Limit(self.started["requests"], self.started["tokens"])

    @property
    def engine_runs(self) -> bool:
        """Whether it has an engine."""
        return self.state in (State.STARTED, State.SETTING, State.READY, State.REFUSED)

    def refs(self) -> list[Ref]:
        """Its pending calls."""
        return [ref for ref in (self.call, self.poll) if ref is not None]


@dataclass
class Record:
    """What one engine did for a pool: `answers`, prompt and answer `tokens`, from `since` (seconds) on."""

    name: str
    place: str
    facts: Mapping[str, Any]
    since: float
    answers: int = 0
    tokens: int = 0
    ended: float | None = None
    died: str = ""

    def rate(self, now: float) -> float:
        """Tokens per second since it became ready."""
        return self.tokens / max(1e-9, (self.ended or now) - self.since)

    def plain(self) -> dict[str, Any]:
        """For the manifest."""
        arithmetic = dict(self.facts.get("arithmetic") or {})
        entry = {"name": self.name, "place": self.place, "device": arithmetic.get("device"), "answers": self.answers}
        return {**entry, **({"died": self.died} if self.died else {}), "arithmetic": arithmetic}


def free_cores(member: Member, others: Iterable[Member], count: int) -> tuple[int, ...]:
    """`count` cores of the member's machine that no other member there has; of those that fewest have, otherwise."""
    cores: Sequence[int] = member.info.get("cores") or ()
    used = [
        c for o in others if o is not member and o.info.get("machine") == member.info.get("machine") for c in o.cores
    ]
    return tuple(sorted(sorted(cores, key=lambda core: (used.count(core), core))[:count]))


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"
