"""Checkpoints with the paper's other gates: the reference folders, all combinations, random weights."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, get_args

import torch

from harness.models.layout import ARCHITECTURE, expected_tensors
from harness.models.variant import Activation, AttnGate, Granularity, Mode, Position, Variant
from harness.models.writing import write_checkpoint
from harness.types import GatedevalError

FOLDERS = [
    f"variants/{name}"
    for name in (
        "v1_value_elementwise", "v4_attnoutput_elementwise", "v5_sdpa_headwise_nssigmoid",
        "v6_sdpa_elementwise_add_silu", "v8_sdpa_headwise_shared", "v11_sdpanorm_qkvbias_nogate",
    )
]  # fmt: skip

_CONFIG: dict[str, Any] = {
    "architectures": [ARCHITECTURE], "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 80,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "float32", "use_qk_norm": True, "qkv_bias": False,
}  # fmt: skip


def valid_gates() -> list[AttnGate]:
    """Every combination that is defined."""
    found = []
    for position, granularity, shared, mode, activation, dependent, norm in itertools.product(
        get_args(Position), get_args(Granularity), (False, True), get_args(Mode), get_args(Activation), (True, False),
        (False, True),
    ):  # fmt: skip
        try:
            found.append(AttnGate(position, granularity, shared, mode, activation, dependent, norm))
        except GatedevalError:
            continue
    return found


def random_checkpoint(folder: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """A checkpoint with random weights; `config`: entries that replace those of a tiny Qwen3."""
    facts = {**_CONFIG, **config}
    names = expected_tensors(facts)
    assert names is not None
    variant = Variant.from_config(facts).tensors(facts)
    tensors = {}
    for name in sorted(names):
        # one generator a tensor: a model that has one tensor more has the others unchanged
        generator = torch.Generator().manual_seed(seed + sum(name.encode()) * 7919)
        shape = variant.get(name.partition("layers.")[2].partition(".")[2]) or _shape(name, facts)
        drawn = torch.randn(shape, generator=generator)
        # norms around 1, gate logits of a size at which the activations differ, all others as at initialisation
        if "norm" in name:
            tensors[name] = 1 + 0.2 * drawn
        else:
            tensors[name] = drawn * (2.0 if "embed" in name or len(shape) == 1 else shape[-1] ** -0.5)
    write_checkpoint(folder, facts, tensors)
    return folder


def _shape(name: str, config: dict[str, Any]) -> tuple[int, ...]:
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    if ".experts." in name:
        inner = config["moe_intermediate_size"]
    heads, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    packed = config.get("packed_rows", heads)  # with the released flags, q_proj holds gate rows too
    rows = {
        "q_proj": (packed, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, heads),
        "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner),
        "embed_tokens": (config["vocab_size"], hidden), "lm_head": (config["vocab_size"], hidden),
        "q_norm": (dim,), "k_norm": (dim,), "gate": (config.get("num_experts"), hidden),
    }  # fmt: skip
    module, kind = name.split(".")[-2:]
    shape = rows.get(module, (hidden,))
    return shape[:1] if kind == "bias" else shape
