"""The engines of one model, from their processes to the context setting under which they answer.

One loop (`_step`) looks at the replies of all engines' calls and moves each engine on: process, files, engine, context
setting, work. An engine that dies is replaced; one that comes late joins.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from harness.cluster.backend import ActorLost, Backend
from harness.cluster.member import Member, Record, State, free_cores
from harness.cluster.node import other_versions
from harness.cluster.roster import Roster
from harness.cluster.worker import plain_setting
from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.requests import EngineError, SelfCheckError
from harness.types import GatedevalError

_POLL_SECONDS = 5.0  # an engine without news answers a poll after so long
TICK = 0.25  # seconds between two looks at clocks and signals while nothing happens
_CLOSE_SECONDS = 20.0
STARTS = 3
"""Engines of one member that may die in a row before they have been ready."""
_ROOM_SECONDS = 15.0  # without a node that has room, before the user is told
_MOVING = (State.GONE, State.SPAWNING, State.CHECKING, State.IDLE, State.STARTING, State.STARTED, State.SETTING)


class Fleet(ABC):
    """The engines of one model: their processes, their states, and the calls that move them on.

    `roster`: the run's processes; `close` gives back what was taken from it. `check`: every model of the run as plain
    data, which a new process looks for. `cores`: per CPU engine; 0: engines use GPUs. `say`: takes a line for the user.

    Raises:
        GatedevalError: a node does not see a model, has other versions, or an option cannot be applied.
        EngineError: no engine could start.
    """

    def __init__(
        self,
        backend: Backend,
        model: Model,
        contexts: Sequence[ContextSetting],
        options: EngineOptions,
        *,
        roster: Roster | None = None,
        check: Sequence[dict[str, Any]] = (),
        node: dict[str, Any] | None = None,
        cores: int = 0,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend, self.model, self.contexts, self.options = backend, model, list(contexts), options
        self.roster, self.members = roster or Roster(), list[Member]()
        self.check, self.node, self.cores = list(check), node, cores
        self.say, self.clock = say, clock
        self.setting = self.contexts[0]
        self.records: dict[str, Record] = {}
        self.restarts = 0
        self._error = ""  # the last error of an engine
        self._was_ready = False  # an engine of this pool has been ready
        self._facts: dict[str, Any] = {}
        self._next_look = 0.0
        try:
            self._wait_for(lambda: any(m.engine_runs for m in self.members))
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the first engine; `engines`: one entry per engine of this pool, those that died included."""
        return {**self._facts, "engines": [record.plain() for record in self.records.values()]}

    def can_switch_to(self, setting: ContextSetting) -> bool:
        """Whether every engine can be switched to `setting`; if not, the setting needs engines of its own."""
        return all(setting.label in m.started["reachable"] for m in self.members if m.engine_runs)

    def set_context(self, setting: ContextSetting) -> None:
        """Change every engine to another context setting. `self_check` waits for the first that has done so."""
        self.setting = setting
        for member in self.members:
            if member.state in (State.READY, State.REFUSED):
                member.state = State.STARTED
            self._move(member)

    def self_check(self) -> None:
        """Wait until one engine has checked itself under the context setting in force; the others follow.

        Raises:
            SelfCheckError: no engine's logits under the setting can be right.
            EngineError: every engine died.
        """
        self._wait_for(lambda: any(m.state is State.READY for m in self.members))

    def close(self) -> None:
        """Stop the engines. Their processes stay, for the next model; one that does not answer is ended."""
        asked = [member for member in self.members if member.engine_runs]
        for member in self.members:
            member.obsolete |= member.state is State.STARTING  # vLLM cannot be told to stop starting
        for member in asked:
            member.call = self.backend.call(member.handle, "close")
        deadline = self.clock() + _CLOSE_SECONDS
        while waiting := [m for m in asked if m.call is not None]:
            for ref in self.backend.wait([m.call for m in waiting], max(0.0, deadline - self.clock())):
                member = next(m for m in waiting if m.call == ref)
                member.call, member.state = None, State.IDLE
                try:
                    self.backend.result(ref)
                except (ActorLost, EngineError, GatedevalError):
                    self._drop(member)
            if self.clock() >= deadline:
                for member in waiting:
                    if member.call is not None:
                        self._drop(member)
        for record in self.records.values():
            record.ended = record.ended or self.clock()
        members, self.members = self.members, []
        self.roster.give_back(members)

    # --- the states of engines --------------------------------------------------------------------------------------

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Step until `condition`; raises the engines' error where none of them can bring it about."""
        since, told = self.clock(), False
        while not condition():
            self._step(TICK)
            states = {m.state for m in self.members}
            if not condition() and not states & set(_MOVING):
                self._raise_error()
            if not told and states == {State.SPAWNING} and self.clock() - since > _ROOM_SECONDS:
                told = True
                self.say("no node has room for an engine yet: the run waits; other jobs may use its devices")

    def _raise_error(self) -> None:
        kind = SelfCheckError if any(m.state is State.REFUSED for m in self.members) else EngineError
        raise kind(self._error or "no engine of the cluster could start")

    def _look_for_room(self) -> None:
        """Add members for engines that have become possible, and new processes for those that are gone."""
        now = self.clock()
        if now >= self._next_look:
            self._next_look = now + 2.0
            while len(self.members) < self.backend.wanted():
                self.members.append(self.roster.take())
        for n, member in enumerate(self.members):
            if member.state is State.SPAWNING and self.roster.idle:  # it waits for a place that this one has
                self._drop(member)
                self.members[n] = self.roster.take()
                self.roster.give_back([member])
        for member in self.members:
            if member.state is State.GONE and now >= member.retry_at:
                member.handle = self.backend.spawn(member.slot)
                member.state, member.call = State.SPAWNING, self.backend.call(member.handle, "describe")
            elif member.state is State.IDLE and member.call is None:
                self._move(member)

    def _step(self, seconds: float) -> None:
        """Wait up to `seconds` for replies, and act on those that are there."""
        self._look_for_room()
        owners = {ref: member for member in self.members for ref in member.refs()}
        if not owners:
            self.backend.wait([], min(seconds, 0.05))
            return
        for ref in self.backend.wait(list(owners), seconds):
            member = owners[ref]
            if ref not in member.refs():  # its process was dropped meanwhile
                continue
            polled = ref == member.poll
            if polled:
                member.poll = None
            else:
                member.call = None
            try:
                reply = self.backend.result(ref)
            except ActorLost as error:
                self._lost(member, str(error), STARTS)
            except SelfCheckError as error:
                self._error, member.state = str(error), State.REFUSED
                self.say(f"{member.name}{at(member)}: {error}")
            except EngineError as error:
                # one that cannot start at all would not start the next time either
                hopeless = member.state is State.STARTING and not self._was_ready and not member.obsolete
                self._lost(member, str(error), 1 if hopeless else STARTS)
            except GatedevalError as error:
                self._refuse(member, f"{member.name}{at(member)}: {error}")
            else:
                self._replies(member, reply) if polled else self._advance(member, reply)

    def _advance(self, member: Member, reply: Any) -> None:
        """A call of `member` has ended well: the next state."""
        match member.state:
            case State.SPAWNING:
                member.info, member.place = reply, reply["host"]
                if refusal := other_versions(member.place or member.name, member.info, self.node):
                    self._refuse(member, refusal)
                    return
                if self.cores:
                    member.cores = free_cores(member, self.roster.everyone, self.cores)
                member.state = State.CHECKING
                node = member.info["node"]
                seen = any(m.info.get("node") == node and m.state not in _MOVING[:3] for m in self.roster.everyone)
                member.call = self.backend.call(member.handle, "check", [] if seen else self.check)
            case State.CHECKING:
                if reply:
                    what = "every node of the cluster has to see the same files under the same path"
                    self._refuse(member, f"{member.place or member.name}: {'; '.join(reply)}; {what}")
                    return
                member.state = State.IDLE
                self._poll(member)
                self._move(member)
            case State.STARTING if member.obsolete:
                member.obsolete, member.state = False, State.IDLE
                self._move(member)  # the worker stops that engine before it starts another one
            case State.STARTING:
                member.started, member.setting = reply, ""
                self._facts = self._facts or reply["facts"]
                member.state = State.STARTED
                self._move(member)
            case State.STARTED:  # it has forgotten its requests
                member.drain = False
                self._move(member)
            case State.SETTING if member.setting == self.setting.label:
                self._ready(member)
            case State.SETTING:
                member.state = State.STARTED
                self._move(member)

    def _move(self, member: Member) -> None:
        """Make the call that brings a member nearer to answering, where none is pending."""
        if member.call is not None:
            return
        if member.state is State.IDLE:
            member.engines += 1
            contexts = [plain_setting(c) for c in self.contexts]
            arguments = (self.model.model_dump(), contexts, self.options.model_dump(), member.cores)
            member.state = State.STARTING
            member.call = self.backend.call(member.handle, "start", *arguments, self.backend.further_arguments())
        elif member.state is State.STARTED and member.drain:
            member.call = self.backend.call(member.handle, "drain")
        elif member.state is State.STARTED and self.setting.label in member.started["reachable"]:
            member.state, member.setting = State.SETTING, self.setting.label
            member.call = self.backend.call(member.handle, "set_context", plain_setting(self.setting))

    def _ready(self, member: Member) -> None:
        member.state, member.failures, now = State.READY, 0, self.clock()
        self._was_ready = True
        if member.name not in self.records:
            self.records[member.name] = Record(member.name, member.place, member.started["facts"], now)
        self._joined(member)

    def _poll(self, member: Member) -> None:
        if member.poll is None and member.handle is not None:
            member.poll = self.backend.call(member.handle, "poll", _POLL_SECONDS)

    def _drop(self, member: Member) -> None:
        """End a member's process."""
        if member.handle is not None:
            self.backend.kill(member.handle)
        self._gone(member, self.clock())

    def _gone(self, member: Member, retry_at: float) -> None:
        member.state, member.handle, member.call, member.poll = State.GONE, None, None, None
        member.cores, member.retry_at, member.started = (), retry_at, {}
        member.drain = member.obsolete = False

    def _refuse(self, member: Member, error: str) -> None:
        """A node cannot be used. That ends the run where no engine answers yet; one that comes later is left out."""
        if not self._was_ready:
            raise GatedevalError(error)
        self._error = error
        self._drop(member)
        member.state = State.GIVEN_UP
        self.say(f"left out: {error}")

    # --- what a pool adds -------------------------------------------------------------------------------------------

    @abstractmethod
    def _joined(self, member: Member) -> None:
        """`member` is ready."""

    @abstractmethod
    def _replies(self, member: Member, replies: list[tuple[str, Any]]) -> None:
        """What a poll of `member` brought (see `EngineWorker.poll`)."""

    @abstractmethod
    def _lost(self, member: Member, error: str, starts: int) -> None:
        """The engine of `member` or its process is gone; after `starts` in a row no other one is started."""


def at(member: Member) -> str:
    """ " on node-a"; empty where the place is not known."""
    return f" on {member.place}" if member.place else ""
