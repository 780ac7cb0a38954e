"""The vocabulary of the project as small frozen dataclasses.

model, context setting, benchmark, cell, sample: every other room speaks in these words. Nothing here imports
anything heavy, so that `gatedeval --help` and the pure rooms stay instant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

Gate = Literal["none", "headwise", "elementwise"]
"""What the attention output is multiplied with before the output projection (Gated Attention paper, G1)."""


class GatedevalError(Exception):
    """Something the user can mend: the message says what is wrong, where, and what to do. Exit code 2."""


@dataclass(frozen=True, order=True)
class Cell:
    """What one number in a per-task table stands for: (model, context setting, benchmark, task, length)."""

    model: str
    context: str
    benchmark: str
    task: str
    length: int = 0  # 0 where the benchmark has no length

    @property
    def key(self) -> str:
        """A file-name-safe, unique, readable name: the stem of the cell's sample file."""
        parts = [self.model, self.context, self.benchmark, self.task]
        if self.length:
            parts.append(str(self.length))
        return "__".join(re.sub(r"[^A-Za-z0-9.+-]", lambda m: f"%{ord(m[0]):02x}", p) for p in parts)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One prompt, its reference, the response, its score: one line of a cell's sample file."""

    id: str  # unique in the cell
    hash: str  # of everything that can change the answer: prompt token ids, sampling, model, context setting
    prompt_tokens: int  # as sent, special tokens included
    references: list[str]
    response: str
    response_tokens: int
    finish_reason: str  # "stop", "length", or "choose" when options were compared
    scores: dict[str, float]  # metric -> 0..1; the first metric is the headline
    seconds: float = 0.0  # from admission to the finished answer
    extra: dict[str, Any] = field(default_factory=dict)  # needle offsets, validity, option log-likelihoods, ...


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the error's type where the message is empty."""
    return next((line for line in str(error).strip().splitlines() if line), type(error).__name__)
