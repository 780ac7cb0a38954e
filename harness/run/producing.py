"""Produces the samples of one model under one context setting, as a stream of small, picklable events.

Needs a tokenizer and data, but no engine and no run directory: a process of its own can do it (`prefetching`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.engine.encoding import Encoder, check_counted
from harness.engine.precision import hashed_options
from harness.engine.requests import Prompt, Question, SampleRequest, prompt_tokens
from harness.run.order import in_windows
from harness.run.plan import Plan
from harness.types import Cell, GatedevalError

_EXCERPT = 300
"""Characters of a prompt's head and of its tail that are stored."""


@dataclass(frozen=True)
class Assignment:
    """The cells of one model under one context setting whose samples are to be produced, in this order.

    `fingerprint`: the checkpoint's. `answered`: cell -> sample id -> content hashes that the run holds answers for.
    """

    model: str
    setting: str
    cells: tuple[Cell, ...]
    fingerprint: str
    answered: Mapping[Cell, Mapping[str, set[str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class CellStarted:
    """The events that follow belong to `cell`."""

    cell: Cell


@dataclass(frozen=True)
class SampleCached:
    """The run holds an answer to this sample already. `prompt_tokens`: as they would be sent."""

    cell: Cell
    prompt_tokens: int


@dataclass(frozen=True)
class CellFinished:
    """All samples of `cell` were produced. `hashes`: sample id -> content hash."""

    cell: Cell
    hashes: dict[str, str]


@dataclass(frozen=True)
class CellFailed:
    """The samples of `cell` cannot be produced; `error` says why."""

    cell: Cell
    error: str


Event = CellStarted | SampleCached | SampleRequest | CellFinished | CellFailed
"""A SampleRequest among the events is a pending sample: it is encoded, and the engine has to answer it."""


def produce(plan: Plan, assignment: Assignment) -> Iterator[Event]:
    """The events of `assignment`. Per cell: CellStarted, its samples, then CellFinished or CellFailed.

    With the prefix cache on, RULER's samples come in the order of `harness.run.order`. A sample's id, prompt and hash
    do not depend on the order.
    """
    planned = plan.models[assignment.model]
    setting = next(s for s in plan.config.contexts if s.label == assignment.setting)
    limit, setup = planned.max_lengths[setting.label], plan.setup(assignment.model)
    dtype, checkpoint = planned.model.dtype, planned.checkpoint
    options = hashed_options(plan.config.engine, checkpoint, dtype)
    encoder = Encoder(setup.tokenizer, checkpoint, setting, limit, dtype, options, thinking=setup.thinking)
    for cell in assignment.cells:
        yield CellStarted(cell)
        hashes: dict[str, str] = {}
        benchmark = plan.benchmark(cell)
        try:
            requests = benchmark.requests(cell, setup, limit)
            samples = _encoded(requests, cell, encoder, assignment, hashes)
            if benchmark.shared_beginnings and plan.config.engine.prefix_caching:
                samples = in_windows(samples, _prompt_ids)
            yield from samples
        except GatedevalError as error:
            yield CellFailed(cell, str(error))
        else:
            yield CellFinished(cell, hashes)


def _encoded(
    requests: Iterator[SampleRequest], cell: Cell, encoder: Encoder, assignment: Assignment, hashes: dict[str, str]
) -> Iterator[SampleCached | SampleRequest]:
    """One event per sample. Enters the content hash of every sample in `hashes`."""
    answered = assignment.answered.get(cell, {})
    for sample in requests:
        request = encoder.encode(sample)
        check_counted(sample, request)
        hash, prompt_hash = encoder.hashes(request, assignment.fingerprint)
        hashes[sample.id] = hash
        if hash in answered.get(sample.id, ()):
            yield SampleCached(cell, prompt_tokens(request))
            continue
        yield dataclasses.replace(
            sample,
            prompt=None,
            options=(),
            cell=cell,
            request=request,
            hash=hash,
            prompt_hash=prompt_hash,
            excerpt=_excerpt(encoder, sample, request),
            thought_opened=sample.prompt is not None and encoder.thinking.opened_by(sample.prompt),
            replaces=sample.id in answered,
        )


def _prompt_ids(event: SampleCached | SampleRequest) -> Any:
    """The token ids of a pending prompt; None for every other event."""
    return event.request.ids if isinstance(event, SampleRequest) and isinstance(event.request, Prompt) else None


def _excerpt(encoder: Encoder, sample: SampleRequest, request: Prompt | Question) -> dict[str, Any]:
    """What a person needs to see of a prompt of up to 128K tokens: head, tail, and the text around each needle."""
    text = sample.prompt if sample.prompt is not None else sample.options[0][0]
    needles: list[str] = []
    if isinstance(request, Prompt):
        positions = sample.extra.get("ruler", {}).get("evidence_tokens", [])[:8]
        needles = [encoder.tokenizer.decode(request.ids[max(0, at - 8) : at + 32]) for at in positions]
    tail = text[-_EXCERPT:] if len(text) > _EXCERPT else ""
    return {"head": text[:_EXCERPT], "tail": tail, "needles": needles}
