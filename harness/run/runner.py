"""One pass over a plan: every model's engine once, every context setting in it, every sample handed to the store.

Samples are made ahead by a process of their own (`feeding`); an answer is written as it finishes; what is already in
the run with the same content hash is not asked again. A cell that breaks is recorded with its error and the others go
on.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.benchmarks.base import answer_text
from harness.config import ContextSetting
from harness.engine.engine import Engine
from harness.engine.requests import Choice, Completion, EngineError, Prompt, Question, SampleRequest
from harness.run.manifest import manifest
from harness.run.plan import Plan
from harness.run.prefetching import Feed
from harness.run.producing import Assignment, CellFailed, CellFinished, CellStarted, SampleCached
from harness.run.progress import Progress
from harness.store import Store
from harness.types import Cell, GatedevalError, Sample


@dataclass
class Tally:
    """What a run did: samples asked, found finished, done again because their content changed, and failed cells.

    `sent_tokens` and `cached_tokens`: prompt tokens of the answers, and those of them found in the prefix cache.
    `seconds`: from the first request to the last answer, summed over the settings of all models.
    """

    asked: int = 0
    reused: int = 0
    redone: int = 0
    failed: list[str] = field(default_factory=list)
    sent_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0


def run(plan: Plan, path: Path, *, progress: Progress | None = None) -> tuple[str, Tally]:
    """Work off `plan` into the run directory `path`; resumes what is there. Returns its state and a tally.

    Raises:
        GatedevalError: the plan is refused, or the run directory cannot be used.
    """
    plan.check()
    progress = progress or Progress(plan)
    with Store.open(path, manifest(plan), cells=dict(plan.cells)) as store, progress, Feed(plan) as feed:
        work = _Pass(plan, store, progress, feed)
        for label in plan.models:
            work.model(label)
        state = store.finish()
    return state, work.tally


class EngineDiedAtStart(EngineError):
    """vLLM could not start on the model: none of its cells can be had."""


class ScoreError(GatedevalError):
    """A response that cannot be scored: the cell fails, since leaving the sample out would be a silent wrong number."""


class _LiveEngine:
    """A model's engine, started when it is first needed: a finished run is recognised without one."""

    def __init__(
        self, plan: Plan, label: str, settings: list[ContextSetting], store: Store, progress: Progress
    ) -> None:
        self.plan, self.label, self.settings, self.store, self.progress = plan, label, settings, store, progress
        self.engine: Engine | None = None

    def under(self, setting: ContextSetting) -> Engine:
        """The engine, running, under `setting`."""
        if self.engine is None:
            self.progress.say(f"{self.label}: starting vLLM")
            try:
                self.engine = Engine(self.plan.models[self.label].model, self.settings, self.plan.config.engine)
            except EngineError as error:
                raise EngineDiedAtStart(str(error)) from error
            self.note({"engine": self.engine.facts})
            self.progress.resume()
        if self.engine.setting != setting:
            self.engine.set_context(setting)
        return self.engine

    def note(self, facts: dict[str, Any]) -> None:
        """Put facts about the model into the manifest."""
        models = dict(self.store.manifest["models"])
        models[self.label] = {**models[self.label], **facts}
        self.store.update_manifest(models=models)

    def close(self) -> None:
        """Stop it, if it runs."""
        if self.engine is not None:
            self.engine.close()


class _Pass:
    """The state of one pass: what is left of which model, and what the engine is working on."""

    def __init__(self, plan: Plan, store: Store, progress: Progress, feed: Feed) -> None:
        self.plan, self.store, self.progress, self.feed = plan, store, progress, feed
        self.tally = Tally()
        self.waiting = {(m, s.label): plan.of(m, s.label) for m in plan.models for s in plan.config.contexts}
        self.opened: dict[Any, SampleRequest] = {}  # samples that the engine is working on
        self.broken: set[Cell] = set()  # cells of the present setting that failed
        self._works: dict[tuple[str, str], Assignment] = {}

    def model(self, label: str) -> None:
        """All cells of one model. Its engine is started when the first sample is owed, and again after each death."""
        before = dataclasses.replace(self.tally)
        while settings := [s for s in self.plan.config.contexts if self.waiting[label, s.label]]:
            live = _LiveEngine(self.plan, label, settings, self.store, self.progress)
            try:
                for setting in settings:
                    self._setting(live, label, setting)
                self._note_work(live, before)
            except EngineDiedAtStart as error:
                for setting in settings:
                    for cell in self.waiting[label, setting.label]:
                        self._fail(cell, str(error))
                return
            except EngineError as error:  # `waiting` no longer holds the cells that it died on
                self.progress.say(f"{label}: {error}; going on with the other cells")
            finally:
                live.close()

    def _note_work(self, live: _LiveEngine, before: Tally) -> None:
        """Say, here and in the manifest, what this session's engine did: tokens, cached ones, seconds of answering."""
        sent = self.tally.sent_tokens - before.sent_tokens
        cached = self.tally.cached_tokens - before.cached_tokens
        if sent and live.engine is not None:
            seconds = round(self.tally.seconds - before.seconds, 3)
            facts = {"prompt_tokens": sent, "cached_tokens": cached, "answer_seconds": seconds}
            live.note({"engine": {**live.engine.facts, **facts}})
            self.progress.say(f"{live.label}: {cached / sent:.0%} of {sent:,} prompt tokens came from the prefix cache")

    def _setting(self, live: _LiveEngine, label: str, setting: ContextSetting) -> None:
        """The cells of one context setting as one stream of requests, long prompts first."""
        key = (label, setting.label)
        cells = self.waiting[key]
        self.opened, self.broken = {}, set()
        if not cells:
            return
        work = self._work(key)
        self.feed.begin(work)
        owed = self._owed(key)
        try:
            if self._surely_owed(work):
                live.under(setting)  # started while the first samples are made
            first = next(owed, _NOTHING)
            if first is not _NOTHING:
                engine, since = live.under(setting), time.monotonic()
                for answer in engine.answer(itertools.chain([first], owed)):  # type: ignore[list-item]
                    self._answered(answer)
                self.tally.seconds += time.monotonic() - since
        except EngineDiedAtStart:
            raise
        except EngineError as error:
            for cell in {item.cell for item in self.opened.values() if item.cell} - self.broken:
                self._fail(cell, str(error))
            self.waiting[key] = [c for c in cells if c not in self.broken and not self._complete(c)]
            raise
        finally:
            owed.close()
        for cell in set(cells) - self.broken:
            self.store.clear_failure(cell)
        self.waiting[key] = []

    def _owed(self, key: tuple[str, str]) -> Generator[Prompt | Question | None]:
        """Requests for the samples that the run does not hold yet; what is sent is entered in `opened`.

        None: the next one is still being made.
        """
        for event in self.feed.events(self._work(key), busy=lambda: bool(self.opened)):
            match event:
                case None:
                    yield None
                case CellStarted(cell):
                    self.progress.enter(cell)
                case SampleCached(cell, tokens):
                    self.tally.reused += 1
                    self.progress.advance(cell, tokens, 0, reused=True)
                case SampleRequest():
                    self.tally.asked += 1
                    self.tally.redone += event.replaces
                    assert event.request is not None
                    self.opened[event.request.key] = event
                    yield event.request
                case CellFinished(cell, hashes):
                    self.store.expect(cell, hashes)
                case CellFailed(cell, error):
                    self._fail(cell, error)
        following = list(self.waiting)[list(self.waiting).index(key) + 1 :]
        if coming := next((k for k in following if self.waiting[k]), None):
            self.feed.begin(self._work(coming))  # made while the engine still answers

    def _work(self, key: tuple[str, str]) -> Assignment:
        """What is to be made for one model and setting: one object as long as its cells are the same."""
        label, setting = key
        cells = tuple(sorted(self.waiting[key], key=lambda c: -c.length))
        if key not in self._works or self._works[key].cells != cells:
            known = {cell: self.store.known(cell) for cell in cells}
            fingerprint = self.store.manifest["models"][label]["fingerprint"]
            self._works[key] = Assignment(label, setting, cells, fingerprint, known)
        return self._works[key]

    def _surely_owed(self, work: Assignment) -> bool:
        """Whether the run has fewer samples than are planned: the engine is needed, whatever the hashes will be."""
        return any(len(work.answered[cell]) < (self.store.planned(cell) or 0) for cell in work.cells)

    def _answered(self, answer: Completion | Choice) -> None:
        """Score one answer and hand it to the store."""
        item = self.opened.pop(answer.key)
        self.tally.sent_tokens += answer.sent_tokens
        self.tally.cached_tokens += answer.cached_tokens
        assert item.cell is not None
        if item.cell in self.broken:
            return
        try:
            self.store.append(item.cell, _sample(item, answer, self.plan.config.thinking))
            self.progress.advance(item.cell, item.prompt_tokens, answer.tokens if isinstance(answer, Completion) else 1)
        except ScoreError as error:
            self._fail(item.cell, str(error))

    def _complete(self, cell: Cell) -> bool:
        planned = self.store.planned(cell)
        return planned is not None and len(self.store.done(cell)) >= planned

    def _fail(self, cell: Cell, error: str) -> None:
        self.broken.add(cell)
        self.store.fail(cell, error)
        self.tally.failed.append(cell.key)
        self.progress.say(f"{cell.model}, {cell.context}, {cell.task} {cell.length or ''}: failed: {error}")


_NOTHING = object()


def _sample(item: SampleRequest, answer: Completion | Choice, thinking: bool) -> Sample:
    """The line that is stored for one finished sample."""
    given = {"prompt_hash": item.prompt_hash, "prompt": item.excerpt}
    extra = {**given, **item.extra, "cached_tokens": answer.cached_tokens}
    if isinstance(answer, Choice):
        text, tokens, reason = "", 0, "choose"
        response = str(max(range(len(answer.logprobs)), key=answer.logprobs.__getitem__))
        extra["logprobs"] = list(answer.logprobs)
    else:
        response, tokens, reason = answer.text, answer.tokens, answer.finish_reason
        try:
            text = answer_text(answer, thinking, item.label)
        except GatedevalError as error:
            raise ScoreError(str(error)) from error
    scores = item.score(answer, text)
    if not scores or any(not math.isfinite(value) for value in scores.values()):
        raise ScoreError(f"{item.label}: no finite score ({scores})")
    return Sample(
        id=item.id,
        hash=item.hash,
        prompt_tokens=item.prompt_tokens,
        references=item.references,
        response=response,
        response_tokens=tokens,
        finish_reason=reason,
        scores=scores,
        seconds=round(answer.seconds, 4),
        extra=extra,
    )
