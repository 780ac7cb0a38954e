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


@dataclass(frozen=True, kw_only=True)
class Model:
    """A checkpoint with a label: a local directory or a hub id, optionally a subfolder and a revision."""

    label: str
    path: str
    subfolder: str | None = None
    revision: str | None = None
    tokenizer: str | None = None  # a directory or hub id; None: beside the weights
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    contexts: tuple[str, ...] | None = None  # labels of the context settings it is run under; None: all


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): NTK-by-parts interpolation and the attention temperature."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None  # None: 0.1 ln(factor) + 1


@dataclass(frozen=True, kw_only=True)
class ContextSetting:
    """How positions are encoded and how long prompt plus answer may be, in tokens.

    At most one of `yarn`, `linear`, `dynamic` is set; none of them and no `rope_theta` is the checkpoint's own
    setting ("native"). `max_length` None means the checkpoint's own limit.
    """

    label: str
    max_length: int | None = None
    rope_theta: float | None = None
    yarn: Yarn | None = None
    linear: float | None = None  # position interpolation factor
    dynamic: float | None = None  # dynamic NTK factor


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """RULER, MMLU, GSM8k, or any lm-eval task by its name.

    `tasks`: RULER's task names or MMLU's subjects; for an lm-eval task, its own name alone.
    `lengths`: total tokens a prompt and its answer budget may take (RULER only).
    `samples`: samples per cell; None means all there are.
    """

    kind: Literal["ruler", "mmlu", "gsm8k", "lm_eval"]
    tasks: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    samples: int | None = None
    shots: int | None = None
    options: tuple[tuple[str, Any], ...] = ()  # e.g. (("profile", "fair"), ("answer_prefix", "append"))

    @property
    def name(self) -> str:
        """The benchmark's name in tables and cells: ruler, mmlu, gsm8k, or the lm-eval task's name."""
        return self.tasks[0] if self.kind == "lm_eval" else self.kind

    def option(self, key: str, default: Any = None) -> Any:
        """The value of one option, or `default`."""
        return dict(self.options).get(key, default)


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
