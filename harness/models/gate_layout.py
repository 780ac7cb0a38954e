"""A checkpoint whose gate rows are packed in another way than the authors': what is asked for, and what the files show.

`gate_layout`, in config.json or at a model of a gatedeval config, says where the gate rows of a Qwen- or Llama-type
decoder are. Two of the three layouts have the same shapes, so no shape and no flag can say it instead. This module
turns such a config.json into the terms of our own classes, after a comparison with the tensors' shapes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from harness.models.headers import Tensor
from harness.models.layout import (
    ELEMENTWISE_FLAG,
    HEADWISE_FLAG,
    LAYOUT_KEY,
    QWEN_TYPES,
    Layout,
    gate_flags,
    gate_from_flags,
    gate_from_rows,
    is_moe,
    is_qwen,
)
from harness.models.variant import GATE_MATRICES, Variant
from harness.types import Gate, GatedevalError, GateLayout, did_you_mean

CONVERTIBLE = (*QWEN_TYPES, "qwen3_moe", "llama", "mistral")
"""Model types whose decoder our classes compute, so that only the gate rows' place has to be known."""

CHOICES: tuple[GateLayout, ...] = get_args(GateLayout)
_ATTENTION = "model.layers.0.self_attn."


def asked_layout(path: Path, config: Mapping[str, Any], given: GateLayout | None) -> GateLayout | None:
    """The layout that config.json or the model's entry in a config names; None: neither does.

    Raises:
        GatedevalError: the value is none of the three, or the two contradict each other.
    """
    stored = config.get(LAYOUT_KEY)
    for value, where in ((stored, f"{path / 'config.json'}: {LAYOUT_KEY}"), (given, f"{path}: gate_layout")):
        if value is not None and value not in CHOICES:
            raise GatedevalError(
                f"{where} is {value!r}; there are {', '.join(CHOICES)}{did_you_mean(str(value), CHOICES)}"
            )
    if stored is not None and given is not None and stored != given:
        raise GatedevalError(
            f"{path}: gate_layout is {given}, but config.json says {stored}; remove gate_layout where you gave it, or"
            " correct config.json"
        )
    return given or stored


def with_layout(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], layout: GateLayout
) -> dict[str, Any]:
    """config.json in the terms of our model classes, for gate rows that are packed as `layout` says.

    The shapes say whether the gate is headwise or elementwise. In the result the flags are those of a released
    checkpoint (with `gate_layout`), or `attn_gate` for a separate matrix.

    Raises:
        GatedevalError: a family that our classes do not compute; no gate rows in that place; flags that contradict the
            shapes.
    """
    _check_family(path, config)
    heads, head_dim = _heads(path, config, tensors)
    width = heads * head_dim
    rows = _rows(tensors, "q_proj")
    separate = _separate(tensors)
    if layout == "separate":
        if separate is None:
            raise GatedevalError(
                f"{path}: gate_layout is separate, but no file holds {_ATTENTION}gate_proj.weight (nor"
                f" {' nor '.join(GATE_MATRICES[1:])}); {shapes(tensors)}"
            )
        gate: Gate | None = {heads: "headwise", width: "elementwise"}.get(_rows(tensors, separate))  # type: ignore[assignment]
        fits = rows == width
    else:
        gate, fits = gate_from_rows(rows, heads, head_dim), separate is None
    if gate is None or gate == "none" or not fits:
        raise GatedevalError(
            f"{path}: gate_layout is {layout}, which the shapes do not fit: {shapes(tensors)}, with {heads} heads of"
            f" {head_dim}; correct gate_layout"
        )
    if gate_from_flags(config) not in ("none", gate):
        raise GatedevalError(
            f"{path}: config.json's flags say {gate_from_flags(config)}, but the shapes are those of a gate that is"
            f" {gate} ({shapes(tensors)}); correct the flags"
        )
    return _in_our_terms(config, tensors, gate, layout)


def _in_our_terms(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], gate: Gate, layout: GateLayout
) -> dict[str, Any]:
    facts = {k: v for k, v in config.items() if k not in (HEADWISE_FLAG, ELEMENTWISE_FLAG, LAYOUT_KEY)}
    described = gate_flags(gate, moe=is_moe(config))
    if layout == "separate":
        described = {k: v for k, v in described.items() if k not in (HEADWISE_FLAG, ELEMENTWISE_FLAG)}
        described["attn_gate"] = config.get("attn_gate") or {"position": "sdpa_output", "granularity": gate}
    else:
        described[LAYOUT_KEY] = layout
    if config.get("model_type") in ("llama", "mistral"):  # Qwen's keys; their own are not read by our classes
        described["use_qk_norm"] = f"{_ATTENTION}q_norm.weight" in tensors
        described["qkv_bias"] = bool(config.get("attention_bias"))
    return facts | described


def _check_family(path: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("model_type")
    if kind not in CONVERTIBLE and not is_qwen(config):
        raise GatedevalError(
            f"{path}: gate_layout is for decoders that our model classes compute ({', '.join(CONVERTIBLE)}), and the"
            f" model type is {kind!r}. Remove gate_layout; or, if it computes what Qwen3 computes, set model_type to"
            " qwen3 in a copy of config.json"
        )
    if config.get("quantization_config"):
        raise GatedevalError(f"{path}: a quantised checkpoint with a gate is not supported; get the 16-bit weights")
    unlike = [
        f"{key} is {config[key]!r}"
        for key, plain in (("hidden_act", "silu"), ("mlp_bias", False), ("sliding_window", None))
        if config.get(key) not in (None, False, plain) and (kind == "mistral" or key != "sliding_window")
    ]
    if config.get("use_sliding_window"):
        unlike.append("use_sliding_window is true")
    if unlike:
        raise GatedevalError(f"{path}: gate_layout is given, but {', '.join(unlike)}, which our model class has not")


def _heads(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Query heads and head_dim: config.json's, or read off o_proj, which has heads x head_dim columns."""
    heads, output = config.get("num_attention_heads"), tensors.get(f"{_ATTENTION}o_proj.weight")
    if (
        not isinstance(heads, int)
        or output is None
        or len(output.shape) != 2
        or f"{_ATTENTION}q_proj.weight" not in tensors
    ):
        raise GatedevalError(f"{path}: num_attention_heads or {_ATTENTION}q_proj and o_proj are missing")
    return heads, int(config.get("head_dim") or output.shape[1] // heads)


def _separate(tensors: Mapping[str, Tensor]) -> str | None:
    """The name that a separate gate matrix of the first layer has, if there is one."""
    return next((n for n in GATE_MATRICES if f"{_ATTENTION}{n}.weight" in tensors), None)


def _rows(tensors: Mapping[str, Tensor], name: str) -> int:
    return tensors[f"{_ATTENTION}{name}.weight"].shape[0]


def shapes(tensors: Mapping[str, Tensor]) -> str:
    """The tensors that show where a gate is, with file and shape, in one line."""
    names = ("q_proj.weight", "o_proj.weight", *(f"{n}.weight" for n in GATE_MATRICES), "gate_bias")
    found = [(n, tensors[f"{_ATTENTION}{n}"]) for n in names if f"{_ATTENTION}{n}" in tensors]
    file = found[0][1].file if found else ""
    return f"{_ATTENTION}{{{', '.join(f'{n} {list(t.shape)}' for n, t in found)}}} in {file or 'the weights'}"


def evidence(config: Mapping[str, Any], layout: Layout, tensors: Mapping[str, Tensor], source: str) -> str | None:
    """Where the gate rows of one of our own models are, and what says so; None: it has no gate.

    `config`: in our classes' terms. `source`: what named the layout.
    """
    variant = Variant.from_config(config)
    if variant.gate is not None:
        where = "separate matrix" if variant.gate.input_dependent else "learned constants (gate_bias)"
    elif layout.gate == "none":
        return None
    else:
        one = "head" if layout.packing == "per-head" else "KV group"
        queries = "query" if layout.packing == "per-head" else "queries"
        where = f"{layout.packing.replace('-', ' ')}, in q_proj: [{queries} | gate] of each {one}"
    return f"{where} ({source}; {shapes(tensors)})"
