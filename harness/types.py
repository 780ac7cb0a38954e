"""What every room uses: a cell, a sample, the error that a user can mend.

Nothing here imports anything heavy, so that `gatedeval --help` and the pure rooms import in milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Gate = Literal["none", "headwise", "elementwise"]
"""What the attention output is multiplied with before the output projection (Gated Attention paper, G1)."""


GateLayout = Literal["per-group", "per-head", "separate"]
"""Where the rows of a gate's projection are: in q_proj after the query rows of each KV group or of each head, or in a
matrix of their own.
"""


class GatedevalError(Exception):
    """Something the user can mend: the message says what is wrong, where, and what to do. Exit code 2."""


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for an error message, where one of the `known` names is close; else an empty string."""
    import difflib

    folded = {name.lower().replace("-", "_").replace(" ", "_"): name for name in known}
    close = difflib.get_close_matches(wrong.lower().replace("-", "_").replace(" ", "_"), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


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
    finish_reason: str  # "stop", "length"; "choose": options were compared; "scored": a text's log-likelihood
    scores: dict[str, float]  # metric -> 0..1; the first metric is the headline
    seconds: float = 0.0  # from admission to the finished answer
    extra: dict[str, Any] = field(default_factory=dict)  # needle offsets, validity, option log-likelihoods, ...
    arithmetic: str = ""  # what computed the answer: a key of the manifest's `arithmetic`; empty: not recorded


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the error's type where the message is empty."""
    return next((line for line in str(error).strip().splitlines() if line), type(error).__name__)
