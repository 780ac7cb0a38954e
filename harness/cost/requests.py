"""What one request takes, by the same speed as the whole plan: the scheduler of a cluster balances engines by it."""

from __future__ import annotations

import functools
from collections.abc import Callable

from harness.cost.speed import Speed
from harness.cost.work import work_of
from harness.engine.requests import Prompt, Question
from harness.models.kv_cache import KvLayers

_KEPT = 65_536  # costs of different (tokens, answer tokens) that are kept

BY_TOKENS = Speed((0.0, 0.0, 1.0, 0.0, 4.0, 0.0, 0.0))
"""Where nothing is known of a model: a prompt token takes 1, a token of an answer 4, since decoding reads all weights
for few tokens at a time."""


class RequestCosts:
    """Costs of requests, in seconds of one engine where the speed is measured, else in proportion alone.

    `speed`, `kv`: of the model. `answers`: part of its most tokens that an answer takes. `together`: tokens of a prompt
    and its answer -> such prompts that an engine works on at once; None: one. `batch`: tokens of a step.
    """

    def __init__(
        self,
        speed: Speed = BY_TOKENS,
        kv: KvLayers | None = None,
        *,
        answers: float = 0.5,
        together: Callable[[float], float] | None = None,
        batch: float = 4096.0,
    ) -> None:
        self.speed, self.kv, self.answers = speed, kv, answers
        self._together, self._batch = together or (lambda tokens: 1.0), batch
        self._cost = functools.lru_cache(_KEPT)(self._seconds)

    def _seconds(self, tokens: int, answer: float) -> float:
        together = self._together(tokens + answer)
        work = work_of(self.kv, tokens=tokens, cached=0.0, answer=answer, together=together, batch=self._batch)
        return self.speed.seconds(work)

    def prompt(self, tokens: int) -> float:
        """The cost of a prompt whose tokens are not in the prefix cache, without its answer."""
        return self._cost(tokens, 1.0)

    def request(self, request: Prompt | Question) -> float:
        """The cost of a request, nothing of it in the prefix cache."""
        if isinstance(request, Prompt):
            return self._cost(len(request.ids), max(1.0, self.answers * request.max_tokens))
        contexts = {context for context, _ in request.options}
        return sum(map(self.prompt, map(len, contexts)))
