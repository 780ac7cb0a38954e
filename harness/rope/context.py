"""What a context setting means for a checkpoint: rotary encoding, vLLM's overrides, and the longest prompt.

All three follow from one resolved description of the setting (`_parameters`, with the keys that transformers and vLLM
use), so they cannot disagree. This module imports neither torch nor vllm nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.config import SCALINGS, ContextSetting, Yarn, stretched_length
from harness.rope.tables import (
    Rope,
    frequencies,
    longrope_attention_factor,
    ntk_base,
    yarn_attention_factor,
)
from harness.types import GatedevalError

__all__ = ["Overrides", "Rope", "is_extended", "is_native", "max_length", "overrides", "rope", "rope_of"]

DEFAULT_ROPE_THETA = 10000.0  # transformers and vLLM assume it if config.json has no rope_theta


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """vLLM's arguments for one context setting.

    `hf_overrides`: entries that replace those of config.json. `max_model_len`: longest prompt plus answer, in tokens.
    `reach`: the longest length that the overrides can encode, in tokens; None: they have no limit.

    Raises:
        GatedevalError: `max_model_len` is beyond `reach`.
    """

    hf_overrides: Mapping[str, Any]
    max_model_len: int
    reach: int | None

    def __post_init__(self) -> None:
        if self.reach is not None and self.max_model_len > self.reach:
            raise GatedevalError(
                f"context setting: max_length {self.max_model_len} is beyond the {self.reach} tokens that its rotary "
                f"parameters reach; lower max_length, or raise the factor"
            )


def rope(
    setting: ContextSetting,
    *,
    head_dim: int,
    base_theta: float,
    max_position_embeddings: int,
    checkpoint_rope: Mapping[str, Any] | None = None,
) -> Rope:
    """The rotary encoding of `setting` for a checkpoint with these numbers.

    `checkpoint_rope`: the checkpoint's `rope_scaling` or `rope_parameters`. A native setting keeps it; any other
    setting replaces it. The two are never combined.

    Raises:
        GatedevalError: `max_length` is beyond the reach of the setting, or the checkpoint's rope type is unknown.
    """
    parameters = _parameters(setting, base_theta, max_position_embeddings, checkpoint_rope)
    length = _length(setting, parameters, max_position_embeddings)
    rotary_dim = int(head_dim * float(parameters.get("partial_rotary_factor", 1.0)))
    inv_freq, scaling = frequencies(parameters, rotary_dim, length, np.float64)
    return Rope(inv_freq.astype(np.float64), scaling, parameters, length)


def is_computable(checkpoint_config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint's own rotary encoding is one that `rope_of` computes for all of its layers.

    False for parameters per layer type (Gemma 3), for rope types that we do not know, and where config.json has
    no rope_theta: the model class then has a default of its own, which is not ours to guess.
    """
    try:
        theta, positions, declared = _read(checkpoint_config)
        _parameters(ContextSetting(label="native"), theta, positions, declared)
    except GatedevalError:
        return False
    own = checkpoint_config.get("rope_parameters") or checkpoint_config.get("rope_scaling") or {}
    return _names_theta(checkpoint_config) and not _is_nested(own)


def check_readable(checkpoint_config: Mapping[str, Any]) -> None:
    """Raise GatedevalError if config.json has no positions, or rope parameters that are no numbers."""
    if _is_per_layer(checkpoint_config):
        _positions(checkpoint_config)
    else:
        _read(checkpoint_config)


def _is_per_layer(config: Mapping[str, Any]) -> bool:
    """Whether config.json gives a base or a rotary share for every layer, as Step 3.5's; vLLM's class computes it."""
    return any(isinstance(config.get(key), list) for key in ("rope_theta", "partial_rotary_factors"))


def _own_overrides(setting: ContextSetting, config: Mapping[str, Any]) -> Overrides:
    """vLLM's arguments for a checkpoint with rope parameters per layer, which has the native setting only."""
    if not is_native(setting):
        raise GatedevalError(
            f"context {setting.label!r}: config.json has rope parameters for every layer (rope_theta or"
            " partial_rotary_factors is a list), which no setting can replace; use a native context"
        )
    positions = _positions(config)
    length = setting.max_length or positions
    if length > positions:
        raise GatedevalError(
            f"context {setting.label!r}: max_length {length} is beyond the checkpoint's max_position_embeddings ="
            f" {positions}; lower max_length"
        )
    return Overrides(hf_overrides={}, max_model_len=length, reach=positions)


def _positions(config: Mapping[str, Any]) -> int:
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions <= 0:
        raise GatedevalError(f"config.json: max_position_embeddings is {positions!r}, not a positive whole number")
    return positions


def check_theta_is_named(setting: ContextSetting, checkpoint_config: Mapping[str, Any]) -> None:
    """Raise GatedevalError if a setting needs the checkpoint's rope_theta and config.json does not name it."""
    if not _names_theta(checkpoint_config):
        raise GatedevalError(
            f"context {setting.label!r}: config.json names no rope_theta, and the default of its model class is not"
            " known here; add `rope_theta: ...` to the context"
        )


def _names_theta(checkpoint_config: Mapping[str, Any]) -> bool:
    own = checkpoint_config.get("rope_parameters") or checkpoint_config.get("rope_scaling") or {}
    return "rope_theta" in checkpoint_config or "rope_theta" in (own[FULL] if _is_nested(own) else own)


def rope_of(setting: ContextSetting, checkpoint_config: Mapping[str, Any]) -> Rope:
    """`rope` with the numbers of a checkpoint's config.json."""
    theta, positions, declared = _read(checkpoint_config)
    return rope(
        setting,
        head_dim=_head_dim(checkpoint_config),
        base_theta=theta,
        max_position_embeddings=positions,
        checkpoint_rope=declared,
    )


def rope_at_start(setting: ContextSetting, checkpoint_config: Mapping[str, Any], *, replaced: bool) -> Rope:
    """What vLLM's own table encodes after a start with `overrides(setting, ..., replaced=replaced)`.

    The setting's encoding, but for LongRoPE in an engine whose table is replaced.
    """
    own = rope_of(setting, checkpoint_config)
    if not replaced or own.parameters["rope_type"] != "longrope":
        return own
    plain = ContextSetting(label=setting.label, rope_theta=float(own.parameters["rope_theta"]), max_length=own.length)
    return rope_of(plain, checkpoint_config)


def trained_length(setting: ContextSetting, checkpoint_config: Mapping[str, Any]) -> int:
    """The length that the setting stretches, in tokens: its own original length, else the checkpoint's."""
    theta, positions, declared = _read(checkpoint_config)
    parameters = _parameters(setting, theta, positions, declared)
    original = parameters.get("original_max_position_embeddings") or (declared or {}).get(
        "original_max_position_embeddings"
    )
    return int(original or positions)


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))


def max_length(setting: ContextSetting, checkpoint_config: Mapping[str, Any]) -> int:
    """The longest prompt plus answer under `setting`, in tokens: its own `max_length`, else its reach."""
    if _is_per_layer(checkpoint_config):
        return _own_overrides(setting, checkpoint_config).max_model_len
    theta, positions, declared = _read(checkpoint_config)
    return _length(setting, _parameters(setting, theta, positions, declared), positions)


def overrides(setting: ContextSetting, checkpoint_config: Mapping[str, Any], *, replaced: bool = False) -> Overrides:
    """vLLM's arguments for `setting`. `replaced`: the engine's table will be replaced by ours after the start.

    vLLM's class for LongRoPE has another kind of table, which cannot be replaced: with `replaced` it gets a plain table
    of the same size. NTK-aware scaling is another base, so vLLM is given that.

    vLLM puts a dict-valued override into the config after it has completed the config's own rope parameters. A key
    that the override lacks (rope_theta, rope_type, original length) is therefore lost, so `rope_parameters` is complete
    here, with the attention factor as a number. vLLM 0.32 takes `max_position_embeddings` as the limit on prompts for
    YaRN and for the default type, so the override raises it for a longer prompt; no other number is derived from it.
    """
    if _is_per_layer(checkpoint_config):
        return _own_overrides(setting, checkpoint_config)
    theta, positions, declared = _read(checkpoint_config)
    parameters = _parameters(setting, theta, positions, declared)
    length = _length(setting, parameters, positions)
    by_us = replaced and parameters["rope_type"] == "longrope"
    if is_native(setting) and length <= positions and not by_us:
        return Overrides(hf_overrides={}, max_model_len=length, reach=positions)
    own = checkpoint_config.get("rope_parameters")
    nested = dict(own) if isinstance(own, Mapping) and _is_nested(own) else {}
    given: dict[str, Any] = {"rope_parameters": {**nested, FULL: parameters} if nested else parameters}
    kind = parameters["rope_type"]
    if kind == "ntk" or by_us:
        _plain(parameters, checkpoint_config)
    elif kind == "longrope":  # else vLLM computes the factor on cos and sin from other numbers
        parameters["short_mscale"] = parameters["long_mscale"] = parameters["attention_factor"]
    if kind == "dynamic":
        # vLLM computes the base from max_position_embeddings / max_trained_positions: without both it scales nothing.
        parameters["max_trained_positions"] = parameters["original_max_position_embeddings"]
        given["max_position_embeddings"] = max(length, int(parameters["original_max_position_embeddings"]))
    elif (kind != "linear" or nested) and length > positions:
        # linear: vLLM itself multiplies by the factor, but not for Gemma 3, whose parameters are given per layer type
        given["max_position_embeddings"] = length
    return Overrides(hf_overrides=given, max_model_len=length, reach=_reach(setting, parameters, positions))


def _plain(parameters: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Turn `parameters` into those of a plain encoding; NTK-aware scaling into its base."""
    theta = float(parameters["rope_theta"])
    if parameters["rope_type"] == "ntk":
        dim = int(_head_dim(config) * float(parameters.get("partial_rotary_factor", 1.0)))
        theta = ntk_base(theta, float(parameters["factor"]), dim)
    kept = {key: parameters[key] for key in ("partial_rotary_factor",) if key in parameters}
    parameters.clear()
    parameters.update({"rope_type": "default", "rope_theta": theta, **kept})


def is_native(setting: ContextSetting) -> bool:
    """Whether the setting keeps the checkpoint's own encoding."""
    return setting.rope_theta is None and not is_extended(setting)


def is_extended(setting: ContextSetting) -> bool:
    """Whether the setting stretches positions (YaRN, position interpolation, NTK, Llama 3's, LongRoPE)."""
    return any(getattr(setting, kind) is not None for kind in SCALINGS)


LONGROPE = ("longrope", "su")
"""Names of LongRoPE in config.json; "su" is an older one."""
_STRETCHED = ("yarn", "linear", "dynamic", "ntk", "longrope")
"""Rope types that reach factor x original tokens."""
FULL = "full_attention"
"""The layer type whose encoding a context setting replaces. Layers with a sliding window keep their own encoding: they
never attend further than their window."""


def _is_nested(declared: Any) -> bool:
    """Whether rope parameters are given per layer type: `{full_attention: {...}, sliding_attention: {...}}`."""
    return isinstance(declared, Mapping) and isinstance(declared.get(FULL), Mapping)


def _read(config: Mapping[str, Any]) -> tuple[float, int, Mapping[str, Any] | None]:
    """(rope_theta, max_position_embeddings, declared rope parameters) of a config.json, old or new style."""
    declared = config.get("rope_parameters") or config.get("rope_scaling")
    if declared is not None and not isinstance(declared, Mapping):
        raise GatedevalError(f"config.json: rope_scaling is {declared!r}, not a mapping; correct the checkpoint")
    if _is_per_layer(config):
        raise GatedevalError("config.json: rope_theta or partial_rotary_factors is a list, one number for each layer")
    if declared is not None and _is_nested(declared):
        declared = declared[FULL]
    elif declared and not {"rope_type", "type", "rope_theta", "factor"} & set(declared):
        raise GatedevalError(
            f"config.json: rope_parameters have the layer types {', '.join(map(repr, declared))}; gatedeval knows only "
            f"{FULL!r} beside others"
        )
    for key, value in (("rope_theta", config.get("rope_theta")), *(declared or {}).items()):
        if isinstance(value, str) and key not in ("rope_type", "type"):
            raise GatedevalError(f"config.json: {key} is {value!r}, not a number; correct the checkpoint")
    theta = (declared or {}).get("rope_theta") or config.get("rope_theta") or DEFAULT_ROPE_THETA
    positions = _positions(config)
    declared = dict(declared or {})
    if "partial_rotary_factor" in config:
        declared.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    if (declared.get("rope_type") or declared.get("type")) in LONGROPE and "original_max_position_embeddings" in config:
        declared.setdefault("original_max_position_embeddings", config["original_max_position_embeddings"])  # Phi-3
    return float(theta), positions, declared or None


def _parameters(
    setting: ContextSetting, theta: float, positions: int, declared: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`setting` as complete `rope_parameters` with transformers' keys: every number is explicit."""
    declared = dict(declared or {})
    partial = {k: declared[k] for k in ("partial_rotary_factor",) if declared.get(k) is not None}
    if setting.rope_theta is not None:
        theta = float(setting.rope_theta)
    common = {"rope_theta": theta, **partial}
    if is_native(setting):
        return _declared(declared, common, positions)
    if setting.yarn is not None:
        return {"rope_type": "yarn", **common, **_yarn(setting.yarn)}
    if setting.llama3 is not None:
        return {"rope_type": "llama3", **common, **setting.llama3.model_dump()}
    if setting.longrope is not None:
        own = setting.longrope
        attention = own.attention_factor
        if attention is None:
            attention = longrope_attention_factor(own.factor, own.original_max_position_embeddings)
        factors = {"short_factor": list(own.short_factor), "long_factor": list(own.long_factor)}
        return {"rope_type": "longrope", **common, **own.model_dump(), **factors, "attention_factor": attention}
    original = int(declared.get("original_max_position_embeddings") or positions)
    for kind in ("linear", "dynamic", "ntk"):
        if (factor := getattr(setting, kind)) is not None:
            stretch = {"factor": float(factor), "original_max_position_embeddings": original}
            return {"rope_type": kind, **common, **stretch}
    return {"rope_type": "default", **common}


def _yarn(y: Yarn) -> dict[str, Any]:
    """YaRN's parameters with the factor on cos and sin as a number, as transformers computes it."""
    attention = y.attention_factor
    if attention is None and y.mscale is not None and y.mscale_all_dim is not None:
        attention = yarn_attention_factor(y.factor, y.mscale) / yarn_attention_factor(y.factor, y.mscale_all_dim)
    return {
        "factor": float(y.factor),
        "original_max_position_embeddings": y.original_max_position_embeddings,
        "beta_fast": float(y.beta_fast),
        "beta_slow": float(y.beta_slow),
        "attention_factor": attention if attention is not None else yarn_attention_factor(y.factor),
    }


def _declared(declared: Mapping[str, Any], common: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """The checkpoint's own rope parameters, completed. Raises GatedevalError for a type that we cannot compute."""
    kind = declared.get("rope_type") or declared.get("type") or "default"
    if kind == "default" or (kind == "mrope" and declared.get("mrope_section")):
        # Multimodal RoPE divides the dimensions among time, height and width. A text's positions are equal in all
        # three, so its angles are those of the default type; vLLM still has to know the sections.
        sections = {k: declared[k] for k in ("mrope_section", "mrope_interleaved") if declared.get(k) is not None}
        return {"rope_type": "default", **common, **sections}
    if declared.get("mrope_section") is not None:
        kind = "mrope"
    if kind in LONGROPE:
        return {"rope_type": "longrope", **common, **_declared_longrope(declared, positions)}
    if kind not in ("yarn", "linear", "dynamic", "llama3"):
        raise GatedevalError(
            f"config.json: the checkpoint's rope type {kind!r} is not supported; supported are default, linear, "
            f"dynamic, yarn, llama3 and longrope. Give the context an explicit rope_theta or yarn to replace it"
        )
    known = {k: v for k, v in declared.items() if v is not None and k not in ("type", "rope_type", *common)}
    original = int(known.get("original_max_position_embeddings") or positions)
    factor = float(known.get("factor") or positions / original)
    out = {"rope_type": kind, **common, **known, "factor": factor, "original_max_position_embeddings": original}
    if kind == "yarn":
        out["beta_fast"] = float(known.get("beta_fast") or 32.0)
        out["beta_slow"] = float(known.get("beta_slow") or 1.0)
        m, m_all = out.pop("mscale", None), out.pop("mscale_all_dim", None)
        if known.get("attention_factor") is None:
            both = yarn_attention_factor(factor, m) / yarn_attention_factor(factor, m_all) if m and m_all else None
            out["attention_factor"] = both if both is not None else yarn_attention_factor(factor)
    return out


def _declared_longrope(declared: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """A checkpoint's own LongRoPE, completed as transformers does."""
    short, long = declared.get("short_factor"), declared.get("long_factor")
    if not isinstance(short, list) or not isinstance(long, list):
        raise GatedevalError("config.json: longrope has no lists short_factor and long_factor; correct the checkpoint")
    if declared.get("short_mscale") is not None or declared.get("long_mscale") is not None:
        raise GatedevalError(
            "config.json: longrope with short_mscale and long_mscale is not supported; give the context an explicit"
            " longrope with an attention_factor"
        )
    original = int(declared.get("original_max_position_embeddings") or positions)
    factor = float(declared.get("factor") or positions / original)
    attention = declared.get("attention_factor")
    return {
        "short_factor": [float(f) for f in short],
        "long_factor": [float(f) for f in long],
        "original_max_position_embeddings": original,
        "factor": factor,
        "attention_factor": longrope_attention_factor(factor, original) if attention is None else float(attention),
    }


def _reach(setting: ContextSetting, parameters: Mapping[str, Any], positions: int) -> int | None:
    """The longest length that these parameters encode, in tokens. None: an explicit rope_theta has no length limit."""
    if parameters["rope_type"] in _STRETCHED:
        stretched = stretched_length(parameters["factor"], parameters["original_max_position_embeddings"])
        # In a checkpoint that declares scaling, max_position_embeddings may already be the extended length.
        return max(stretched, positions) if is_native(setting) else stretched
    # Another base is a way to extend a model (the paper: 4K at base 1e4, 32K at 1e6), so it sets no limit. Llama 3's
    # scaling neither: factor 8 over 8192 tokens is used up to 131072.
    return positions if is_native(setting) else None


def _length(setting: ContextSetting, parameters: Mapping[str, Any], positions: int) -> int:
    """The setting's `max_length` in tokens, or its reach if it has none. Raises GatedevalError if it is too long."""
    reach = _reach(setting, parameters, positions)
    if setting.max_length is None:
        if setting.llama3 is not None:
            return max(
                positions, stretched_length(parameters["factor"], parameters["original_max_position_embeddings"])
            )
        return reach if reach is not None else positions
    if reach is not None and setting.max_length > reach:
        if parameters["rope_type"] in _STRETCHED:
            original, factor = parameters["original_max_position_embeddings"], parameters["factor"]
            limit = f"{parameters['rope_type']} factor {factor:g} x original {original} = {reach}"
            remedy = f"use a factor of at least {setting.max_length / original:g}, or lower max_length"
        else:
            limit = f"the checkpoint's max_position_embeddings = {reach}"
            remedy = "lower max_length, or extend the context with rope_theta or yarn"
        raise GatedevalError(f"context {setting.label!r}: max_length {setting.max_length} is beyond {limit}; {remedy}")
    return setting.max_length
