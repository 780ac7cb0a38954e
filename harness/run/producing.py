"""The samples of a model under one context setting as a stream of small, picklable events, made one after the other.

Pure work of tokenizer and data: no engine, no run directory, so that a process of its own can do it
(`feeding`).
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.benchmarks import base as benchmarks
from harness.benchmarks.base import Job, Setup
from harness.engine.encoding import Asker
from harness.engine.requests import Ask, Prompt, Question
from harness.run.order import in_windows
from harness.run.plan import Plan
from harness.types import Cell, GatedevalError

_ENDS = 300  # characters of a prompt's head and tail that are stored


@dataclass(frozen=True)
class Work:
    """What is to be made: the samples of `cells`, in that order, less those that the run holds.

    `known`: per cell, sample id -> content hashes that have been answered. `fingerprint`: of the checkpoint.
    """

    model: str
    setting: str
    cells: tuple[Cell, ...]
    fingerprint: str
    known: Mapping[Cell, Mapping[str, set[str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Begun:
    """The stream has come to `cell`."""

    cell: Cell


@dataclass(frozen=True)
class Found:
    """A sample that the run holds already."""

    cell: Cell
    tokens: int


@dataclass(frozen=True)
class Owed:
    """A sample to be answered. Its job's texts are gone: `request` has the token ids, `asked` what is stored of them.

    `redone`: the run holds an answer to another prompt under this id.
    """

    cell: Cell
    job: Job
    request: Prompt | Question
    tokens: int
    digest: str
    asked: dict[str, Any]
    redone: bool


@dataclass(frozen=True)
class Done:
    """All samples of `cell` were made: sample id -> content hash."""

    cell: Cell
    hashes: dict[str, str]


@dataclass(frozen=True)
class Broken:
    """`cell` cannot be made, and why."""

    cell: Cell
    error: str


Event = Begun | Found | Owed | Done | Broken


def make(plan: Plan, work: Work) -> Iterator[Event]:
    """The events of `work`: per cell one Begun, its samples, one Done or Broken.

    Where the prefix cache is on, RULER's samples come deepest first (see `ordering`); a sample's id, prompt and hash do
    not depend on it.
    """
    planned = plan.models[work.model]
    setting = next(s for s in plan.config.contexts if s.label == work.setting)
    limit, setup = planned.max_lengths[setting.label], plan.setup(work.model)
    asker = Asker(setup.tokenizer, planned.checkpoint, setting, limit, planned.model.dtype)
    for cell in work.cells:
        yield Begun(cell)
        hashes: dict[str, str] = {}
        benchmark = plan.benchmark(cell)
        try:
            samples = _samples(benchmarks.jobs(benchmark, cell, setup, limit), cell, setup, asker, work, hashes)
            if benchmark.kind == "ruler" and plan.config.engine.prefix_caching:
                samples = in_windows(samples, _prompt_ids)
            yield from samples
        except GatedevalError as error:
            yield Broken(cell, str(error))
        else:
            yield Done(cell, hashes)


def _samples(
    jobs: Iterator[Job], cell: Cell, setup: Setup, asker: Asker, work: Work, hashes: dict[str, str]
) -> Iterator[Found | Owed]:
    """One event a sample; enters every sample's hash in `hashes`."""
    known = work.known.get(cell, {})
    for job in jobs:
        request = asker.request(job.ask)
        tokens = prompt_tokens(request)
        digest, prompt_hash = asker.hashes(request, work.fingerprint)
        hashes[job.id] = digest
        if digest in known.get(job.id, ()):
            yield Found(cell, tokens)
            continue
        asked = {"prompt_hash": prompt_hash, "prompt": _excerpt(setup, job, request)}
        bare = dataclasses.replace(job, ask=Ask(job.ask.key, max_tokens=job.ask.max_tokens))
        if isinstance(request, Prompt):  # 4 bytes a token instead of 36
            request = dataclasses.replace(request, ids=array("I", request.ids))
        yield Owed(cell, bare, request, tokens, digest, asked, job.id in known)


def _prompt_ids(event: Found | Owed) -> Any:
    return event.request.ids if isinstance(event, Owed) and isinstance(event.request, Prompt) else None


def prompt_tokens(request: Prompt | Question) -> int:
    """Tokens of the prompt as sent; of the longest option where options are compared."""
    if isinstance(request, Prompt):
        return len(request.ids)
    return max(len(ctx) + len(continuation) for ctx, continuation in request.options)


def _excerpt(setup: Setup, job: Job, request: Prompt | Question) -> dict[str, Any]:
    """What a person wants to see of a prompt that may be 128K tokens long: its ends, and what surrounds each needle."""
    text = job.ask.prompt if job.ask.prompt is not None else job.ask.pairs[0][0]
    needles: list[str] = []
    if isinstance(request, Prompt):
        ids, marks = request.ids, job.extra.get("ruler", {}).get("evidence_tokens", [])[:8]
        needles = [setup.tokenizer.decode(ids[max(0, at - 8) : at + 32]) for at in marks]
    return {"head": text[:_ENDS], "tail": text[-_ENDS:] if len(text) > _ENDS else "", "needles": needles}
