"""A gated twin of a Llama- or Qwen-type model: a gated checkpoint that computes the same function, to the bit.

With the released gates, the twin's gate weights are zero, so every gate is sigmoid(0) = 0.5, and its output projection
is doubled. Both factors are powers of two, hence exact in float32 and bfloat16. The paper's other gates have constants
of the same kind (`neutral`). Any difference between the scores of source and twin is an error of the evaluation itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.models.checkpoint import inspect
from harness.models.hub import TOKENIZER_EXTRAS, TOKENIZER_FILES
from harness.models.layout import ELEMENTWISE_FLAG, HEADWISE_FLAG, Layout, gate_flags
from harness.models.variant import AttnGate, Variant
from harness.models.writing import write_checkpoint
from harness.types import Gate, GatedevalError

if TYPE_CHECKING:
    import torch

_COPIED_KEYS = (
    "bos_token_id",
    "decoder_sparse_step",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_local_experts",
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


@dataclass(frozen=True)
class Neutral:
    """What makes a gate change nothing: `logit`, the same for every gate value, and `scale`, which the matrix that the
    gate belongs to is multiplied with (a power of two).
    """

    logit: float
    scale: float


_NEUTRAL = {
    ("multiply", "sigmoid"): Neutral(0.0, 2.0),  # sigmoid(0) = 1/2
    ("multiply", "ns_sigmoid"): Neutral(64.0, 1.0),  # 1/2 + sigmoid(64)/2 = 1: exp(-64) is lost beside 1
    ("multiply", "silu"): Neutral(32.0, 1 / 32),  # 32 sigmoid(32) = 32
    ("multiply", "identity"): Neutral(1.0, 1.0),
    ("add", "sigmoid"): Neutral(-256.0, 1.0),  # 1 / (1 + exp(256)) = 0: the exponential overflows
    ("add", "silu"): Neutral(0.0, 1.0),
    ("add", "identity"): Neutral(0.0, 1.0),
}
"""(mode, activation) -> what makes the gate neutral. Each value is exact in float32, bfloat16 and float16."""

_SCALED = {
    "sdpa_output": ("o_proj.weight",),
    "value": ("v_proj.weight", "v_proj.bias"),
    "key": ("k_proj.weight", "k_proj.bias"),
    "query": ("q_proj.weight", "q_proj.bias"),
    "attn_output": ("o_proj.weight", "o_proj.bias"),
}
"""Position of the gate -> the tensors of the attention block that take `Neutral.scale`."""


def neutral(gate: AttnGate) -> Neutral:
    """The constants that make `gate` neutral.

    Raises:
        GatedevalError: there are none: an added `ns_sigmoid` is at least 1/2, and a norm changes its input.
    """
    if gate.sdpa_norm:
        raise GatedevalError("a twin cannot have sdpa_norm: an RMSNorm changes what passes through it")
    found = _NEUTRAL.get((gate.mode, gate.activation))
    if found is None:
        raise GatedevalError(
            f"an added {gate.activation} has no twin: it is never zero (at least 1/2); multiply it, or add another"
            " activation"
        )
    return found


def make_twin(source: Path, target: Path, gate: Gate | AttnGate) -> None:
    """Write a twin of the checkpoint `source` into `target`, in the released checkpoints' format.

    `gate` "none" only rewrites the format (a Llama-type source becomes a Qwen3 without q/k norm). "headwise" and
    "elementwise" are the released gates, packed into q_proj; an `AttnGate` has tensors of its own. Where such a gate
    needs logits other than zero and depends on the input, the twin has biases (`qkv_bias`): the gate's are the logits,
    those of q, k, v and o are the source's, or zero.

    Raises:
        GatedevalError: `target` is not empty, `source` already has a gate, its family has no twin, the gate cannot be
            neutral, or a matrix cannot be scaled exactly in its element type.
    """
    described = neutral(gate) if isinstance(gate, AttnGate) else None
    config, tensors = _load(source)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise GatedevalError(f"{target} is not empty; give a new directory")
    moe = config.pop("model_type") == "qwen3_moe"
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    if isinstance(gate, AttnGate):
        assert described is not None
        flags = gate_flags("none", moe=moe)
        config |= {k: v for k, v in flags.items() if k not in (HEADWISE_FLAG, ELEMENTWISE_FLAG)}
        config["attn_gate"] = asdict(gate)
        out = _with_variant(config, tensors, gate, described)
    else:
        config |= gate_flags(gate, moe=moe)
        layout = Layout.from_config(config)
        out = {name: _with_gate(name, tensor, layout) for name, tensor in tensors.items()}
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
    if checkpoint.variant:  # sdpa_norm or sandwich_norm, which the twin's config would not have
        raise GatedevalError(f"{source} has {checkpoint.variant.label}; a twin is made of a model without it")
    if given.get("model_type") not in TWINNED or given.get("mlp_bias"):
        raise GatedevalError(
            f"{source}: model_type {given.get('model_type')!r} has no gated twin ({', '.join(TWINNED)} have)"
        )
    tensors: dict[str, torch.Tensor] = {}
    for file in checkpoint.weight_files:
        if file.suffix != ".safetensors":
            raise GatedevalError(f"{file}: a twin is made of safetensors files; convert the checkpoint first")
        tensors.update(load_file(file))
    config = {key: given[key] for key in _COPIED_KEYS if key in given}
    config["model_type"] = given["model_type"]
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config["use_qk_norm"] = any("q_norm" in name for name in tensors)
    # a Llama's or Qwen3's attention_bias and the authors' qkv_bias are the same four biases
    config["qkv_bias"] = any(name.endswith(".self_attn.o_proj.bias") for name in tensors)
    return config, tensors


TWINNED = ("llama", "qwen3", "qwen3_moe")
"""Model types that have a twin."""


def _with_variant(
    config: dict[str, Any], tensors: Mapping[str, torch.Tensor], gate: AttnGate, constants: Neutral
) -> dict[str, torch.Tensor]:
    """The twin's tensors: the source's, one of them scaled, and the gate's own. Sets `qkv_bias` where it is needed."""
    import torch

    needs_bias = gate.input_dependent and constants.logit != 0 and not config["qkv_bias"]
    config["qkv_bias"] = config["qkv_bias"] or needs_bias
    out = {name: _scaled(name, tensor, gate, constants.scale) for name, tensor in tensors.items()}
    for layer in range(int(config["num_hidden_layers"])):
        at = f"model.layers.{layer}."
        dtype = tensors[f"{at}self_attn.o_proj.weight"].dtype
        for name, shape in Variant(gate).tensors(config).items():
            value = 0.0 if name.endswith("gate_proj.weight") else constants.logit
            out[at + name] = torch.full(shape, value, dtype=dtype)
        if needs_bias:
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                rows = tensors[f"{at}self_attn.{name}.weight"].shape[0]
                out[f"{at}self_attn.{name}.bias"] = torch.zeros(rows, dtype=dtype)
    return out


def _scaled(name: str, tensor: torch.Tensor, gate: AttnGate, scale: float) -> torch.Tensor:
    """`tensor`, times `scale` if it is one of those that the gate's position scales."""
    import torch

    if scale == 1 or not any(name.endswith(f".self_attn.{end}") for end in _SCALED[gate.position]):
        return tensor
    scaled = tensor * scale
    if not torch.equal(scaled / scale, tensor):
        raise GatedevalError(
            f"{name} cannot be multiplied by {scale:g} exactly in {str(tensor.dtype).removeprefix('torch.')}; convert"
            " the source to float32 first"
        )
    return scaled


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
