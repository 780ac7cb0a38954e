"""Which rows of a checkpoint's q_proj are queries and which are gates. Pure: imports numpy only.

The authors pack the gate projection into `q_proj`, per KV group (packing "per-group"): for each KV head, first the
query rows of the heads in its group, then the gate rows of the same heads. With H query heads, K KV heads, D = head_dim
and G gate rows per head (headwise 1, elementwise D), a group's block has (H/K)·D + (H/K)·G rows, and q_proj has
H·(D+G) rows in total. The bias of q_proj, if there is one, is packed in the same way.

Example: H = 4, K = 2, D = 2, headwise. The 12 rows of q_proj are q0 q0 q1 q1 g0 g1 | q2 q2 q3 q3 g2 g3.

Packing "per-head" (Qwen3-Next's) has for each head its query rows and then its gate rows: q0 q0 g0 | q1 q1 g1 | ...
Both have the same number of rows, so no shape tells them apart: config.json's `gate_layout` does, or the model type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.models.variant import Variant, canonical, has_variant_keys
from harness.types import Gate, GatedevalError, GateLayout

HEADWISE_FLAG = "headwise_attn_output_gate"
ELEMENTWISE_FLAG = "elementwise_attn_output_gate"
ARCHITECTURE = "GatedQwen3ForCausalLM"
"""The name of our model class in vLLM's registry.

Checkpoints that gatedeval writes carry this name, so vLLM without the plugin refuses them. The released checkpoints say
Qwen3ForCausalLM: vLLM without the plugin loads those wrongly and without an error (it narrows q_proj to the rows that
it expects).
"""

MOE_ARCHITECTURE = "GatedQwen3MoeForCausalLM"
"""The same for a gated Qwen3-MoE."""

LAYOUT_KEY = "gate_layout"
"""Key of config.json that names the packing of the gate rows, where it is not the authors'."""

FUSED_ROWS = 16
"""A rank's fused projection has a multiple of this many rows (see `Layout.fused_sizes`)."""

QWEN_TYPES = ("qwen2", "qwen3")
QWEN_ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", ARCHITECTURE, MOE_ARCHITECTURE)


@dataclass(frozen=True)
class Layout:
    """Shape of one attention layer's query-and-gate projection.

    `num_heads` H, `num_kv_heads` K, `head_dim` D; the gate adds `gate_dim` rows per query head (0, 1 or D). `packing`:
    whether they stand after the query rows of each KV group, or of each head.

    Raises:
        GatedevalError: H is not a multiple of K.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    gate: Gate
    packing: GateLayout = "per-group"

    def __post_init__(self) -> None:
        if min(self.num_heads, self.num_kv_heads, self.head_dim) < 1 or self.num_heads % self.num_kv_heads:
            raise GatedevalError(
                f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
                f" (head_dim {self.head_dim}): config.json describes no grouped-query attention"
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Layout:
        """The layout that a config.json describes. `config` has head_dim and num_key_value_heads."""
        heads, kv_heads, head_dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        return cls(heads, kv_heads, head_dim, gate_from_flags(config), config.get(LAYOUT_KEY) or "per-group")

    @property
    def gate_dim(self) -> int:
        """Gate values per query head: 0 without a gate, 1 headwise, head_dim elementwise."""
        return {"none": 0, "headwise": 1, "elementwise": self.head_dim}[self.gate]

    @property
    def q_rows(self) -> int:
        """Rows of q_proj in the checkpoint: H·(D + gate_dim)."""
        return self.num_heads * (self.head_dim + self.gate_dim)

    @property
    def _blocks(self) -> int:
        """Blocks of q_proj, each with query rows and then gate rows: one per KV group, or one per head."""
        return self.num_heads if self.packing == "per-head" else self.num_kv_heads

    def _rows(self, start: int, width: int) -> NDArray[np.int64]:
        """Row numbers (H·width,) in head order: `width` rows per head, from row `start` of each block on."""
        per_block = self.num_heads // self._blocks
        first = np.arange(self._blocks)[:, None, None] * per_block * (self.head_dim + self.gate_dim)
        head = np.arange(per_block)[None, :, None] * width
        return (first + start + head + np.arange(width)[None, None, :]).reshape(-1)

    @property
    def query_rows(self) -> NDArray[np.int64]:
        """Rows of q_proj that are queries, (H·D,), in head order."""
        return self._rows(0, self.head_dim)

    @property
    def gate_rows(self) -> NDArray[np.int64]:
        """Rows of q_proj that are gates, (H·gate_dim,), in head order."""
        return self._rows(self.num_heads // self._blocks * self.head_dim, self.gate_dim)

    def shard(self, projection: str, tp_size: int, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the checkpoint's q, k or v projection that tensor-parallel rank `rank` of `tp_size` holds.

        Returns (value rows, gate rows), each in head order; gate rows are empty for "k" and "v". Query heads are
        divided among the ranks. KV heads are divided too; with more ranks than KV heads, tp_size / num_kv_heads ranks
        hold a copy of each.

        Raises:
            GatedevalError: `tp_size` does not divide the heads.
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

    def fused_sizes(self, tp_size: int) -> list[int]:
        """Rows of one rank's fused projection: queries, keys, values, gates, and zeros that complete a multiple of 16.

        One row of the projection's output is one token's queries, keys, values and gates. With 16 numbers of 2 bytes or
        more as a unit, every token's row starts at a multiple of 16 bytes. GPU kernels read 16 bytes at a time; for a
        headwise gate with, say, 9 heads they would otherwise have to read number by number.

        Raises:
            GatedevalError: `tp_size` does not divide the heads.
        """
        queries, gates = (len(rows) for rows in self.shard("q", tp_size, 0))
        keys = len(self.shard("k", tp_size, 0)[0])
        return [queries, keys, keys, gates, -(queries + 2 * keys + gates) % FUSED_ROWS]


def gate_from_flags(config: Mapping[str, Any]) -> Gate:
    """The gate that config.json's flags name. No flag set: none. Both set: headwise, as in the authors' code."""
    if config.get(HEADWISE_FLAG):
        return "headwise"
    return "elementwise" if config.get(ELEMENTWISE_FLAG) else "none"


def gate_flags(gate: Gate, *, moe: bool = False) -> dict[str, Any]:
    """Config entries for `gate` as a released checkpoint has them, with the architecture that stock vLLM refuses."""
    return {
        "model_type": "qwen3_moe" if moe else "qwen3",
        "architectures": [MOE_ARCHITECTURE if moe else ARCHITECTURE],
        HEADWISE_FLAG: gate == "headwise",
        ELEMENTWISE_FLAG: gate == "elementwise",
    }


def gate_from_rows(q_rows: int, num_heads: int, head_dim: int) -> Gate | None:
    """The gate that q_proj's row count implies; None: no known gate has this many rows."""
    extra = q_rows - num_heads * head_dim
    return {0: "none", num_heads: "headwise", num_heads * head_dim: "elementwise"}.get(extra)  # type: ignore[return-value]


def is_moe(config: Mapping[str, Any]) -> bool:
    """Whether the MLP is a mixture of experts, as in Qwen3-MoE."""
    return config.get("model_type") == "qwen3_moe" or MOE_ARCHITECTURE in (config.get("architectures") or [])


def our_architecture(config: Mapping[str, Any]) -> str:
    """The name of our model class for a gated checkpoint."""
    return MOE_ARCHITECTURE if is_moe(config) else ARCHITECTURE


def is_qwen(config: Mapping[str, Any]) -> bool:
    """True for a Qwen2- or Qwen3-type decoder, and for a Qwen3-MoE that has a gate or another of our features.

    Only in these families do the gate flags mean the paper's gate.
    """
    architectures = config.get("architectures") or []
    if config.get("model_type") in QWEN_TYPES or any(a in QWEN_ARCHITECTURES for a in architectures):
        return True
    return is_moe(config) and _has_our_features(config)


def _has_our_features(config: Mapping[str, Any]) -> bool:
    """Whether config.json asks for something that vLLM's own Qwen3 classes do not compute."""
    ours = gate_from_flags(config) != "none" or config.get("use_qk_norm") is False or bool(config.get("qkv_bias"))
    return ours or has_variant_keys(config)


def needs_our_model(config: Mapping[str, Any]) -> bool:
    """True if vLLM's own Qwen3 class cannot run the checkpoint: a gate or norm, no q/k norm, the authors' `qkv_bias`.

    False for a plain Qwen2 checkpoint (no gate flags, no `use_qk_norm` or `qkv_bias` key): vLLM's own Qwen2 runs it.
    """
    if config.get(LAYOUT_KEY):
        return True
    if not is_qwen(config):
        return False
    if any(name in (ARCHITECTURE, MOE_ARCHITECTURE) for name in config.get("architectures") or []):
        return True
    return _has_our_features(config)


KNOWN_TENSORS = ("qwen2", "qwen3", "llama", "mistral")
"""Model types whose tensors `expected_tensors` can list."""


def expected_tensors(config: Mapping[str, Any]) -> set[str] | None:
    """Names of all tensors of a decoder with this config; without `lm_head.weight` if embeddings are tied.

    None: a model type whose tensors we cannot list (see `KNOWN_TENSORS`), or quantised weights, which have other names.
    """
    kind = "qwen3" if ARCHITECTURE in (config.get("architectures") or []) else config.get("model_type")
    moe = is_moe(config) and is_qwen(config)
    if (kind not in KNOWN_TENSORS and not moe) or config.get("quantization_config"):
        return None
    names = {"model.embed_tokens.weight", "model.norm.weight"}
    if not config.get("tie_word_embeddings", False):
        names.add("lm_head.weight")
    ours = needs_our_model(config)
    attention = ["q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"]
    if config.get("qkv_bias") if ours else (kind in ("llama", "qwen3") and config.get("attention_bias")):
        attention += ["q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"]
    elif kind == "qwen2" and not ours:
        attention += ["q_proj.bias", "k_proj.bias", "v_proj.bias"]
    if config.get("use_qk_norm", True) if ours else kind == "qwen3":
        attention += ["q_norm.weight", "k_norm.weight"]
    block = [f"self_attn.{name}" for name in attention]
    block += ["input_layernorm.weight", "post_attention_layernorm.weight"]
    if ours:
        block += Variant.from_config(config).tensors(config)
    for layer in range(int(config["num_hidden_layers"])):
        names.update(f"model.layers.{layer}.{name}" for name in block + _mlp_tensors(config, layer))
    return names


def number_of_experts(config: Mapping[str, Any]) -> int:
    """Experts of each such layer; 0 for a dense model. transformers 5 writes the number under another key."""
    return int(config.get("num_experts") or config.get("num_local_experts") or 0) if is_moe(config) else 0


def has_experts(config: Mapping[str, Any], layer: int) -> bool:
    """Whether the MLP of a layer (from 0) is a mixture of experts; the rule is Qwen3-MoE's."""
    step, dense = int(config.get("decoder_sparse_step") or 1), config.get("mlp_only_layers") or ()
    return number_of_experts(config) > 0 and layer not in dense and (layer + 1) % step == 0


def _mlp_tensors(config: Mapping[str, Any], layer: int) -> list[str]:
    """Tensors of a layer's MLP, below `model.layers.i.`."""
    projections = [f"{name}_proj.weight" for name in ("gate", "up", "down")]
    if has_experts(config, layer):
        experts = range(number_of_experts(config))
        return ["mlp.gate.weight", *(f"mlp.experts.{number}.{name}" for number in experts for name in projections)]
    if config.get("model_type") == "llama" and config.get("mlp_bias"):
        projections += [f"{name}_proj.bias" for name in ("gate", "up", "down")]
    return [f"mlp.{name}" for name in projections]


def tensor_mismatch(config: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """One line that lists missing and unexpected tensors; None: `names` are the expected ones, or none can be listed.

    Rotary buffers are ignored: they carry no information. So is `lm_head.weight` beside tied embeddings, which
    `harness.models.checkpoint.inspect` compares with the embeddings.
    """
    expected = expected_tensors(config)
    if expected is None:
        return None
    ours = needs_our_model(config)
    have = {canonical(name) if ours else name for name in names if not name.endswith("rotary_emb.inv_freq")}
    if config.get("tie_word_embeddings", False):
        have.discard("lm_head.weight")
    parts = [
        f"{len(those)} tensor(s) {what}: {', '.join(sorted(those)[:4])}{', ...' if len(those) > 4 else ''}"
        for what, those in (("missing", expected - have), ("not in the model", have - expected))
        if those
    ]
    return "; ".join(parts) or None
