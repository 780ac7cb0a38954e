"""Model, context setting, benchmark: what a config names, as small frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


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
