"""The check of a live engine before it answers samples: a few short prompts, and what their logits must satisfy.

A broken model answers nothing or always the same, and is scored 0 without an error. Logits show it at once: they are
finite, differ between tokens, differ between prompts, and depend on the tokens before the last one. The same prompt has
the same log-probabilities however it is asked: as the most likely tokens, as a list of tokens of any length in one
batch, computed from nothing or from the prefix cache. All but `ask` is pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.engine.option_tree import padded
from harness.engine.requests import SelfCheckError
from harness.engine.stream import InFlight, RequestStream

TOP = 5
"""Most likely tokens that a probe without `asked` returns."""

_PROMPT_TOKENS = 24
_BEYOND_A_BLOCK = 17  # tokens after the first block of the KV cache: the second pass finds the block in the cache
_SPREAD = 48  # tokens of the vocabulary whose log-probabilities are compared
_EQUAL = 1e-4  # nats; closer log-probabilities count as the same number: sums over prompts of two lengths round apart

BOUNDS = {"float32": 1e-3, "float16": 0.25, "bfloat16": 1.0}
"""Largest difference, in nats, between two computations of one log-probability, by dtype.

In 16 bits a logit between 16 and 32 has steps of 0.016 or 0.125, and the rounding of every layer before adds to that: a
model with random weights in bfloat16 is 0.1 nats off its own float32 on average, single tokens more. What the check
looks for (a wrong token, another prompt's cache, a padded -inf) is off by several nats.
"""

QUANTISED_BOUND = 2.0
"""The same for quantised weights and for keys and values in 8 bits."""


@dataclass(frozen=True)
class Probe:
    """One request: the next-token log-probabilities of `asked` after `ids`; of the `TOP` likeliest tokens if empty.

    `prompt`: 0 and 1 end in the same token, 2 is another prompt, longer than a block of the KV cache.
    """

    prompt: int
    ids: tuple[int, ...]
    asked: tuple[int, ...] = ()


Answer = tuple[Probe, Mapping[int, float]]
"""A probe and its log-probabilities in nats, by token id."""


def run(stream: RequestStream, limits: InFlight, sizes: Mapping[str, int], bound: float) -> None:
    """Ask both passes through an engine's stream and judge all answers.

    `sizes`: `vocabulary`, `max_length` (of the context setting) and `block_size` (of the KV cache), in tokens. `bound`:
    one of `BOUNDS`.

    Raises:
        SelfCheckError: see `judge`.
        EngineError: the engine died.
    """
    first = ask(stream, limits, first_pass(**sizes))
    judge([*first, *ask(stream, limits, second_pass(first, sizes["vocabulary"]))], bound)


def ask(stream: RequestStream, limits: InFlight, probes: Iterable[Probe]) -> list[Answer]:
    """The engine's answers to `probes`, which it works on as one batch, in the order of `probes`."""
    from vllm import SamplingParams

    requests = []
    for number, probe in enumerate(probes):
        what = {"logprob_token_ids": padded(sorted(set(probe.asked)))} if probe.asked else {"logprobs": TOP}
        params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, **what)
        requests.append(((number, probe), probe.ids, params))
    rows: dict[int, Answer] = {}
    for (number, probe), output, _ in stream.run(requests, limits):
        row = output.outputs[0].logprobs[0]
        rows[number] = probe, {t: row[t].logprob for t in probe.asked or row if t in row}
    return [rows[number] for number in sorted(rows)]


def first_pass(vocabulary: int, max_length: int, block_size: int) -> list[Probe]:
    """The probes of an empty cache, one batch: the likeliest tokens after each prompt.

    vLLM answers a batch with such a request and one for named tokens wrongly, so they are batches of their own.
    """
    return [Probe(number, ids) for number, ids in enumerate(_prompts(vocabulary, max_length, block_size))]


def second_pass(first: Sequence[Answer], vocabulary: int) -> list[Probe]:
    """The probes of a filled cache, one batch: the tokens that the first pass found, a short list and a long one."""
    spread = _spread(vocabulary)
    return [Probe(probe.prompt, probe.ids, asked) for probe, row in first for asked in (tuple(row), spread[:3], spread)]


def judge(answers: Iterable[Answer], bound: float) -> None:
    """Raise SelfCheckError, saying what is wrong, if these answers cannot come from a working model and engine."""
    answers = list(answers)
    if any(not math.isfinite(value) for _, row in answers for value in row.values()):
        raise SelfCheckError(
            "log-probabilities are not finite: the model computes values that are no numbers (its weights are damaged,"
            " or they need another dtype)"
        )
    if any(len(row) < len(set(probe.asked) or (1,)) for probe, row in answers):
        raise SelfCheckError("the engine returned no log-probability for a token that it was asked for")
    widest: dict[int, Mapping[int, float]] = {}
    for probe, row in answers:
        if len(row) > len(widest.get(probe.prompt, ())):
            widest[probe.prompt] = row
    if all(max(row.values()) - min(row.values()) < _EQUAL for row in widest.values()):
        raise SelfCheckError(
            "every token has the same probability after every prompt: the output layer (lm_head), or all the model, is"
            " zero or was not loaded"
        )
    prompts = {probe.prompt: probe.ids for probe, _ in answers}
    if _same(widest[0], widest[2]) and _same(widest[0], widest[1]):
        raise SelfCheckError("the logits are the same after every prompt: the model does not read its input")
    if _same(widest[0], widest[1]) and prompts[0] != prompts[1]:
        raise SelfCheckError(
            "the logits depend on the last token alone: attention has no effect (are the o_proj weights zero?)"
        )
    _check_agreement(answers, bound)


def _check_agreement(answers: Iterable[Answer], bound: float) -> None:
    known: dict[tuple[int, int], float] = {}
    for probe, row in answers:
        for token, value in row.items():
            first = known.setdefault((probe.prompt, token), value)
            if abs(first - value) > bound:
                raise SelfCheckError(
                    f"the engine gives token {token} the log-probability {first:.4f} and then {value:.4f} after one"
                    f" prompt (at most {bound:g} apart is rounding): answers would depend on the batch or on the cache"
                )


def _same(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    common = one.keys() & other.keys()
    return all(abs(one[token] - other[token]) < _EQUAL for token in common)


def _prompts(vocabulary: int, max_length: int, block_size: int) -> list[tuple[int, ...]]:
    """Three prompts of token ids from the middle of the vocabulary, where there are no special tokens."""
    room = max(1, max_length - 1)
    short, long = min(_PROMPT_TOKENS, room), min(max(block_size, _PROMPT_TOKENS) + _BEYOND_A_BLOCK, room)
    low, span = vocabulary // 8, max(1, vocabulary * 3 // 4)

    def ids(seed: int, count: int) -> tuple[int, ...]:
        return tuple(low + (seed + 7919 * i + 31 * i * i) % span for i in range(count))

    last = low + span // 2
    return [(*ids(11, short - 1), last), (*ids(1213, short - 1), last), (*ids(4241, long - 1), last - span // 4)]


def _spread(vocabulary: int) -> tuple[int, ...]:
    """Token ids from all over the vocabulary, token 0 first: vLLM pads the lists of a batch with it."""
    count = min(_SPREAD, vocabulary)
    return tuple(i * vocabulary // count for i in range(count))
