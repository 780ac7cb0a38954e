"""Requests and answers as they travel between driver and engine: token ids as one int32 array, 4 bytes a token.

A request's key does not travel. The driver numbers its requests; the engine knows the number, and the label for its
error messages. No class of this package is pickled, so that a node can say in words that it has another version.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.engine.requests import Answer, Choice, Completion, Prompt, Question

Ids = Any  # a one-dimensional numpy array of int32
Batch = tuple[list[tuple[Any, ...]], Ids]
"""What `pack` returns: a plain tuple per request, and all their token ids, one request's behind the other's."""


@dataclass(frozen=True)
class Numbered:
    """A request's key on the engine's side. Its text, for error messages, is the label of the driver's key."""

    number: int
    label: str

    def __str__(self) -> str:
        return self.label


def pack(requests: Iterable[tuple[int, Prompt | Question]]) -> Batch:
    """Numbered requests as plain data. The contexts that a question's options share travel once."""
    entries: list[tuple[Any, ...]] = []
    parts: list[Ids] = []

    def put(ids: Sequence[int]) -> int:
        parts.append(_ids(ids))
        return len(ids)

    for number, request in requests:
        head = (number, str(request.key))
        if isinstance(request, Prompt):
            facts = (request.max_tokens, request.stop, request.temperature, request.stop_ids)
            entries.append((*head, put(request.ids), facts))
            continue
        contexts = {context: at for at, context in enumerate(dict.fromkeys(c for c, _ in request.options))}
        options = [(contexts[context], continuation) for context, continuation in request.options]
        entries.append((*head, [put(context) for context in contexts], (options, request.rolling)))
    return entries, np.concatenate(parts) if parts else np.empty(0, np.int32)


def unpack(batch: Batch) -> Iterator[Prompt | Question]:
    """The requests of `pack`, with `Numbered` keys."""
    entries, ids = batch
    at = 0
    for number, label, lengths, facts in entries:
        key = Numbered(number, label)
        if isinstance(lengths, int):
            max_tokens, stop, temperature, stop_ids = facts
            prompt = array("I", ids[at : at + lengths].tobytes())
            at += lengths
            yield Prompt(key, prompt, max_tokens, tuple(stop), temperature, stop_ids)
            continue
        contexts = []
        for length in lengths:
            contexts.append(tuple(ids[at : at + length].tolist()))
            at += length
        options, rolling = facts
        pairs = tuple((contexts[context], tuple(continuation)) for context, continuation in options)
        yield Question(key, pairs, rolling=rolling)


def pack_answer(answer: Answer) -> tuple[Any, ...]:
    """An answer to a `Numbered` request as plain data."""
    assert isinstance(answer.key, Numbered)
    common = (answer.key.number, answer.seconds, answer.sent_tokens, answer.cached_tokens)
    if isinstance(answer, Completion):
        return (*common, answer.text, answer.tokens, answer.finish_reason, answer.token_ids)
    return (*common, answer.logprobs, answer.greedy)


def unpack_answer(packed: tuple[Any, ...], key: Any, engine: str) -> Answer:
    """The answer of `pack_answer`, under the driver's key. `engine`: which one gave it."""
    _, seconds, sent, cached, *rest = packed
    if len(rest) == 4:
        text, tokens, reason, ids = rest
        return Completion(key, text, tokens, reason, seconds, tuple(ids), sent, cached, engine)
    logprobs, greedy = rest
    return Choice(key, tuple(logprobs), tuple(greedy), seconds, sent, cached, engine)


def _ids(ids: Sequence[int]) -> Ids:
    """Token ids as int32, without a copy where they are an array of 4-byte integers already."""
    if isinstance(ids, array) and ids.itemsize == 4:
        return np.frombuffer(ids, dtype=np.int32)
    return np.asarray(ids, dtype=np.int32)
