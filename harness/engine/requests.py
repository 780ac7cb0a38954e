"""What is sent to the engine and what comes back, as frozen dataclasses. Imports neither torch nor vLLM.

A sample goes through four shapes: the benchmark's own (a `RulerSample`, or an lm-eval document), a `SampleRequest`, the
engine's answer (`Completion` or `Choice`), and the stored `Sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.types import Cell, GatedevalError

DEFAULT_ANSWER_TOKENS = 256
"""lm-eval's own limit for the answer where a task sets none."""


class EngineError(RuntimeError):
    """The engine could not start, or it died. The cells it was working on fail; the other cells can go on."""


class SelfCheckError(EngineError):
    """The engine runs, but its logits under a context setting cannot be right. That setting's cells fail."""


class RequestError(EngineError):
    """The engine gave up on one request, whose `key` this names. Only that request's cell fails."""

    def __init__(self, key: Hashable, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


@dataclass(frozen=True)
class SampleKey:
    """The key of a run's request: which sample of which cell it is. Its text, for error messages, is the label.

    The label alone is no key: MMLU's `anatomy` and lm-eval's own task `mmlu_anatomy` have the same labels.
    """

    cell: Cell
    id: str
    label: str

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True)
class Prompt:
    """One prompt to continue, as token ids. `key` identifies the answer and names the prompt in error messages.

    `stop`: strings that end the answer and are not part of it. `stop_ids`: token ids that do; None: the engine's own
    (`harness.models.stopping`). `temperature` 0 is greedy decoding.
    """

    key: Hashable
    ids: Sequence[int]
    max_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    stop_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Question:
    """Continuations to compare by log-likelihood.

    `options`: (context ids, continuation ids) pairs; several may have the same context. `rolling`: they are the windows
    of one text (`harness.engine.windows`), whose log-likelihoods are added up instead of compared.
    """

    key: Hashable
    options: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    rolling: bool = False


@dataclass(frozen=True)
class Completion:
    """The answer to a `Prompt`. `finish_reason`: "stop", or "length" when it reached `max_tokens`.

    `tokens`: length of the answer. `sent_tokens`: length of the prompt; `cached_tokens` of them were in the prefix
    cache. `seconds`: from admission to the finished answer. `engine`: which of several gave it; "": the only one.
    """

    key: Hashable
    text: str
    tokens: int
    finish_reason: str
    seconds: float
    token_ids: tuple[int, ...] = ()
    sent_tokens: int = 0
    cached_tokens: int = 0
    engine: str = ""


@dataclass(frozen=True)
class Choice:
    """The answer to a `Question`.

    `logprobs`: log-likelihood of each option's continuation (nats). `greedy`: whether greedy decoding would produce it.
    `sent_tokens`: prompt tokens of all requests that the question needed; `cached_tokens` of them were in the prefix
    cache. `seconds`: of the slowest request. `engine`: which of several gave it; "": the only one.
    """

    key: Hashable
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    seconds: float
    sent_tokens: int = 0
    cached_tokens: int = 0
    engine: str = ""


@dataclass(frozen=True)
class Failure:
    """In place of an answer, from a pool of engines: no engine can answer this request. `error` says why."""

    key: Hashable
    error: str


Answer = Completion | Choice


def no_score(answer: Answer, text: str) -> dict[str, float]:
    """The `score` of a request whose caller scores the answer itself (lm-eval's own command line)."""
    return {}


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """One sample to answer: a `prompt` to continue, `options` to compare, or a `text` to measure the log-likelihood of.

    A benchmark fills in the first group of fields. `harness.run.producing` adds the second group, and drops the texts
    (`prompt`, `options`): `request` has the token ids, and the pickle stays small.
    """

    id: str  # unique in the cell
    label: str  # names the sample in error messages, e.g. "ruler vt at 4096, sample 3"
    prompt: str | None = None
    options: tuple[tuple[str, str], ...] = ()  # (context, continuation) texts
    text: str | None = None  # a whole text, in windows of the context setting's longest length
    max_tokens: int = DEFAULT_ANSWER_TOKENS
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    references: list[str] = field(default_factory=list)
    score: Callable[[Answer, str], dict[str, float]] = no_score  # (answer, text to score) -> metric -> 0..1; picklable
    extra: dict[str, Any] = field(default_factory=dict)  # stored with the sample
    counted_tokens: int | None = None  # of the prompt, by a generator that filled a length; None: nobody counted
    thought_opened: bool = False  # the prompt ends inside a thought, which the response continues

    cell: Cell | None = None
    request: Prompt | Question | None = None  # the token ids that are sent
    hash: str = ""  # of everything that can change the answer
    prompt_hash: str = ""  # of the request alone, whichever model answers it
    excerpt: dict[str, Any] = field(default_factory=dict)  # head, tail and needles of the prompt, stored for people
    replaces: bool = False  # the run holds an answer to another prompt under this id

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the encoded request (see `prompt_tokens`); 0 before it is encoded."""
        return 0 if self.request is None else prompt_tokens(self.request)


def prompt_tokens(request: Prompt | Question) -> int:
    """Tokens of the prompt as sent; of the longest option, context included, where options are compared; of all windows
    of a text.
    """
    if isinstance(request, Prompt):
        return len(request.ids)
    if request.rolling:
        return sum(len(ctx) + len(continuation) for ctx, continuation in request.options)
    return max(len(ctx) + len(continuation) for ctx, continuation in request.options)


def check_fits(prompt_tokens: int, answer_tokens: int, limit: int, setting: str, what: object) -> None:
    """Raise GatedevalError, with the count, when prompt plus answer exceed the context setting's maximum."""
    if prompt_tokens < 1:
        raise GatedevalError(f"{what}: the prompt is empty")
    if (total := prompt_tokens + answer_tokens) > limit:
        raise GatedevalError(
            f"{what}: {prompt_tokens} prompt tokens + {answer_tokens} for the answer = {total}, {total - limit} over"
            f" the {limit} of context {setting!r}; nothing is ever truncated: raise max_length, or leave this"
            " benchmark out of this context (`contexts:` in its entry)"
        )
