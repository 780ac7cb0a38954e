"""What is sent to the engine and what comes back, as small frozen dataclasses. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from harness.types import GatedevalError

DEFAULT_ANSWER_TOKENS = 256  # lm-eval's own default where a task names none


class EngineError(RuntimeError):
    """The engine could not start, or died: the cells it was working on are failed, the others can go on."""


@dataclass(frozen=True)
class Question:
    """Continuations to compare: `options` are (context ids, continuation ids) pairs; contexts may be the same."""

    key: Hashable
    options: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class Choice:
    """Per option: log-likelihood of its continuation (nats), and whether greedy decoding would have produced it.

    `sent_tokens` and `cached_tokens`: prompt tokens of all its requests, and those of them found in the prefix cache.
    """

    key: Hashable
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    seconds: float
    sent_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Ask:
    """One sample's question to the model: a prompt to continue, or (context, continuation) pairs to compare."""

    key: Hashable
    prompt: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    max_tokens: int = DEFAULT_ANSWER_TOKENS
    stop: tuple[str, ...] = ()
    temperature: float = 0.0


@dataclass(frozen=True)
class Prompt:
    """One prompt to continue. `stop`: strings at which the answer ends, not part of it; `temperature` 0: greedy."""

    key: Hashable
    ids: Sequence[int]
    max_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 0.0


@dataclass(frozen=True)
class Completion:
    """The answer to a `Prompt`. `finish_reason`: "stop", or "length" when the token cap cut it off.

    `sent_tokens` and `cached_tokens`: of the prompt, and those of them found in the prefix cache.
    """

    key: Hashable
    text: str
    tokens: int
    finish_reason: str
    seconds: float
    token_ids: tuple[int, ...] = ()
    sent_tokens: int = 0
    cached_tokens: int = 0


def check_fits(prompt_tokens: int, answer_tokens: int, limit: int, setting: str, what: object) -> None:
    """Raise GatedevalError, with the count, when prompt plus answer exceed the context setting's maximum."""
    if prompt_tokens < 1:
        raise GatedevalError(f"{what}: the prompt is empty")
    if (total := prompt_tokens + answer_tokens) > limit:
        raise GatedevalError(
            f"{what}: {prompt_tokens} prompt tokens + {answer_tokens} for the answer = {total}, {total - limit} over"
            f" the {limit} of context {setting!r}; nothing is ever truncated: raise max_length, or leave this"
            " benchmark out of this context"
        )
