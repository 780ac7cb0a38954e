"""Many engines of one model behind the interface of one engine: requests in, answers out, whatever happens to engines.

`harness.cluster.fleet` has the engines themselves. An engine that dies gives its requests back, and they go to others.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.cluster.affinity import Beginnings
from harness.cluster.backend import ActorLost, Backend
from harness.cluster.fleet import STARTS, TICK, Fleet, at
from harness.cluster.load import Work
from harness.cluster.member import Member, State
from harness.cluster.scheduler import SUSPECT_DEATHS, Scheduler
from harness.cluster.wire import pack, unpack_answer
from harness.config import ContextSetting, EngineOptions, Model
from harness.cost.requests import RequestCosts
from harness.engine.requests import Answer, Completion, EngineError, Failure, Prompt, Question
from harness.text import counted
from harness.types import GatedevalError

if TYPE_CHECKING:
    from harness.probe.plan import ProbePlan
    from harness.probe.results import ProbeResult

AHEAD_TOKENS, MOST_AHEAD_TOKENS = 4_000_000, 64_000_000
"""Prompt tokens that wait here for an engine, at least and at most; 4 bytes each."""
_AHEAD_REQUESTS = 16_000
_NOT_READY_TICK = 0.01  # seconds between two looks at a source whose next request is not produced yet
_numbers = itertools.count()  # of requests: a late answer to a stream that has ended is never taken for another's


class Pool(Fleet):
    """The engines of one model as one. Its interface is that of `harness.run.session.RunEngine`.

    `costs`: of the model's requests; None: in proportion to tokens. The other arguments, and the errors, are those of
    `Fleet`.
    """

    def __init__(
        self,
        backend: Backend,
        model: Model,
        contexts: Sequence[ContextSetting],
        options: EngineOptions,
        *,
        costs: RequestCosts | None = None,
        **more: Any,
    ) -> None:
        self.costs = costs or RequestCosts()
        self.scheduler = Scheduler()
        self._stale: set[str] = set()  # engines that were told to forget a request which may run
        self._requests: dict[int, Prompt | Question] = {}  # of the present stream
        self._out: list[Answer | Failure] = []
        self._fruitless = 0  # deaths since the last answer
        super().__init__(backend, model, contexts, options, **more)

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Answer | Failure]:
        """Answer requests in the order in which they finish. None: the next one is not ready yet.

        A request that kills engines comes back as a `Failure`.

        Raises:
            GatedevalError: the user has to change something.
            EngineError: all engines died, and no others could start.
        """
        self.scheduler, self._requests, self._out = Scheduler(), {}, []
        self._stale.clear()
        beginnings, source = Beginnings(self.costs), iter(requests)
        for member in self.members:
            if member.state is State.READY:
                self.scheduler.join(member.name, member.limit, self.clock())
        try:
            while True:
                ready = self._take(source, beginnings)
                self._give()
                if self.scheduler.ended and not self.scheduler.unfinished:
                    break
                self._step(TICK if ready else _NOT_READY_TICK)
                yield from self._outgoing()
            yield from self._outgoing()
        finally:
            self._end_stream()

    @property
    def eager(self) -> bool:
        """Whether the engines run eagerly, so that they can be probed."""
        return all(m.started["eager"] for m in self.members if m.engine_runs)

    def probe(self, plan: ProbePlan) -> ProbeResult:
        """Measure one text in the first engine that is ready (see `harness.engine.probing.probe`).

        Raises:
            GatedevalError, EngineError: as `probe` raises them; or the engine died.
        """
        self.self_check()
        member = next(m for m in self.members if m.state is State.READY)
        call = self.backend.call(member.handle, "probe", plan)
        while not self.backend.wait([call], TICK):
            pass
        try:
            result: ProbeResult = self.backend.result(call)
        except ActorLost as error:
            raise EngineError(f"{member.name}{at(member)} died: {error}") from error
        return result

    def _take(self, source: Iterator[Prompt | Question | None], beginnings: Beginnings) -> bool:
        """Let requests wait while there is room; whether the next one was ready when it was asked for."""
        tokens = sum(m.limit.tokens for m in self.members if m.state is State.READY)
        room = min(MOST_AHEAD_TOKENS, max(AHEAD_TOKENS, 2 * tokens))
        while (
            not self.scheduler.ended
            and self.scheduler.waiting_tokens < room
            and self.scheduler.waiting < _AHEAD_REQUESTS
        ):
            try:
                request = next(source)
            except StopIteration:
                self.scheduler.ended = True
                return True
            if request is None:
                return False
            number = next(_numbers)
            self._requests[number] = request
            self.scheduler.add(beginnings.work(number, request))
        return True

    def _give(self) -> None:
        """Give work to every engine that has room."""
        now = self.clock()
        for member in self.members:
            if member.state is State.READY and not member.drain:
                batch = self.scheduler.next_batch(member.name, now)
                if batch:
                    packed = pack((_number(work), self._requests[_number(work)]) for work in batch)
                    self.backend.call(member.handle, "submit", packed)

    def _outgoing(self) -> Iterator[Answer | Failure]:
        out, self._out = self._out, []
        yield from out

    def _end_stream(self) -> None:
        """Nobody waits for an answer any more: engines that still work on copies forget them."""
        for member in self.members:
            busy = member.name in self._stale or self.scheduler.held(member.name) if member.state is State.READY else ()
            if busy:
                member.drain = True
                member.state = State.STARTED
                self._move(member)
        self._requests, self.scheduler = {}, Scheduler()

    def _joined(self, member: Member) -> None:
        if member.name not in self.scheduler.engines:
            self.scheduler.join(member.name, member.limit, self.clock())

    def _replies(self, member: Member, replies: list[tuple[str, Any]]) -> None:
        self._poll(member)
        for kind, content in replies:
            if kind == "died":
                self._lost(member, content, STARTS)
                return
            if kind == "refused":
                raise GatedevalError(content)
            number = content[0]
            request = self._requests.get(number)
            if request is None or member.name not in self.scheduler.engines:
                continue
            finished = self.scheduler.finished(member.name, number, self.clock())
            if not finished.first:
                continue
            self._fruitless = 0
            del self._requests[number]
            for name in finished.cancel:
                other = next(m for m in self.members if m.name == name)
                self._stale.add(name)
                self.backend.call(other.handle, "cancel", [number])
            if kind == "failed":
                self._out.append(Failure(request.key, content[1]))
                continue
            answer = unpack_answer(content, request.key, member.name)
            record = self.records[member.name]
            record.answers += 1
            record.tokens += answer.sent_tokens + (answer.tokens if isinstance(answer, Completion) else 1)
            self._out.append(answer)

    def _lost(self, member: Member, error: str, starts: int) -> None:
        """An engine or its process is gone: its requests wait again, and another one is started.

        `starts`: so many in a row that were never ready, and no other one is started.
        """
        self._error = error
        name, place, held = member.name, at(member), 0
        if name in self.scheduler.engines:
            held = len(self.scheduler.held(name))
            for work in self.scheduler.leave(name, died=True):
                self._name_poison(work, error)
        if record := self.records.get(name):
            record.ended, record.died = self.clock(), error
        self._drop(member)
        member.failures += 1
        self._fruitless += 1
        if member.failures >= starts:
            member.state = State.GIVEN_UP
            self.say(f"{name}{place}: could not start: {error}")
        else:
            self.restarts += 1
            back = f"; {counted(f'{held:,}', 'request')} given to others" if held else ""
            self.say(f"{name}{place} died: {error}{back}; another one is started")
            member.retry_at = self.clock() + min(30.0, 2.0 ** (member.failures - 1) - 1.0)
        alive = [m for m in self.members if m.state is not State.GIVEN_UP]
        if self._was_ready and (not alive or self._fruitless > SUSPECT_DEATHS * len(self.members) + 16):
            raise EngineError(error)

    def _name_poison(self, work: Work, error: str) -> None:
        request = self._requests.pop(_number(work))
        text = f"{request.key}: engines die on this request, the last one had no other: {error}"
        self.say(text)
        self._out.append(Failure(request.key, text))


def _number(work: Work) -> int:
    key: Hashable = work.key
    assert isinstance(key, int)
    return key
