"""A sample's text -> the token ids that are sent, and the hash that says whether a stored answer is still valid.

Needs a tokenizer and a checkpoint's headers, but no engine: a finished run is recognised without starting one.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from harness.config import ContextSetting
from harness.engine.requests import DEFAULT_ANSWER_TOKENS, Prompt, Question, SampleRequest, check_fits
from harness.models.checkpoint import Checkpoint
from harness.models.stopping import config_ids, stop_ids
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError


class Encoder:
    """Encodes and hashes the samples of one model under one context setting.

    `max_length`: tokens that prompt and answer may take together. `dtype`: the model's, as configured.
    """

    def __init__(
        self, tokenizer: Tokenizer, checkpoint: Checkpoint, setting: ContextSetting, max_length: int, dtype: str
    ) -> None:
        self.tokenizer, self.checkpoint, self.setting, self.max_length = tokenizer, checkpoint, setting, max_length
        rope = checkpoint.rope_under(setting)
        encoding = dict(rope.parameters) if rope else {}
        if rope and encoding["rope_type"] == "dynamic":
            encoding["length"] = rope.length  # dynamic NTK computes its base from the longest length
        if rope is None and "longrope" in str(checkpoint.rope):
            encoding["length"] = max_length  # vLLM's longrope chooses its factors by the engine's longest length
        if dtype == "auto" and checkpoint.dtype == "float32":
            dtype = "float32"  # vLLM's own "auto" ran such checkpoints in bfloat16: those answers are others
        self._constant_facts = {"dtype": [dtype, checkpoint.dtype], "rope": encoding}

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """The token ids that end an answer (see `harness.models.stopping.stop_ids`)."""
        return stop_ids(self.checkpoint, self.tokenizer)

    @cached_property
    def _declared_stop_ids(self) -> tuple[int, ...]:
        return config_ids(self.checkpoint.path, self.checkpoint.config)

    def encode(self, sample: SampleRequest) -> Prompt | Question:
        """The token ids of `sample`. Raises GatedevalError when they do not fit the context setting."""
        if sample.prompt is not None:
            ids = array("I", self.tokenizer.encode(sample.prompt))  # 4 bytes a token; a list takes 36
            self._check(len(ids), sample.max_tokens, sample.label)
            return Prompt(sample.label, ids, sample.max_tokens, sample.stop, sample.temperature, self.stop_ids)
        options = []
        encoded_contexts: dict[str, tuple[int, ...]] = {}  # options that share a context encode it once
        for ctx, continuation in sample.options:
            context_ids, continuation_ids = self.encode_pair(ctx, continuation, encoded_contexts)
            if not continuation_ids:  # its log-likelihood would be 0, higher than that of every other option
                raise GatedevalError(
                    f"{sample.label}: option {continuation!r} has no token of its own: this tokenizer merges it with"
                    " the end of the prompt, so options cannot be compared; leave the task out for this model"
                )
            self._check(len(context_ids), len(continuation_ids), sample.label)
            options.append((tuple(context_ids), tuple(continuation_ids)))
        return Question(sample.label, tuple(options))

    def encode_pair(
        self, ctx: str, continuation: str, encoded_contexts: dict[str, tuple[int, ...]] | None = None
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Ids of context and continuation, split as lm-eval splits them.

        Spaces at the context's end belong to the continuation. Both are encoded as one text; the continuation is what
        comes after as many ids as the context alone has. An empty context is BOS (or end-of-text).
        `encoded_contexts`: a cache of contexts' ids, which this method fills.
        """
        encode = self.tokenizer.encode
        if not ctx:
            ids, first = encode(continuation, special=False), self.tokenizer.start_id
            return ([first], ids) if ids[0] != first else (ids[:1], ids[1:])
        stripped = ctx.rstrip()
        cache = {} if encoded_contexts is None else encoded_contexts
        if stripped not in cache:
            cache[stripped] = tuple(encode(stripped))
        context_ids = cache[stripped]
        return context_ids, encode(ctx + continuation)[len(context_ids) :]

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
