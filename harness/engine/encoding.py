"""From a sample's text to the token ids that are sent, and the hash that says whether its answer is still good.

Needs a tokenizer and a checkpoint's headers, no engine: a finished run can thus be recognised without starting one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from harness.config import ContextSetting
from harness.engine.requests import DEFAULT_ANSWER_TOKENS, Ask, Prompt, Question, check_fits
from harness.models.checkpoint import Checkpoint
from harness.models.tokenizer import Tokenizer
from harness.rope import context
from harness.types import GatedevalError


class Asker:
    """Turns asks into requests for one model under one context setting.

    `max_length`: tokens that prompt and answer may take together. `dtype`: the model's, as configured.
    """

    def __init__(
        self, tokenizer: Tokenizer, checkpoint: Checkpoint, setting: ContextSetting, max_length: int, dtype: str
    ) -> None:
        self.tokenizer, self.setting, self.max_length = tokenizer, setting, max_length
        rope: Mapping[str, Any] = {}
        if checkpoint.layout is not None or not context.is_native(setting):
            rope = context.rope_of(setting, checkpoint.config).parameters
        self._constant = {"dtype": [dtype, checkpoint.dtype], "rope": dict(rope)}

    def request(self, ask: Ask) -> Prompt | Question:
        """The token ids that `ask` comes to. Raises GatedevalError when they do not fit the context setting."""
        if ask.prompt is not None:
            ids = self.tokenizer.encode(ask.prompt)
            self._check(len(ids), ask.max_tokens, ask.key)
            return Prompt(ask.key, ids, ask.max_tokens, ask.stop, ask.temperature)
        options = []
        alone: dict[str, tuple[int, ...]] = {}  # options over one context encode it once, and share its ids
        for ctx, continuation in ask.pairs:
            context_ids, continuation_ids = self.pair(ctx, continuation, alone)
            if not continuation_ids:  # its log-likelihood would be 0, the best there is
                raise GatedevalError(
                    f"{ask.key}: option {continuation!r} has no token of its own: this tokenizer merges it with the end"
                    " of the prompt, so options cannot be compared; leave the task out for this model"
                )
            self._check(len(context_ids), len(continuation_ids), ask.key)
            options.append((tuple(context_ids), tuple(continuation_ids)))
        return Question(ask.key, tuple(options))

    def pair(
        self, ctx: str, continuation: str, known: dict[str, tuple[int, ...]] | None = None
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Ids of context and continuation, split as lm-eval splits them.

        Spaces at the context's end belong to the continuation; both are encoded as one text, and the continuation is
        what comes after as many ids as the context alone has. An empty context is BOS (or end-of-text). `known`: ids of
        contexts that were encoded before; what is new is entered.
        """
        encode = self.tokenizer.encode
        if not ctx:
            ids, first = encode(continuation, special=False), self.tokenizer.start_id
            return ([first], ids) if ids[0] != first else (ids[:1], ids[1:])
        stripped = ctx.rstrip()
        known = {} if known is None else known
        if stripped not in known:
            known[stripped] = tuple(encode(stripped))
        alone = known[stripped]
        return alone, encode(ctx + continuation)[len(alone) :]

    def sample_hash(self, request: Prompt | Question, fingerprint: str) -> str:
        """Content hash of all that can change the answer: token ids, sampling, weights, dtype, rotary encoding.

        `fingerprint`: the checkpoint's. Throughput knobs are left out on purpose.
        """
        return self.hashes(request, fingerprint)[0]

    def hashes(self, request: Prompt | Question, fingerprint: str) -> tuple[str, str]:
        """(`sample_hash`, `prompt_hash`) of one request, which is written out once for both."""
        asked = _json(_asked(request))
        rest = _json({"model": fingerprint, **self._constant})
        return _digest(f'{{"asked": {asked}, {rest[1:]}'), _digest(asked)  # one object: "asked" sorts first

    @staticmethod
    def prompt_hash(request: Prompt | Question) -> str:
        """Hash of what is asked alone, whichever model answers: paired comparisons are made on equal ones."""
        return _digest(_json(_asked(request)))

    def _check(self, prompt_tokens: int, answer_tokens: int, what: object) -> None:
        check_fits(prompt_tokens, answer_tokens, self.max_length, self.setting.label, what)


def _asked(request: Prompt | Question) -> list[Any]:
    if isinstance(request, Prompt):
        return [list(request.ids), request.max_tokens, list(request.stop), request.temperature]
    return [[list(c), list(t)] for c, t in request.options]


def _json(facts: Any) -> str:
    return json.dumps(facts, sort_keys=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def generation(key: Hashable, prompt: str, settings: Mapping[str, Any]) -> Ask:
    """An `Ask` from lm-eval's generation settings.

    Raises:
        GatedevalError: a setting that is not honoured here (so that none is silently ignored).
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
        raise GatedevalError(f"{key}: generation settings {sorted(settings)} are not supported by gatedeval's engine")
    return Ask(
        key,
        prompt=prompt,
        max_tokens=int(limit or DEFAULT_ANSWER_TOKENS),
        stop=tuple(s for s in ([stop] if isinstance(stop, str) else stop) if s),
        temperature=temperature,
    )
