"""A sample's text -> the token ids that are sent, and the hash that says whether a stored answer is still valid.

Needs a tokenizer and a checkpoint's headers, but no engine: a finished run is recognised without starting one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from harness.config import ContextSetting
from harness.engine.requests import DEFAULT_ANSWER_TOKENS, Prompt, Question, SampleRequest, check_fits, prompt_tokens
from harness.engine.windows import text_windows
from harness.models.checkpoint import Checkpoint
from harness.models.stopping import config_ids, stop_ids
from harness.models.thinking import Thinking
from harness.models.tokenizer import NO_THINKING, Tokenizer
from harness.types import GatedevalError


class Encoder:
    """Encodes and hashes the samples of one model under one context setting.

    `max_length`: tokens that prompt and answer may take together. `dtype`: the model's, as configured. `options`: the
    engine's that change answers (`harness.engine.precision.hashed_options`).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        checkpoint: Checkpoint,
        setting: ContextSetting,
        max_length: int,
        dtype: str,
        options: Mapping[str, str] | None = None,
        thinking: Thinking = NO_THINKING,
    ) -> None:
        self.tokenizer, self.checkpoint, self.setting = tokenizer, checkpoint, setting
        self.max_length, self.thinking = max_length, thinking
        rope = checkpoint.rope_under(setting)
        encoding = dict(rope.parameters) if rope else {}
        if rope and encoding["rope_type"] == "dynamic":
            encoding["length"] = rope.length  # dynamic NTK computes its base from the longest length
        if rope and encoding["rope_type"] == "longrope":  # which of its factors are used
            encoding["long"] = rope.length > encoding["original_max_position_embeddings"]
        if rope is None and "longrope" in str(checkpoint.rope):
            encoding["length"] = max_length  # vLLM's longrope chooses its factors by the engine's longest length
        if dtype == "auto" and checkpoint.dtype == "float32":
            dtype = "float32"  # vLLM's own "auto" ran such checkpoints in bfloat16: those answers are others
        self._constant_facts = {"dtype": [dtype, checkpoint.dtype], "rope": encoding}
        if options:
            self._constant_facts["engine"] = dict(options)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """The token ids that end an answer (see `harness.models.stopping.stop_ids`)."""
        return stop_ids(self.checkpoint, self.tokenizer)

    @cached_property
    def _declared_stop_ids(self) -> tuple[int, ...]:
        return config_ids(self.checkpoint.path, self.checkpoint.config)

    def encode(self, sample: SampleRequest) -> Prompt | Question:
        """The token ids of `sample`.

        Raises:
            GatedevalError: they do not fit the context setting, or cannot be made (see `encode_sample`).
        """
        request = encode_sample(sample, self.tokenizer, self.thinking, self.max_length)
        if isinstance(request, Prompt):
            self._check(len(request.ids), request.max_tokens, sample.label)
            return dataclasses.replace(request, stop_ids=self.stop_ids)
        else:
            for context, continuation in request.options:
                self._check(len(context), len(continuation), sample.label)
        return request

    def hashes(self, request: Prompt | Question, fingerprint: str, decoding: str = "") -> tuple[str, str]:
        """(sample hash, prompt hash) of one request.

        The sample hash covers everything that can change the answer: token ids, sampling, stop ids, the checkpoint (its
        `fingerprint`), dtype, rotary encoding. Throughput options are left out on purpose. The prompt hash covers the
        request alone, whichever model answers it: paired comparisons need equal ones.

        `decoding`: a hash of how the tokenizer decodes, where that is not what the run's first session had; else empty.
        """
        asked = _json(_hashed_facts(request))
        facts: dict[str, Any] = {"model": fingerprint, **self._constant_facts}
        if isinstance(request, Prompt):  # options are compared by their ids: nothing is stopped or decoded
            # The fingerprint covers config.json and so its eos_token_id: only what other files add is said here.
            if request.stop_ids is not None and request.stop_ids != self._declared_stop_ids:
                facts["stop_ids"] = list(request.stop_ids)
            if decoding:
                facts["decoding"] = decoding
        rest = _json(facts)
        return _digest(f'{{"asked": {asked}, {rest[1:]}'), _digest(asked)  # one JSON object: "asked" sorts first

    def _check(self, prompt_tokens: int, answer_tokens: int, label: str) -> None:
        check_fits(prompt_tokens, answer_tokens, self.max_length, self.setting.label, label)


def encode_sample(
    sample: SampleRequest, tokenizer: Tokenizer, thinking: Thinking = NO_THINKING, max_length: int = 0
) -> Prompt | Question:
    """The token ids of `sample`, as a plan counts them and a run sends them. `max_length`: of the context setting, for
    the windows of a text.

    A model that may think gets `thinking.tokens` more than its answer may take. Stop strings are then not sent: a
    thought may contain them; they end the text after the thought (`harness.run.answers`).

    Raises:
        GatedevalError: an option that the tokenizer merges with the end of its prompt, or a sample that leaves a model
            that may think no room for it.
    """
    if sample.text is not None:
        return _text_question(sample.label, sample.text, tokenizer, max_length)
    if sample.prompt is not None:
        ids = array("I", tokenizer.encode(sample.prompt))  # 4 bytes a token; a list takes 36
        if not thinking.allowed:
            return Prompt(sample.label, ids, sample.max_tokens, sample.stop, sample.temperature)
        if thinking.tokens is None:
            raise GatedevalError(
                f"{sample.label}: thinking is on, and the answer's {sample.max_tokens} tokens have no room for a"
                " thought; say with `thinking_tokens` how many a thought may take"
            )
        return Prompt(sample.label, ids, sample.max_tokens + thinking.tokens, (), sample.temperature)
    if thinking.allowed:
        raise GatedevalError(
            f"{sample.label}: thinking is on, but options are compared without a response, so that the model cannot"
            " think; evaluate this benchmark with a config that has `thinking: false`"
        )
    options = []
    encoded_contexts: dict[str, tuple[int, ...]] = {}  # options that share a context encode it once
    for ctx, continuation in sample.options:
        context_ids, whole = _encode_pair(tokenizer, ctx, continuation, encoded_contexts)
        continuation_ids = whole[len(context_ids) :]
        # Without a token, its log-likelihood would be 0, higher than that of every other option.
        if not continuation_ids or _joined(tokenizer, context_ids, whole[: len(context_ids)]):
            raise GatedevalError(
                f"{sample.label}: option {continuation!r} has no token of its own: this tokenizer merges it with"
                " the end of the prompt, so options cannot be compared; evaluate this model without the task"
            )
        options.append((tuple(context_ids), tuple(continuation_ids)))
    return Question(sample.label, tuple(options))


def _text_question(label: str, text: str, tokenizer: Tokenizer, max_length: int) -> Question:
    """The windows of a text, without special tokens of the tokenizer's, as lm-eval makes them.

    vLLM always has room for one more token, so that a window reads at most `max_length` - 1 tokens, as in lm-eval's own
    vLLM backend.
    """
    if max_length < 2:
        raise GatedevalError(f"{label}: a context of {max_length} tokens has no room for a window of a text")
    windows = text_windows(tokenizer.encode(text, special=False), tokenizer.start_id, max_length - 1)
    if not windows:
        raise GatedevalError(f"{label}: its text is empty, and has no log-likelihood; leave the document out")
    return Question(label, windows, rolling=True)


def check_counted(sample: SampleRequest, request: Prompt | Question) -> None:
    """Raise GatedevalError where the generator of a sample counted other tokens than are sent."""
    if sample.counted_tokens is not None and sample.counted_tokens != prompt_tokens(request):
        raise GatedevalError(
            f"{sample.label}: its generator counted {sample.counted_tokens} prompt tokens, and"
            f" {prompt_tokens(request)} would be sent: the prompt was changed on its way; report this tokenizer"
        )


def _encode_pair(
    tokenizer: Tokenizer, ctx: str, continuation: str, encoded_contexts: dict[str, tuple[int, ...]]
) -> tuple[Sequence[int], Sequence[int]]:
    """Ids of the context, and of context and continuation as one text, which lm-eval splits after as many ids.

    Spaces at the context's end belong to the continuation. An empty context is BOS (or end-of-text).
    `encoded_contexts`: a cache of contexts' ids, which this function fills.
    """
    encode = tokenizer.encode
    if not ctx:
        ids, first = encode(continuation, special=False), tokenizer.start_id
        return [first], ids if ids[:1] == [first] else [first, *ids]
    stripped = ctx.rstrip()
    if stripped not in encoded_contexts:
        encoded_contexts[stripped] = tuple(encode(stripped))
    return encoded_contexts[stripped], encode(ctx + continuation)


def _joined(tokenizer: Tokenizer, context_ids: Sequence[int], start: Sequence[int]) -> bool:
    """Whether an added token lies across the end of the context: a part of the option would then not be compared.

    `start`: as many ids of context and option, encoded as one text.
    """
    return tuple(start) != tuple(context_ids) and not tokenizer.added_ids.isdisjoint(set(start) - set(context_ids))


def sizes(request: Prompt | Question) -> tuple[int, int]:
    """(tokens of the prompt without an answer, tokens of the longest prompt with its answer)."""
    if isinstance(request, Prompt):
        return len(request.ids), len(request.ids) + request.max_tokens
    if request.rolling:
        return prompt_tokens(request), max(len(context) + len(answer) for context, answer in request.options)
    return len(request.options[0][0]), max(len(context) + len(answer) for context, answer in request.options)


def _hashed_facts(request: Prompt | Question) -> list[Any]:
    if isinstance(request, Prompt):
        return [list(request.ids), request.max_tokens, list(request.stop), request.temperature]
    return [[list(ctx), list(continuation)] for ctx, continuation in request.options]


def _json(facts: Any) -> str:
    return json.dumps(facts, sort_keys=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def generation_request(id: str, label: str, prompt: str, settings: Mapping[str, Any]) -> SampleRequest:
    """A `SampleRequest` for a prompt with lm-eval's generation settings.

    Raises:
        GatedevalError: a setting that our engine does not support (none is ignored silently).
    """
    settings = dict(settings)
    stop = settings.pop("until", None) or []
    limit = None
    for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"):
        limit = settings.pop(name, None) or limit
    temperature = float(settings.pop("temperature", 0.0) or 0.0)
    if not settings.pop("do_sample", temperature > 0):
        temperature = 0.0
    if settings:
        raise GatedevalError(f"{label}: generation settings {sorted(settings)} are not supported by gatedeval's engine")
    return SampleRequest(
        id=id,
        label=label,
        prompt=prompt,
        max_tokens=int(limit or DEFAULT_ANSWER_TOKENS),
        stop=tuple(s for s in ([stop] if isinstance(stop, str) else stop) if s),
        temperature=temperature,
    )
