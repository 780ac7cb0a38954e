"""Produces the samples of one engine under one context setting, as a stream of small, picklable events.

Needs a tokenizer and data, but no engine and no run directory: a process of its own can do it (`prefetching`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from harness.benchmarks.protocol import Setup
from harness.config import ContextSetting
from harness.engine.encoding import Encoder, check_counted
from harness.engine.precision import hashed_options
from harness.engine.requests import Prompt, SampleKey, SampleRequest
from harness.models.decoding import decoding_sha256
from harness.models.thinking import Thinking
from harness.run.order import in_windows
from harness.run.plan import Plan, PlannedModel
from harness.run.scoring import NotStoredWhole, ScoreError, says_the_same, scored_again
from harness.store.stored import StoredAnswers
from harness.text import between_words
from harness.types import Cell, GatedevalError, Sample

_EXCERPT = 300
"""Characters of a prompt's head and of its tail that are stored."""


@dataclass(frozen=True)
class Assignment:
    """The cells of one engine under one context setting whose samples are to be produced, in this order.

    `engine`: its name in the plan. `fingerprint`: the checkpoint's. `files`: cell -> its sample file, then other files
    that may hold its answers (see `harness.store.stored`). `decoding`: how the tokenizer decoded in the run's first
    session (see `harness.models.decoding`); empty: as it does now. `counts`: cell -> (first, end) where a round asks
    for a part of its samples: those before `first` were events of an earlier round, those from `end` on are not asked
    for yet.
    """

    engine: str
    setting: str
    cells: tuple[Cell, ...]
    fingerprint: str
    files: Mapping[Cell, tuple[Path, ...]] = field(default_factory=dict)
    decoding: str = ""
    counts: Mapping[Cell, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Begun:
    """A cell whose samples are produced in rounds: the samples that are left, and the hashes of those before them."""

    encoded: Iterator[SampleRequest]
    hashes: dict[str, str]


@dataclass(frozen=True)
class CellStarted:
    """The events that follow belong to `cell`."""

    cell: Cell


@dataclass(frozen=True)
class SampleCached:
    """The run holds an answer to this sample already. `prompt_tokens`: as they would be sent.

    `line`: what has to be stored, because references or scores are others now ("rescored"), or because the answer lies
    in the file of another label ("relabelled"); None: nothing.
    """

    cell: Cell
    prompt_tokens: int
    line: Sample | None = None
    found: Literal["as it is", "rescored", "relabelled"] = "as it is"


@dataclass(frozen=True)
class SampleUnscorable:
    """The run holds an answer to this sample, and the scorer refuses it: the cell fails, as it would in a fresh run."""

    cell: Cell
    error: str


@dataclass(frozen=True)
class CellFinished:
    """All samples of `cell` that are asked for were produced. `hashes`: sample id -> content hash of each."""

    cell: Cell
    hashes: dict[str, str]


@dataclass(frozen=True)
class CellFailed:
    """The samples of `cell` cannot be produced; `error` says why."""

    cell: Cell
    error: str


Event = CellStarted | SampleCached | SampleUnscorable | SampleRequest | CellFinished | CellFailed
"""A SampleRequest among the events is a pending sample: it is encoded, and the engine has to answer it."""


def produce(plan: Plan, assignment: Assignment, begun: dict[Cell, Begun] | None = None) -> Iterator[Event]:
    """The events of `assignment`. Per cell: CellStarted, its samples, then CellFinished or CellFailed.

    With the prefix cache on, RULER's samples come in the order of `harness.run.order`. A sample's id, prompt and hash
    do not depend on the order. `begun`: the cells that earlier rounds have begun, which go on where they were; without
    it their samples are made again from the first one.
    """
    begun = {} if begun is None else begun
    planned = plan.engines[assignment.engine]
    setting = next(s for s in plan.config.contexts if s.label == assignment.setting)
    limit, setup = planned.max_lengths[setting.label], plan.setup(assignment.engine)
    encoders = _Encoders(plan, planned, setting, setup)
    decoding = decoding_sha256(planned.tokenizer_dir) if assignment.decoding else ""
    if decoding == assignment.decoding:
        decoding = ""
    for cell in assignment.cells:
        yield CellStarted(cell)
        benchmark, encoder = plan.benchmark(cell), encoders.of(cell)
        try:
            own, *others = assignment.files.get(cell, (Path("/dev/null"),))
            stored = StoredAnswers(own, others)
            first, end = assignment.counts.get(cell, (0, None))
            kept = begun.pop(cell, None)
            if kept is None or len(kept.hashes) != first:
                requests = benchmark.requests(cell, setup, limit)
                kept = Begun(_encoded(requests, cell, encoder, assignment.fingerprint, decoding), {})
                for sample in islice(kept.encoded, first):
                    kept.hashes[sample.id] = sample.hash
            hashes, encoded = kept.hashes, kept.encoded
            if end is not None:
                encoded = islice(encoded, end - first)
            samples = _pending(encoded, stored, encoder, hashes)
            if benchmark.shared_beginnings and plan.config.engine.prefix_caching:
                samples = in_windows(samples, _prompt_ids)
            yield from samples
        except GatedevalError as error:
            yield CellFailed(cell, str(error))
        else:
            if end is not None:
                begun[cell] = kept
            yield CellFinished(cell, dict(hashes))


class _Encoders:
    """What encodes and hashes cells: one for each way in which benchmarks write the dtype that their engine runs in."""

    def __init__(self, plan: Plan, planned: PlannedModel, setting: ContextSetting, setup: Setup) -> None:
        self._plan, self._planned, self._setting, self._setup = plan, planned, setting, setup
        self._made: dict[str, Encoder] = {}

    def of(self, cell: Cell) -> Encoder:
        """The encoder of a cell."""
        dtype = self._plan.dtype(cell)
        if dtype not in self._made:
            checkpoint, setup = self._planned.checkpoint, self._setup
            limit = self._planned.max_lengths[self._setting.label]
            options = hashed_options(self._plan.config.engine, checkpoint, dtype)
            self._made[dtype] = Encoder(
                setup.tokenizer, checkpoint, self._setting, limit, dtype, options, thinking=setup.thinking
            )
        return self._made[dtype]


def _encoded(
    requests: Iterator[SampleRequest], cell: Cell, encoder: Encoder, fingerprint: str, decoding: str
) -> Iterator[SampleRequest]:
    """The samples with their token ids and content hashes, and still with their texts."""
    for sample in requests:
        request = encoder.encode(sample)
        check_counted(sample, request)
        hash, prompt_hash = encoder.hashes(request, fingerprint, decoding)
        request = dataclasses.replace(request, key=SampleKey(cell, sample.id, sample.label))
        opened = sample.prompt is not None and encoder.thinking.opened_by(sample.prompt)
        yield dataclasses.replace(
            sample, cell=cell, request=request, hash=hash, prompt_hash=prompt_hash, thought_opened=opened
        )


def _pending(
    samples: Iterator[SampleRequest], stored: StoredAnswers, encoder: Encoder, hashes: dict[str, str]
) -> Iterator[SampleCached | SampleUnscorable | SampleRequest]:
    """One event per sample. Enters the content hash of every sample in `hashes`, but not of one without a score."""
    for sample in samples:
        try:
            cached = _cached(sample, stored, encoder.thinking)
        except ScoreError as error:
            assert sample.cell is not None
            yield SampleUnscorable(sample.cell, str(error))
            continue
        hashes[sample.id] = sample.hash
        if cached is not None:
            yield cached
            continue
        yield dataclasses.replace(
            sample,
            prompt=None,
            options=(),
            text=None,
            excerpt=_excerpt(encoder, sample),
            replaces=stored.has_id(sample.id),
        )


def _cached(sample: SampleRequest, stored: StoredAnswers, thinking: Thinking) -> SampleCached | None:
    """The event of a sample that the run holds an answer to; None where it has to be answered.

    Raises:
        ScoreError: the stored answer cannot be scored.
    """
    assert sample.cell is not None
    own = stored.own(sample.id, sample.hash)
    record = stored.other(sample.hash) if own is None else own
    if record is None:
        return None
    try:
        line = scored_again(sample, record, thinking)
    except NotStoredWhole:
        return None
    if own is None:
        return SampleCached(sample.cell, sample.prompt_tokens, line, "relabelled")
    if says_the_same(line, record):
        return SampleCached(sample.cell, sample.prompt_tokens)
    return SampleCached(sample.cell, sample.prompt_tokens, line, "rescored")


def _prompt_ids(event: SampleCached | SampleUnscorable | SampleRequest) -> Any:
    """The token ids of a pending prompt; None for every other event."""
    return event.request.ids if isinstance(event, SampleRequest) and isinstance(event.request, Prompt) else None


def _excerpt(encoder: Encoder, sample: SampleRequest) -> dict[str, Any]:
    """What a person needs to see of a prompt of up to 128K tokens: head, tail, and the text around each needle.

    A prompt of up to twice `_EXCERPT` characters is stored whole as its head. The parts are cut between words.
    """
    text = next((t for t in (sample.prompt, sample.text) if t is not None), None)
    text = sample.options[0][0] if text is None else text
    needles: list[str] = []
    if isinstance(request := sample.request, Prompt):
        positions = sample.extra.get("ruler", {}).get("evidence_tokens", [])[:8]
        needles = [encoder.tokenizer.decode(request.ids[max(0, at - 8) : at + 32]) for at in positions]
    needles = [between_words(needle, start=True, end=True) for needle in needles]
    if len(text) <= 2 * _EXCERPT:  # head and tail would overlap, or have nothing between them
        return {"head": text, "tail": "", "needles": needles}
    head = between_words(text[:_EXCERPT], start=False, end=True)
    return {"head": head, "tail": between_words(text[-_EXCERPT:], start=True, end=False), "needles": needles}
