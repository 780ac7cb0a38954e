"""Runs the cells of one model under one context setting: sends pending samples to the engine, stores scored answers."""

from __future__ import annotations

import enum
import functools
import itertools
import math
import time
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass

from harness.benchmarks.protocol import Setup
from harness.config import ContextSetting
from harness.engine.requests import (
    Answer,
    Choice,
    Completion,
    EngineError,
    Prompt,
    Question,
    SampleRequest,
    SelfCheckError,
)
from harness.run.answers import answer_text, with_tags
from harness.run.producing import Assignment, CellFailed, CellFinished, CellStarted, SampleCached
from harness.run.session import LiveEngine, Session
from harness.types import Cell, GatedevalError, Sample


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
    """One pass over the cells of one model under one context setting.

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

    @functools.cached_property
    def _setup(self) -> Setup:
        """What the model's samples are made from and scored with."""
        return self.session.plan.setup(self.assignment.model)

    def run(self) -> SettingEnd:
        """Run every cell. Returns how that ended; an engine's error is part of the result, not raised.

        Raises:
            GatedevalError: the user has to change something (a plugin that is not loaded, a full disk, ...).
        """
        self.session.prefetcher.prefetch(self.assignment)
        requests = self._requests()
        try:
            if self._needs_engine():
                self.engine.under(self.setting)  # it starts while the first samples are produced
            self._answer(requests)
        except SelfCheckError as error:
            self._fail_unfinished(str(error))  # the engine lives, and other settings may be right
        except EngineError as error:
            return self._engine_failed(str(error))
        finally:
            requests.close()
        for cell in self.assignment.cells:
            if cell not in self.failed:
                self.session.store.clear_failure(cell)
        return SettingEnd(ending=Ending.DONE)

    def _needs_engine(self) -> bool:
        """Whether the run holds fewer samples than planned: the engine is needed, whatever the hashes will be."""
        answered, planned = self.assignment.answered, self.session.store.planned
        return any(len(answered[cell]) < (planned(cell) or 0) for cell in self.assignment.cells)

    def _answer(self, requests: Generator[Prompt | Question | None]) -> None:
        """Let the engine answer all requests. No engine is used if every sample is cached."""
        first = next(requests, None)
        if first is None:
            return
        engine, since = self.engine.under(self.setting), time.monotonic()
        for answer in engine.answer(itertools.chain([first], requests)):
            self._store(answer)
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
                case SampleCached(cell, tokens):
                    tally.reused += 1
                    self.session.progress.advance(cell, tokens, 0, reused=True)
                case SampleRequest(request=Prompt() | Question() as request):
                    tally.asked += 1
                    tally.redone += event.replaces
                    self.pending[request.key] = event
                    yield request
                case CellFinished(cell, hashes):
                    self.session.store.expect(cell, hashes)
                case CellFailed(cell, error):
                    self._fail(cell, error)
        self.prefetch_next()

    def _store(self, answer: Answer) -> None:
        """Score one answer and append it to the run. A cell with an answer that cannot be scored fails."""
        sample = self.pending.pop(answer.key)
        tally, cell = self.session.tally, sample.cell
        tally.sent_tokens += answer.sent_tokens
        tally.cached_tokens += answer.cached_tokens
        assert cell is not None
        if cell in self.failed:
            return
        try:
            scored = scored_sample(sample, answer, self._setup)
        except ScoreError as error:
            self._fail(cell, str(error))
            return
        self.session.store.append(cell, scored)
        answer_tokens = answer.tokens if isinstance(answer, Completion) else 1
        self.session.progress.advance(cell, sample.prompt_tokens, answer_tokens)

    def _engine_failed(self, error: str) -> SettingEnd:
        """The result after an engine's error. The cells that a running engine was working on fail."""
        cells = self.assignment.cells
        if self.engine.engine is None:
            return SettingEnd(ending=Ending.ENGINE_CANNOT_START, error=error, left=cells)
        working_on = {sample.cell for sample in self.pending.values()}
        for cell in cells:
            # An engine that died before its first request would die again: then every unfinished cell fails.
            if cell not in self.failed and (cell in working_on or not (working_on or self._complete(cell))):
                self._fail(cell, error)
        left = tuple(cell for cell in cells if cell not in self.failed and not self._complete(cell))
        return SettingEnd(ending=Ending.ENGINE_LOST, error=error, left=left)

    def _fail_unfinished(self, error: str) -> None:
        """Fail every cell of the setting that has not all its answers."""
        asked = {sample.cell for sample in self.pending.values()}
        for cell in self.assignment.cells:
            if cell not in self.failed and (cell in asked or not self._complete(cell)):
                self._fail(cell, error)

    def _complete(self, cell: Cell) -> bool:
        planned = self.session.store.planned(cell)
        return planned is not None and len(self.session.store.done(cell)) >= planned

    def _fail(self, cell: Cell, error: str) -> None:
        self.failed.add(cell)
        self.session.fail(cell, error)


class ScoreError(GatedevalError):
    """An answer that cannot be scored. Its cell fails: leaving the sample out would give a wrong number silently."""


def scored_sample(sample: SampleRequest, answer: Answer, setup: Setup) -> Sample:
    """The line that is stored for one answered sample. Raises ScoreError when there is no finite score."""
    extra = {
        "prompt_hash": sample.prompt_hash,
        "prompt": sample.excerpt,
        **sample.extra,
        "cached_tokens": answer.cached_tokens,
    }
    if isinstance(answer, Choice):
        text, tokens, reason = "", 0, "choose"
        response = str(max(range(len(answer.logprobs)), key=answer.logprobs.__getitem__))
        extra["logprobs"] = list(answer.logprobs)
    else:
        response = with_tags(answer.text, answer.token_ids, setup.tokenizer, setup.thinking.tags)
        tokens, reason = answer.tokens, answer.finish_reason
        if setup.thinking.allowed:
            extra["thought_opened"] = sample.thought_opened
        try:
            text = answer_text(response, setup.thinking, sample.thought_opened, sample.stop, sample.label)
        except GatedevalError as error:
            raise ScoreError(str(error)) from error
    scores = sample.score(answer, text)
    if not scores or any(not math.isfinite(value) for value in scores.values()):
        raise ScoreError(f"{sample.label}: no finite score ({scores})")
    return Sample(
        id=sample.id,
        hash=sample.hash,
        prompt_tokens=sample.prompt_tokens,
        references=sample.references,
        response=response,
        response_tokens=tokens,
        finish_reason=reason,
        scores=scores,
        seconds=round(answer.seconds, 4),
        extra=extra,
    )
