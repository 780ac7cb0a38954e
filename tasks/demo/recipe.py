"""The recipe of the demo's models: three models ("arms") that differ in the gate alone, and every number of training.

This is the paper's long-context protocol (section 4.4) at one sixteenth of its lengths: train short with RoPE base 10K,
change the base to 1M and continue at eight times the length. YaRN then extends the context four times without training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.models.layout import gate_flags
from harness.types import Gate

ARMS: Mapping[str, Gate] = {"baseline": "none", "headwise": "headwise", "elementwise": "elementwise"}
WIDTHS: Mapping[Gate, int] = {"none": 384, "headwise": 383, "elementwise": 341}
"""MLP width of each arm. A gated arm has a narrower MLP, as in the paper, so that all arms have as many weights."""

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 4, 128, 4, 2, 32
NEEDLES = ("list", "short", "long", "full")
LOOKED_UP = (*NEEDLES, "choice")
EVERYTHING = (*LOOKED_UP, "words")
KEPT = ("list", "full", "choice", "words", "words", "words")
"""Kinds that the long stage still trains at the short length; the model forgets sums fastest, so they come often."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The documents of one step: `count` documents of at most `length` tokens, of these kinds."""

    length: int
    count: int
    kinds: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of training. Its steps take the `batches` in turn.

    `stopping`: whether the model learns to stop after an answer (`tasks.demo.documents`). `stream`: name of the random
    stream of its documents. `looked_up_first`: number of first steps without word problems. `taught`: number of first
    steps with the attention loss. `learning_rate`: its peak (schedule: `tasks.demo.training.schedule`).
    """

    name: str
    rope_theta: float
    max_position: int
    steps: int
    learning_rate: float
    batches: tuple[Batch, ...]
    taught: int = 0
    looked_up_first: int = 0
    stopping: bool = True
    stream: str

    @property
    def tokens(self) -> int:
        """Token positions that the stage computes, padding included."""
        sizes = [b.length * b.count for b in self.batches]
        return sum(sizes[i % len(sizes)] for i in range(self.steps))


SHORT, LONG = 256, 2048
STAGES: tuple[Stage, ...] = (
    Stage(  # looking up values takes longest to learn; these documents have the most tokens to predict
        name="keys",
        stream="short",
        stopping=False,
        rope_theta=1e4,
        max_position=SHORT,
        steps=1500,
        taught=600,
        looked_up_first=650,
        learning_rate=3e-3,
        batches=(Batch(length=SHORT, count=16, kinds=EVERYTHING),),
    ),
    Stage(  # stopping after the answer
        name="short",
        stream="stop",
        rope_theta=1e4,
        max_position=SHORT,
        steps=200,
        learning_rate=1e-3,
        batches=(Batch(length=SHORT, count=16, kinds=EVERYTHING),),
    ),
    Stage(  # the base changed, eight times the length
        name="long",
        stream="long",
        rope_theta=1e6,
        max_position=LONG,
        steps=360,
        learning_rate=1.5e-3,
        batches=(Batch(length=LONG, count=2, kinds=NEEDLES), Batch(length=SHORT, count=16, kinds=KEPT)),
    ),
)
SHIPPED: tuple[Stage, ...] = STAGES[1:]
"""The stages whose checkpoints are in the repository: before and after the base change."""


def model_config(gate: Gate, stage: Stage, vocabulary: int) -> dict[str, Any]:
    """config.json of an arm's checkpoint after a stage."""
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTHS[gate],
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": stage.rope_theta,
        "max_position_embeddings": stage.max_position,
        "tie_word_embeddings": True,
        "use_qk_norm": True,
        "qkv_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": 0,
        "vocab_size": vocabulary,
        **gate_flags(gate),
    }


def as_dict(seed: int) -> dict[str, Any]:
    """The recipe as plain data. A trainer compares it with a saved state's, and refuses to continue another recipe."""
    return {"seed": seed, "stages": [asdict(stage) for stage in STAGES], "widths": dict(WIDTHS)}
