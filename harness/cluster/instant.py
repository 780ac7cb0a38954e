"""An engine that answers at once and computes nothing: with it, `bench/cluster.py` measures the driver alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.requests import Answer, Choice, Completion, Prompt, Question
from harness.engine.stream import InFlight


class InstantEngine:
    """Answers every prompt with one word, and every question with equal log-likelihoods."""

    in_flight = InFlight(2048, 8_000_000)

    def __init__(self, model: Model, contexts: Sequence[ContextSetting], options: EngineOptions) -> None:
        self.setting = contexts[0]
        self.facts: dict[str, Any] = {"model_class": "InstantEngine"}

    def can_switch_to(self, setting: ContextSetting) -> bool:
        """Always."""
        return True

    def set_context(self, setting: ContextSetting) -> None:
        """Remember the setting."""
        self.setting = setting

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Answer]:
        """An answer for each request, at once."""
        for request in requests:
            if isinstance(request, Prompt):
                yield Completion(request.key, "word", 1, "stop", 0.0, (1,), len(request.ids))
            elif isinstance(request, Question):
                equal = (0.0,) * len(request.options)
                yield Choice(request.key, equal, (False,) * len(request.options), 0.0, len(request.options[0][0]))

    def close(self) -> None:
        """Nothing to stop."""
