"""What a request costs, in the time of one prompt token. The scheduler and its simulation use it to balance engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.engine.requests import Prompt, Question

DECODE_WEIGHT = 4.0
"""An answer token takes as long as so many prompt tokens: decoding reads all weights for few tokens at a time."""
_EXPECTED_ANSWER = 0.5
"""Part of `max_tokens` that an answer is taken to use."""


@dataclass(frozen=True)
class CostModel:
    """`quadratic`: tokens of a prompt at which attention takes as long as all matrix products with weights.

    A prompt of n tokens takes n + n² / `quadratic`. Only ratios between requests matter to the scheduler.
    """

    quadratic: float = 30_000.0

    @classmethod
    def of(cls, parameters: int, config: Mapping[str, Any]) -> CostModel:
        """The model's own: 2 P operations per token in weights, 2 n L H d per token in causal attention over n tokens.

        `parameters`: P. `config`: the checkpoint's config.json (L layers, H heads of d).
        """
        layers = int(config.get("num_hidden_layers") or 28)
        heads = int(config.get("num_attention_heads") or 16)
        width = heads * int(config.get("head_dim") or int(config.get("hidden_size") or 2048) // heads)
        return cls(max(1.0, parameters / (layers * width)))

    def prompt(self, tokens: int) -> float:
        """The cost of a prompt whose tokens are not in the prefix cache."""
        return tokens + tokens * tokens / self.quadratic

    def request(self, request: Prompt | Question) -> float:
        """The cost of a request: its prompt, and half of the answer tokens that it may use."""
        if isinstance(request, Prompt):
            return self.prompt(len(request.ids)) + DECODE_WEIGHT * _EXPECTED_ANSWER * request.max_tokens
        contexts = {context for context, _ in request.options}
        return sum(self.prompt(len(c)) for c in contexts) + DECODE_WEIGHT * len(request.options)
