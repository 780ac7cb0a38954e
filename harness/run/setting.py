"""Runs the cells of one engine under one context setting: sends it pending samples, stores scored answers."""

from __future__ import annotations

import enum
import functools
import itertools
import time
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass

from harness.benchmarks.protocol import Setup
from harness.config import ContextSetting
from harness.engine.requests import (
    Answer,
    Completion,
    EngineError,
    Failure,
    Prompt,
    Question,
    RequestError,
    SampleRequest,
    SelfCheckError,
)
from harness.run.producing import Assignment, CellFailed, CellFinished, CellStarted, SampleCached, SampleUnscorable
from harness.run.scoring import ScoreError, scored_sample
from harness.run.session import LiveEngine, RunEngine, Session
from harness.store.stored import count_ids
from harness.types import Cell


class Ending(enum.Enum):
    """How the cells of a setting ended."""

    DONE = "every cell is finished or has failed"
    ENGINE_LOST = "the engine died; another one can take over"
    ENGINE_CANNOT_START = "vLLM does not start on this model"


@dataclass(frozen=True, kw_only=True)
class SettingEnd:
    """What `SettingRun.run` returns. `error`: the engine's; `left`: cells that another engine has to run."""

    ending: Ending
    error: str = ""
    left: tuple[Cell, ...] = ()


class SettingRun:
    """One pass over the cells of one engine under one context setting.

    `prefetch_next`: called once when all samples are produced, while the engine still answers.
    """

    def __init__(
        self,
        session: Session,
        engine: LiveEngine,
        setting: ContextSetting,
        assignment: Assignment,
        prefetch_next: Callable[[], None],
    ) -> None:
        self.session, self.engine, self.setting, self.assignment = session, engine, setting, assignment
        self.prefetch_next = prefetch_next
        self.pending: dict[Hashable, SampleRequest] = {}  # by the request's key: sent to the engine, not answered yet
        self.failed: set[Cell] = set()
        self.produced: set[Cell] = set()  # cells of which every sample's content hash is known

    @functools.cached_property
    def _setup(self) -> Setup:
        """What the model's samples are made from and scored with."""
        return self.session.plan.setup(self.assignment.engine)

    def run(self) -> SettingEnd:
        """Run every cell. Returns how that ended; an engine's error is part of the result, not raised.

        Raises:
            GatedevalError: the user has to change something (a plugin that is not loaded, a full disk, ...).
        """
        self.session.prefetcher.prefetch(self.assignment)
        requests = self._requests()
        try:
            if self._needs_engine():
                self._start_or_switch()  # it starts while the first samples are produced
            self._answer(requests)
        except SelfCheckError as error:
            self._fail_unfinished(str(error))  # the engine lives, and other settings may be right
        except EngineError as error:
            return self._engine_failed(error)
        finally:
            requests.close()
        for cell in self.assignment.cells:
            if cell not in self.failed:
                self.session.store.clear_failure(cell)
        return SettingEnd(ending=Ending.DONE)

    def _start_or_switch(self) -> None:
        """Put the setting in force, in an engine that is started if need be; note what the change alone took."""
        label, before, since = self.assignment.engine, self.engine.engine, time.monotonic()
        engine = self.engine.under(self.setting)
        took = time.monotonic() - since
        started = engine.facts.get("start_seconds", 0.0) if engine is not before else 0.0
        self.session.costs.switched(label, max(0.0, took - started))

    def _needs_engine(self) -> bool:
        """Whether fewer samples of a cell are stored than planned: the engine is needed, whatever the hashes are."""
        files, planned = self.assignment.files, self.session.store.planned
        return any(
            max(map(count_ids, files.get(cell, ())), default=0) < (planned(cell) or 0) for cell in self.assignment.cells
        )

    def _answer(self, requests: Generator[Prompt | Question | None]) -> None:
        """Let the engine answer all requests. No engine is used if every sample is cached."""
        first = next(requests, None)
        if first is None:
            return
        engine, since = self.engine.under(self.setting), time.monotonic()
        self.session.costs.waits()
        for answer in engine.answer(itertools.chain([first], requests)):
            if isinstance(answer, Failure):
                self._fail_one(answer)
            else:
                self._store(answer, engine)
        self.session.tally.seconds += time.monotonic() - since

    def _requests(self) -> Generator[Prompt | Question | None]:
        """Requests of the samples that are not answered yet. None: the next one is not produced yet.

        The first item is never None: nothing is pending, so this waits for the next event.
        """
        tally = self.session.tally
        for event in self.session.prefetcher.events(self.assignment, busy=lambda: bool(self.pending)):
            match event:
                case None:
                    yield None
                case CellStarted(cell):
                    self.session.progress.enter(cell)
                case SampleCached(cell, tokens, line, found):
                    tally.reused += 1
                    if line is not None:
                        tally.rescored += found == "rescored"
                        tally.relabelled += found == "relabelled"
                        self.session.store.append(cell, line)
                    self.session.progress.advance(cell, tokens, 0, reused=True)
                case SampleRequest(request=Prompt() | Question() as request):
                    tally.asked += 1
                    self.pending[request.key] = event
                    yield request
                case SampleUnscorable(cell, error):
                    if cell not in self.failed:
                        self._fail(cell, error)
                case CellFinished(cell, hashes):
                    self.session.store.expect(cell, hashes)
                    self.produced.add(cell)
                case CellFailed(cell, error):
                    self._fail(cell, error)
        self.prefetch_next()

    def _fail_one(self, failure: Failure) -> None:
        """Fail the cell of a request that no engine can answer; the others go on."""
        cell = self.pending.pop(failure.key).cell
        assert cell is not None
        if cell not in self.failed:
            self._fail(cell, failure.error)

    def _store(self, answer: Answer, engine: RunEngine) -> None:
        """Score one answer and append it to the run. A cell with an answer that cannot be scored fails."""
        sample = self.pending.pop(answer.key)
        tally, cell = self.session.tally, sample.cell
        tally.sent_tokens += answer.sent_tokens
        tally.cached_tokens += answer.cached_tokens
        assert cell is not None
        self.session.costs.answered(sample, answer)
        if cell in self.failed:
            return
        try:
            arithmetic = self.session.arithmetic_of(self.assignment.engine, answer, engine)
            scored = scored_sample(sample, answer, self._setup, arithmetic)
        except ScoreError as error:
            self._fail(cell, str(error))
            return
        self.session.store.append(cell, scored)
        tally.answered += 1
        tally.redone += sample.replaces
        answer_tokens = answer.tokens if isinstance(answer, Completion) else 1
        self.session.progress.advance(cell, sample.prompt_tokens, answer_tokens)

    def _engine_failed(self, error: EngineError) -> SettingEnd:
        """The result after an engine's error.

        An error about one request fails that request's cell, and no other cell. Otherwise the cells fail that the
        engine was working on.
        """
        cells, text = self.assignment.cells, str(error)
        if self.engine.engine is None:
            return SettingEnd(ending=Ending.ENGINE_CANNOT_START, error=text, left=cells)
        if isinstance(error, RequestError) and error.key in self.pending:
            working_on = {self.pending[error.key].cell}
        else:
            working_on = {sample.cell for sample in self.pending.values()}
        for cell in cells:
            # An engine that died before its first request would die again: then every unfinished cell fails.
            if cell not in self.failed and (cell in working_on or not (working_on or self._complete(cell))):
                self._fail(cell, text)
        left = tuple(cell for cell in cells if cell not in self.failed and not self._complete(cell))
        return SettingEnd(ending=Ending.ENGINE_LOST, error=text, left=left)

    def _fail_unfinished(self, error: str) -> None:
        """Fail every cell of the setting that has not all its answers."""
        asked = {sample.cell for sample in self.pending.values()}
        for cell in self.assignment.cells:
            if cell not in self.failed and (cell in asked or not self._complete(cell)):
                self._fail(cell, error)

    def _complete(self, cell: Cell) -> bool:
        """Whether every sample of the cell has an answer with the content hash of today.

        False as long as these hashes are not known: what an earlier session stored may be answers to other prompts.
        """
        planned = self.session.store.planned(cell)
        return cell in self.produced and planned is not None and len(self.session.store.done(cell)) >= planned

    def _fail(self, cell: Cell, error: str) -> None:
        self.failed.add(cell)
        self.session.fail(cell, error)
