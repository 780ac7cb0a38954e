"""How the demo's models are made: three arms that differ in the gate alone, two stages, every number in one place.

The paper's long-context protocol at one sixteenth of its lengths (section 4.4): trained short with RoPE base 10K, the
base changed to 1M and trained on at eight times the length; YaRN then extends four times without training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.models.layout import gate_flags
from harness.types import Gate

ARMS: Mapping[str, Gate] = {"baseline": "none", "headwise": "headwise", "elementwise": "elementwise"}
WIDTHS: Mapping[Gate, int] = {"none": 384, "headwise": 383, "elementwise": 341}
"""MLP width of each arm: the gate's weights are taken from the MLP, as the paper does, so that all have as many."""

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 4, 128, 4, 2, 32
NEEDLES = ("list", "short", "long", "full")
LOOKED_UP = (*NEEDLES, "choice")
EVERYTHING = (*LOOKED_UP, "words")
KEPT = ("list", "full", "choice", "words", "words", "words")
"""What stays in training at the short length while the long one is learned; sums are what is forgotten most."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one step sees: `count` documents of at most `length` tokens, of these kinds."""

    length: int
    count: int
    kinds: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stretch of training. Steps take the `batches` in turn.

    `stopping`: whether documents teach to stop after an answer (`tasks.demo.documents`); `stream` names the random
    stream that they are drawn from. `looked_up_first`: steps at the start without word problems; `taught` of them carry
    the attention loss. `learning_rate` rises over 30 steps, stays, and falls to zero over the last 30 %.
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
    Stage(  # looking things up: what takes longest, on documents with as much to predict as possible
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
"""The stages whose checkpoints come with the project: before and after the base change."""


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
    """The recipe as plain data: training that was begun under another recipe is not continued."""
    return {"seed": seed, "stages": [asdict(stage) for stage in STAGES], "widths": dict(WIDTHS)}
