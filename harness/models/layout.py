"""Which rows of a released checkpoint's q_proj are queries and which are gates. Pure: numpy only.

The authors pack the gate projection inside `q_proj`, per KV group: for each KV head, first the query rows of the heads
of its group, then the gate rows of the same heads. With H query heads, K KV heads, D = head_dim and G gate rows a head
(headwise 1, elementwise D), the group's block has (H/K)·D + (H/K)·G rows, and q_proj has H·(D+G) rows in all.
The bias of q_proj, where there is one, is packed alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.types import Gate, GatedevalError

HEADWISE_FLAG = "headwise_attn_output_gate"
ELEMENTWISE_FLAG = "elementwise_attn_output_gate"
ARCHITECTURE = "GatedQwen3ForCausalLM"
"""The name under which our model class is registered in vLLM. Checkpoints that gatedeval writes carry it, so that an
engine without the plugin refuses them; the released ones say Qwen3ForCausalLM, and stock vLLM would load those silently
wrong (it narrows q_proj to the rows it expects)."""

QWEN_TYPES = ("qwen2", "qwen3")
QWEN_ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", ARCHITECTURE)


@dataclass(frozen=True)
class Layout:
    """Shape of one attention layer's query-and-gate projection.

    `num_heads` H, `num_kv_heads` K, `head_dim` D; the gate adds `gate_dim` rows a query head (0, 1 or D).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    gate: Gate

    def __post_init__(self) -> None:
        if min(self.num_heads, self.num_kv_heads, self.head_dim) < 1 or self.num_heads % self.num_kv_heads:
            raise GatedevalError(
                f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
                f" (head_dim {self.head_dim}): config.json describes no grouped-query attention"
            )

    @property
    def gate_dim(self) -> int:
        """Gate values per query head: 0 without a gate, 1 headwise, head_dim elementwise."""
        return {"none": 0, "headwise": 1, "elementwise": self.head_dim}[self.gate]

    @property
    def q_rows(self) -> int:
        """Rows of q_proj in the checkpoint: H·(D + gate_dim)."""
        return self.num_heads * (self.head_dim + self.gate_dim)

    def _rows(self, start: int, width: int) -> NDArray[np.int64]:
        """Row numbers (H·width,) in head order: `width` rows a head, beginning `start` rows into the group's block."""
        per_group = self.num_heads // self.num_kv_heads
        block = per_group * (self.head_dim + self.gate_dim)
        group = np.arange(self.num_kv_heads)[:, None, None] * block
        head = np.arange(per_group)[None, :, None] * width
        return (group + start + head + np.arange(width)[None, None, :]).reshape(-1)

    @property
    def query_rows(self) -> NDArray[np.int64]:
        """Rows of q_proj that are queries, (H·D,), in head order."""
        return self._rows(0, self.head_dim)

    @property
    def gate_rows(self) -> NDArray[np.int64]:
        """Rows of q_proj that are gates, (H·gate_dim,), in head order."""
        return self._rows(self.num_heads // self.num_kv_heads * self.head_dim, self.gate_dim)

    def shard(self, projection: str, tp_size: int, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the checkpoint's q, k or v projection that tensor-parallel rank `rank` of `tp_size` holds.

        (value rows, gate rows), each in head order; gate rows only for "q". Query heads are divided among the ranks;
        KV heads too, or, where there are more ranks than KV heads, each is held by tp_size / num_kv_heads ranks.

        Raises:
            GatedevalError: heads that do not divide by `tp_size`.
        """
        kv, none = self.num_kv_heads, np.empty(0, dtype=np.int64)
        if self.num_heads % tp_size or (kv % tp_size if kv >= tp_size else tp_size % kv):
            raise GatedevalError(
                f"tensor_parallel_size {tp_size} does not divide {self.num_heads} query and {kv} key/value heads;"
                " use a divisor of both (or a multiple of the key/value heads that divides the query heads)"
            )
        if projection == "q":
            query = self.query_rows.reshape(tp_size, -1)[rank]
            return query, self.gate_rows.reshape(tp_size, -1)[rank] if self.gate_dim else none
        held = max(1, kv // tp_size)
        first = rank * kv // tp_size
        return np.arange(first * self.head_dim, (first + held) * self.head_dim), none


def gate_from_flags(config: Mapping[str, Any]) -> Gate:
    """The gate that config.json's flags ask for. Missing flags: none. Both set: headwise, as the authors read them."""
    if config.get(HEADWISE_FLAG):
        return "headwise"
    return "elementwise" if config.get(ELEMENTWISE_FLAG) else "none"


def gate_from_rows(q_rows: int, num_heads: int, head_dim: int) -> Gate | None:
    """The gate that q_proj's row count implies; None when it is no known layout."""
    extra = q_rows - num_heads * head_dim
    return {0: "none", num_heads: "headwise", num_heads * head_dim: "elementwise"}.get(extra)  # type: ignore[return-value]


def is_qwen(config: Mapping[str, Any]) -> bool:
    """True for a Qwen-type decoder: the only family whose gate flags mean what the paper means."""
    architectures = config.get("architectures") or []
    return config.get("model_type") in QWEN_TYPES or any(a in QWEN_ARCHITECTURES for a in architectures)


def needs_our_model(config: Mapping[str, Any]) -> bool:
    """True when vLLM's own Qwen3 cannot run the checkpoint: a gate, no q/k norm, or the authors' `qkv_bias`.

    A plain Qwen2 checkpoint (no gate flags, no `use_qk_norm`/`qkv_bias` key) is left to vLLM's own Qwen2.
    """
    if not is_qwen(config):
        return False
    if ARCHITECTURE in (config.get("architectures") or []):
        return True
    return gate_from_flags(config) != "none" or config.get("use_qk_norm") is False or bool(config.get("qkv_bias"))


def expected_tensors(config: Mapping[str, Any]) -> set[str]:
    """Names of every tensor the authors' model has for this config; no `lm_head.weight` when embeddings are tied."""
    names = {"model.embed_tokens.weight", "model.norm.weight"}
    if not config.get("tie_word_embeddings", False):
        names.add("lm_head.weight")
    attention = ["q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"]
    if config.get("qkv_bias"):
        attention += ["q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"]
    if config.get("use_qk_norm", True):
        attention += ["q_norm.weight", "k_norm.weight"]
    block = [f"self_attn.{name}" for name in attention]
    block += ["mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"]
    block += ["input_layernorm.weight", "post_attention_layernorm.weight"]
    for layer in range(int(config["num_hidden_layers"])):
        names.update(f"model.layers.{layer}.{name}" for name in block)
    return names


def tensor_mismatch(config: Mapping[str, Any], found: Iterable[str]) -> str | None:
    """One line that names tensors missing from, or foreign to, the checkpoint; None when the sets agree.

    Rotary buffers and a redundant `lm_head.weight` beside tied embeddings are tolerated: they carry no information.
    """
    expected = expected_tensors(config)
    have = {name for name in found if not name.endswith("rotary_emb.inv_freq")}
    if config.get("tie_word_embeddings", False):
        have.discard("lm_head.weight")
    parts = [
        f"{len(names)} tensor(s) {what}: {', '.join(sorted(names)[:4])}{', ...' if len(names) > 4 else ''}"
        for what, names in (("missing", expected - have), ("not in the model", have - expected))
        if names
    ]
    return "; ".join(parts) or None
