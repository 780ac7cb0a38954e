"""One pass over a plan: every model's engine once, every context setting in it, every sample handed to the store.

A sample is written as it finishes; what is already in the run with the same content hash is not asked again. A cell
that breaks is recorded with its error and the others go on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import benchmarks
from harness.asks import Asker
from harness.benchmarks import Job, answer_text
from harness.choosing import Choice, EngineError, Question
from harness.engine import Completion, Engine, Prompt
from harness.manifest import manifest
from harness.plan import Plan
from harness.progress import Progress
from harness.store import Store
from harness.tokenizer import Tokenizer
from harness.types import Cell, ContextSetting, GatedevalError, Sample

_ENDS = 300  # characters of a prompt's head and tail that are stored


@dataclass
class Tally:
    """What a run did: samples asked, found finished, done again because their content changed, and failed cells."""

    asked: int = 0
    reused: int = 0
    redone: int = 0
    failed: list[str] = field(default_factory=list)


def run(plan: Plan, path: Path, *, progress: Progress | None = None) -> tuple[str, Tally]:
    """Work off `plan` into the run directory `path`; resumes what is there. Returns its state and a tally.

    Raises:
        GatedevalError: the plan is refused, or the run directory cannot be used.
    """
    plan.check()
    progress = progress or Progress(plan)
    tally = Tally()
    with Store.open(path, manifest(plan), cells=dict(plan.cells)) as store, progress:
        for label in plan.models:
            _run_model(plan, label, store, progress, tally)
        state = store.finish()
    return state, tally


def _run_model(plan: Plan, label: str, store: Store, progress: Progress, tally: Tally) -> None:
    """All cells of one model. Its engine is started when the first sample is owed, and again after each death."""
    waiting = {s.label: plan.of(label, s.label) for s in plan.config.contexts}
    while any(waiting.values()):
        settings = [s for s in plan.config.contexts if waiting[s.label]]
        live = _LiveEngine(plan, label, settings, store, progress)
        try:
            for setting in settings:
                _run_cells(plan, live, setting, waiting, store, progress, tally)
        except EngineDiedAtStart as error:
            for cell in (c for cells in waiting.values() for c in cells):
                _fail(store, cell, str(error), tally, progress)
            return
        except EngineError as error:  # `waiting` no longer holds the cells that it died on
            progress.say(f"{label}: {error}; going on with the other cells")
        finally:
            live.close()


class EngineDiedAtStart(EngineError):
    """vLLM could not start on the model: none of its cells can be had."""


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
            models = dict(self.store.manifest["models"])
            models[self.label] = {**models[self.label], "engine": self.engine.facts}
            self.store.update_manifest(models=models)
            self.progress.resume()
        if self.engine.setting != setting:
            self.engine.set_context(setting)
        return self.engine

    def close(self) -> None:
        """Stop it, if it runs."""
        if self.engine is not None:
            self.engine.close()


@dataclass(frozen=True)
class _Open:
    """A sample that the engine is working on."""

    cell: Cell
    job: Job
    tokens: int
    digest: str
    asked: dict[str, Any]  # what is stored about the prompt


def _run_cells(
    plan: Plan,
    live: _LiveEngine,
    setting: ContextSetting,
    waiting: dict[str, list[Cell]],
    store: Store,
    progress: Progress,
    tally: Tally,
) -> None:
    """The cells of one context setting as one stream of requests, long prompts first."""
    cells = sorted(waiting[setting.label], key=lambda c: -c.length)
    opened: dict[Any, _Open] = {}
    broken: set[Cell] = set()

    def fail(cell: Cell, error: Exception) -> None:
        broken.add(cell)
        _fail(store, cell, str(error), tally, progress)

    owed = _owed(plan, setting, cells, store, progress, tally, opened, fail)
    thinking = plan.config.thinking
    try:
        first = next(owed, None)
        answers = live.under(setting).answer(itertools.chain([first], owed)) if first is not None else iter(())
        for answer in answers:
            item = opened.pop(answer.key)
            if item.cell in broken:
                continue
            try:
                store.append(item.cell, _sample(item, answer, thinking))
                progress.advance(item.cell, item.tokens, answer.tokens if isinstance(answer, Completion) else 1)
            except ScoreError as error:
                fail(item.cell, error)
    except EngineDiedAtStart:
        raise
    except EngineError as error:
        for cell in {item.cell for item in opened.values()} - broken:
            fail(cell, error)
        waiting[setting.label] = [c for c in cells if c not in broken and not _complete(store, c)]
        raise
    for cell in set(cells) - broken:
        store.clear_failure(cell)
    waiting[setting.label] = []


def _owed(
    plan: Plan,
    setting: ContextSetting,
    cells: list[Cell],
    store: Store,
    progress: Progress,
    tally: Tally,
    opened: dict[Any, _Open],
    fail: Callable[[Cell, Exception], None],
) -> Iterator[Prompt | Question]:
    """Requests for the samples of `cells` that the run does not hold yet; what is sent is entered in `opened`."""
    if not cells:
        return
    label = cells[0].model
    planned, fingerprint = plan.models[label], store.manifest["models"][label]["fingerprint"]
    limit = planned.max_lengths[setting.label]
    setup = plan.setup(label)
    asker = Asker(setup.tokenizer, planned.checkpoint, setting, limit, planned.model.dtype)
    for cell in cells:
        progress.enter(cell)
        known, hashes = store.known(cell), {}
        try:
            for job in benchmarks.jobs(plan.benchmark(cell), cell, setup, limit):
                request = asker.request(job.ask)
                tokens, digest = _prompt_tokens(request), asker.sample_hash(request, fingerprint)
                hashes[job.id] = digest
                if digest in known.get(job.id, ()):
                    tally.reused += 1
                    progress.advance(cell, tokens, 0, reused=True)
                    continue
                tally.redone += job.id in known
                tally.asked += 1
                asked = {"prompt_hash": asker.prompt_hash(request), "prompt": _excerpt(setup.tokenizer, job, request)}
                opened[job.ask.key] = _Open(cell, job, tokens, digest, asked)
                yield request
            store.expect(cell, hashes)
        except GatedevalError as error:
            fail(cell, error)


class ScoreError(GatedevalError):
    """A response that cannot be scored: the cell fails, since leaving the sample out would be a silent wrong number."""


def _sample(item: _Open, answer: Completion | Choice, thinking: bool) -> Sample:
    """The line that is stored for one finished sample."""
    job, extra = item.job, {**item.asked, **item.job.extra}
    if isinstance(answer, Choice):
        text, tokens, reason = "", 0, "choose"
        response = str(max(range(len(answer.logprobs)), key=answer.logprobs.__getitem__))
        extra["logprobs"] = list(answer.logprobs)
    else:
        response, tokens, reason = answer.text, answer.tokens, answer.finish_reason
        try:
            text = answer_text(answer, thinking, job.ask.key)
        except GatedevalError as error:
            raise ScoreError(str(error)) from error
    scores = job.score(answer, text)
    if not scores or any(not math.isfinite(value) for value in scores.values()):
        raise ScoreError(f"{job.ask.key}: no finite score ({scores})")
    return Sample(
        id=job.id,
        hash=item.digest,
        prompt_tokens=item.tokens,
        references=job.references,
        response=response,
        response_tokens=tokens,
        finish_reason=reason,
        scores=scores,
        seconds=round(answer.seconds, 4),
        extra=extra,
    )


def _prompt_tokens(request: Prompt | Question) -> int:
    """Tokens of the prompt as sent; of the longest option where options are compared."""
    if isinstance(request, Prompt):
        return len(request.ids)
    return max(len(ctx) + len(continuation) for ctx, continuation in request.options)


def _excerpt(tokenizer: Tokenizer, job: Job, request: Prompt | Question) -> dict[str, Any]:
    """What a person wants to see of a prompt that may be 128K tokens long: its ends, and what surrounds each needle."""
    text = job.ask.prompt if job.ask.prompt is not None else job.ask.pairs[0][0]
    needles: list[str] = []
    if isinstance(request, Prompt):
        ids, marks = request.ids, job.extra.get("ruler", {}).get("evidence_tokens", [])[:8]
        needles = [tokenizer.decode(ids[max(0, at - 8) : at + 32]) for at in marks]
    return {"head": text[:_ENDS], "tail": text[-_ENDS:] if len(text) > _ENDS else "", "needles": needles}


def _complete(store: Store, cell: Cell) -> bool:
    planned = store.planned(cell)
    return planned is not None and len(store.done(cell)) >= planned


def _fail(store: Store, cell: Cell, error: str, tally: Tally, progress: Progress) -> None:
    store.fail(cell, error)
    tally.failed.append(cell.key)
    progress.say(f"{cell.model}, {cell.context}, {cell.task} {cell.length or ''}: failed: {error}")
