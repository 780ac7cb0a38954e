"""A gated twin of a Llama- or Qwen-type model: a gated checkpoint that computes the same function, to the bit.

The twin's gate weights are zero, so every gate is sigmoid(0) = 0.5, and its output projection is doubled. Both factors
are powers of two, hence exact in float32 and bfloat16. Any difference between the scores of source and twin is an error
of the evaluation itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.models.checkpoint import inspect
from harness.models.hub import TOKENIZER_EXTRAS, TOKENIZER_FILES
from harness.models.layout import Layout, gate_flags
from harness.models.writing import write_checkpoint
from harness.types import Gate, GatedevalError

if TYPE_CHECKING:
    import torch

_COPIED_KEYS = (
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "torch_dtype",
    "dtype",
    "vocab_size",
)


def make_twin(source: Path, target: Path, gate: Gate) -> None:
    """Write a twin of the checkpoint `source` into `target`, in the released checkpoints' format.

    `gate` "none" only rewrites the format (a Llama-type source becomes a Qwen3 without q/k norm).

    Raises:
        GatedevalError: `target` is not empty, `source` already has a gate, or its family has no twin.
    """
    config, tensors = _load(source)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise GatedevalError(f"{target} is not empty; give a new directory")
    config |= gate_flags(gate)
    layout = Layout.from_config(config)
    out = {
        name: _with_gate(name, tensor, layout)
        for name, tensor in tensors.items()
        if not name.endswith("rotary_emb.inv_freq")
    }
    if config.get("tie_word_embeddings"):
        out.pop("lm_head.weight", None)
    write_checkpoint(target, config, out)
    for name in (*TOKENIZER_FILES, *TOKENIZER_EXTRAS):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def _load(source: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The source's config, with Qwen3's keys, and its tensors by name."""
    from safetensors.torch import load_file

    checkpoint = inspect(source)
    given = dict(checkpoint.config)
    if checkpoint.gate != "none":
        raise GatedevalError(f"{source} has a {checkpoint.gate} gate already; a twin is made of an ungated checkpoint")
    if given.get("model_type") not in ("llama", "qwen3") or given.get("mlp_bias"):
        raise GatedevalError(
            f"{source}: model_type {given.get('model_type')!r} has no gated twin (llama and qwen3 have)"
        )
    if given["model_type"] == "llama" and given.get("attention_bias"):
        raise GatedevalError(f"{source}: attention_bias is not supported in a twin")
    tensors: dict[str, torch.Tensor] = {}
    for file in checkpoint.weight_files:
        if file.suffix != ".safetensors":
            raise GatedevalError(f"{file}: a twin is made of safetensors files; convert the checkpoint first")
        tensors.update(load_file(file))
    config = {key: given[key] for key in _COPIED_KEYS if key in given}
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config["use_qk_norm"] = any("q_norm" in name for name in tensors)
    config["qkv_bias"] = bool(given.get("qkv_bias"))
    return config, tensors


def _with_gate(name: str, tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """One tensor of the twin: q_proj with zero gate rows packed in, o_proj doubled, any other tensor unchanged."""
    import torch

    if layout.gate == "none":
        return tensor
    if ".self_attn.q_proj." in name:
        packed = torch.zeros(layout.q_rows, *tensor.shape[1:], dtype=tensor.dtype)
        packed[torch.from_numpy(layout.query_rows)] = tensor
        return packed
    return tensor * 2 if name.endswith(".self_attn.o_proj.weight") else tensor
