"""An engine without vLLM whose answers depend on everything that reaches an engine, and on nothing else.

It reads the checkpoint's files itself and takes nothing from gatedeval's content hash: where the hash leaves something
out that an answer depends on, a resumed run keeps an answer that a fresh run would not give, and a test can see it.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from harness.config import ContextSetting, Model
from harness.engine.requests import Answer, Choice, Completion, Prompt, Question
from harness.engine.start import running_dtype
from harness.models.checkpoint import inspect
from harness.models.hub import resolve, tokenizer_path
from harness.models.tokenizer import Tokenizer
from harness.run.plan import Plan
from harness.run.producing import Assignment, Event, produce


class FakeEngine:
    """Answers are drawn from a generator that is seeded with weights, config, rotary table, dtype, request, sampling.

    An answer has numbers and names out of the prompt, so that about half of the answers are right, special tokens, and
    an end where a stop id or a stop string comes.
    """

    facts_of_all: ClassVar[dict[str, Any]] = {}  # further facts that the engine reports
    starts: ClassVar[int] = 0

    def __init__(self, model: Model, contexts: Sequence[ContextSetting], options: Any) -> None:
        FakeEngine.starts += 1
        directory = resolve(model)
        self.checkpoint = inspect(directory)
        tokenizer_dir = tokenizer_path(model, directory)
        self.tokenizer = Tokenizer(tokenizer_dir)
        self.facts: dict[str, Any] = {"model_class": "FakeEngine", **self.facts_of_all}
        self.setting = contexts[0]
        weights = [hashlib.sha256(file.read_bytes()).hexdigest() for file in self.checkpoint.weight_files]
        dtype = running_dtype(model.dtype, self.checkpoint.dtype)
        self.model = [(directory / "config.json").read_text(), weights, dtype]
        # Weights or keys and values in fewer bits give other answers; "auto" is vLLM's word for its default.
        stored = [getattr(options, name, None) for name in ("quantization", "kv_cache_dtype")]
        self.model += [stored] if stored[0] or stored[1] not in (None, "auto") else []

    def can_switch_to(self, setting: ContextSetting) -> bool:
        return True

    def set_context(self, setting: ContextSetting) -> None:
        self.setting = setting

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Answer]:
        rope = self.checkpoint.rope_under(self.setting)
        assert rope is not None
        engine = [*self.model, list(rope.inv_freq), rope.attention_scaling, dict(rope.parameters)]
        for request in requests:
            if isinstance(request, Prompt):
                yield self._completion(request, engine)
            elif isinstance(request, Question):
                yield self._choice(request, engine)

    def close(self) -> None:
        pass

    def _completion(self, request: Prompt, engine: list[Any]) -> Completion:
        asked = [list(request.ids), request.max_tokens, request.temperature]
        chance = _chance(engine, asked)
        prompt = self.tokenizer.decode(request.ids)
        words = list(dict.fromkeys(re.findall(r"\d{2,}|[A-Z][a-z]+", prompt)))
        chosen = sorted(chance.sample(words, min(len(words), 12)), key=words.index)
        ids: list[int] = []
        for word in chosen:
            ids += self.tokenizer.encode(f" {word}", special=False)
            ids += [chance.randrange(0, 6)] if chance.random() < 0.2 else []  # special tokens and others
        ids = ids[: request.max_tokens]
        stop_ids = self._stop_ids() if request.stop_ids is None else set(request.stop_ids)
        end = next((n for n, id in enumerate(ids) if id in stop_ids), None)
        text = self.tokenizer.decode(ids[:end])
        cut = min((at for stop in request.stop if (at := text.find(stop)) >= 0), default=None)
        reason = "length" if end is None and cut is None else "stop"
        tokens = len(ids) if end is None else end + 1
        return Completion(request.key, text[:cut], tokens, reason, 0.1, (), len(request.ids))

    def _choice(self, request: Question, engine: list[Any]) -> Choice:
        chance = _chance(engine, [[list(ctx), list(more)] for ctx, more in request.options])
        logprobs = tuple(-5 * chance.random() for _ in request.options)
        return Choice(request.key, logprobs, tuple(chance.random() < 0.5 for _ in request.options), 0.1, 1)

    def _stop_ids(self) -> set[int]:
        """vLLM's own rule, read from the files anew."""
        directory = Path(self.checkpoint.path)
        file = directory / "generation_config.json"
        declared = json.loads((file if file.exists() else directory / "config.json").read_text()).get("eos_token_id")
        named = set(declared) if isinstance(declared, list) else set() if declared is None else {declared}
        return named | {self.tokenizer.hf.eos_token_id}


def _chance(engine: list[Any], asked: list[Any]) -> random.Random:
    return random.Random(hashlib.sha256(json.dumps([engine, asked]).encode()).hexdigest())


class InlineProducer:
    """In place of `harness.run.prefetching.Prefetcher`: produces samples in this process, when they are asked for."""

    def __init__(self, plan: Plan, *, waiting: Any = None) -> None:
        self.plan = plan

    def __enter__(self) -> InlineProducer:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def prefetch(self, assignment: Assignment) -> None:
        pass

    def events(self, assignment: Assignment, busy: Any = None) -> Iterator[Event]:
        yield from produce(self.plan, assignment)


class Cut(BaseException):
    """Ends a run in the middle, as a killed process would: nothing is tidied up."""


class CutEngine(FakeEngine):
    """Raises `Cut` after so many answers."""

    after: ClassVar[int | None] = None

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Answer]:
        for answer in super().answer(requests):
            if CutEngine.after is not None:
                if CutEngine.after == 0:
                    raise Cut
                CutEngine.after -= 1
            yield answer
