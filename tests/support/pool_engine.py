"""An engine without vLLM for pools: its answers depend on the request alone, and it dies or fails where a prompt says.

The first token of a prompt decides: `DEADLY` ends the engine, `REFUSED` makes it give up on this request, `SLOW` takes
`SLOW_SECONDS`. `PACE` is added to every answer of an engine whose options have `max_num_seqs` 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.requests import (
    Answer,
    Choice,
    Completion,
    EngineError,
    Prompt,
    Question,
    RequestError,
    SelfCheckError,
)
from harness.engine.stream import InFlight

DEADLY, REFUSED, SLOW = 11, 12, 13
SLOW_SECONDS = 0.2


def expected(request: Prompt | Question) -> Any:
    """What every engine answers to `request`."""
    if isinstance(request, Prompt):
        return f"{len(request.ids)} tokens, sum {sum(request.ids)}, at most {request.max_tokens}, until {request.stop}"
    return tuple(-float(len(context) + sum(more)) for context, more in request.options)


class PoolEngine:
    """`cannot_start`, `refused` (labels of settings under which the self-check fails): for all engines of a test."""

    cannot_start: ClassVar[str] = ""
    refused: ClassVar[set[str]] = set()
    in_flight = InFlight(64, 1_000_000)

    def __init__(self, model: Model, contexts: Sequence[ContextSetting], options: EngineOptions) -> None:
        if self.cannot_start:
            raise EngineError(self.cannot_start)
        self.setting = contexts[0]
        self.facts: dict[str, Any] = {"model_class": "PoolEngine", "arithmetic": {"device": "none"}}

    def can_switch_to(self, setting: ContextSetting) -> bool:
        return setting.label != "fixed"

    def set_context(self, setting: ContextSetting) -> None:
        self.setting = setting

    def self_check(self) -> None:
        if self.setting.label in self.refused:
            raise SelfCheckError(f"self-check under context {self.setting.label!r}: no number")

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Answer]:
        for request in requests:
            if isinstance(request, Prompt):
                if request.ids[0] == DEADLY:
                    raise EngineError("the engine died: a token killed it")
                if request.ids[0] == REFUSED:
                    raise RequestError(request.key, "the engine gave up")
                if request.ids[0] == SLOW:
                    time.sleep(SLOW_SECONDS)
                yield Completion(request.key, expected(request), 3, "stop", 0.01, (1, 2, 3), len(request.ids), 0)
            elif isinstance(request, Question):
                yield Choice(request.key, expected(request), (False,) * len(request.options), 0.01, 1)

    def close(self) -> None:
        pass
