"""Context settings as pure mathematics: rotary frequencies, cos/sin tables, and the overrides that vLLM needs.

One resolved description of a setting (`_parameters`, in transformers' and vLLM's own vocabulary) feeds everything
here, so that the tables we compute, the `hf_overrides` the engine is started with and the longest prompt cannot
disagree. Nothing in this module imports torch, vllm or transformers.

Sources: RoPE, Su et al. 2021 (arXiv 2104.09864), section 3.2.2; position interpolation, Chen et al. 2023 (2306.15595),
eq. 4; YaRN, Peng et al. 2023 (2309.00071), section 3.2 (NTK-by-parts) and 3.4 (the attention temperature).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.types import ContextSetting, GatedevalError

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]

DEFAULT_ROPE_THETA = 10000.0  # what transformers and vLLM assume where config.json has no rope_theta
_EPS = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}  # half an ulp of a value below 2


@dataclass(frozen=True, eq=False)
class Rope:
    """The rotary encoding of one context setting.

    `inv_freq`: (rotary_dim / 2,) float64, radians a position. `attention_scaling`: the factor on cos and sin, so
    attention scores change by its square. `parameters`: transformers' `rope_parameters`, complete.
    `length`: the longest prompt plus answer, in tokens, for which the setting is meant.
    """

    inv_freq: F64
    attention_scaling: float
    parameters: Mapping[str, Any]
    length: int

    @property
    def rotary_dim(self) -> int:
        """How many of a head's dimensions are rotated."""
        return 2 * len(self.inv_freq)

    def cos_sin(self, positions: Any, *, arithmetic: Literal["float64", "float32"] = "float64") -> F32:
        """The rows of vLLM's `cos_sin_cache`: (positions, rotary_dim) float32, [cos | sin], attention factor included.

        `positions`: a number of positions (0 .. n-1) or an array of them.
        "float64" computes angles in double precision and rounds once, so every entry is within
        2**-24 * attention_scaling of the mathematical value, at position 131071 as at 0.
        "float32" does what vLLM and transformers do, single precision throughout: within 2e-5 of their tables up to
        131071 but for the odd frequency whose power their library rounds the other way (one ulp: 0.008 there), and
        up to 0.01 from the mathematical value.
        """
        t = np.arange(positions) if np.ndim(positions) == 0 else np.asarray(positions)
        if arithmetic == "float64":
            angles = t.astype(np.float64)[:, None] * self.inv_freq
        else:
            divisor = 1.0
            parameters = dict(self.parameters)
            if parameters["rope_type"] == "linear":  # vLLM divides the positions, not the frequencies
                divisor, parameters = float(parameters["factor"]), {**parameters, "rope_type": "default"}
            inv_freq, _ = _frequencies(parameters, self.rotary_dim, self.length, np.float32)
            scaled = t.astype(np.float32) / np.float32(divisor)
            angles = (scaled[:, None] * inv_freq).astype(np.float64)
        table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        if arithmetic == "float32":
            return table.astype(np.float32) * np.float32(self.attention_scaling)
        return (table * self.attention_scaling).astype(np.float32)

    def tolerance(self, positions: Any, dtype: str = "float32") -> F64:
        """How far a correct engine's table may be from `cos_sin`: (positions, rotary_dim), absolute.

        An engine's single-precision frequency is off by a few ulp, and the angle by that times the position: the
        bound is p * inv_freq * 2**-20 on the angle, plus the rounding of cos and sin, plus the cast to `dtype`.
        """
        t = np.arange(positions) if np.ndim(positions) == 0 else np.asarray(positions)
        angle = t.astype(np.float64)[:, None] * self.inv_freq * 2.0**-20
        half = angle + 2.0**-22 + _EPS[dtype]
        return self.attention_scaling * np.concatenate([half, half], axis=1)

    def check_table(
        self, table: Any, *, rows: int | None = None, dtype: str = "float32", where: str = "engine"
    ) -> float:
        """Compare a live table, (rows, rotary_dim), with this setting; the largest deviation, absolute.

        `rows`: how many the engine's longest prompt needs (default: `length`). Raises GatedevalError when the table
        is too short, has another width, or encodes something else.
        """
        live = np.asarray(table, dtype=np.float64)
        rows = self.length if rows is None else rows
        if live.ndim != 2 or live.shape[1] != self.rotary_dim or live.shape[0] < rows:
            raise GatedevalError(
                f"{where}: rotary table has shape {live.shape}, the context setting needs at least "
                f"({rows}, {self.rotary_dim}); the engine did not take the setting"
            )
        # All early positions, then ever sparser ones, and the last: a wrong base or factor shows within a few rows.
        picks = np.unique(np.concatenate([np.arange(min(rows, 256)), np.geomspace(1, rows, 512).astype(int) - 1]))
        off = np.abs(live[picks] - self.cos_sin(picks))
        excess = off - self.tolerance(picks, dtype)
        if not np.all(excess <= 0):  # written so that NaN fails
            row, column = np.unravel_index(int(np.argmax(np.nan_to_num(excess, nan=np.inf))), excess.shape)
            raise GatedevalError(
                f"{where}: rotary table differs from the context setting: position {picks[row]}, column {column} is "
                f"{live[picks[row], column]:.6f}, should be {self.cos_sin(picks[row : row + 1])[0, column]:.6f} "
                f"(attention factor {self.attention_scaling:.4f})"
            )
        return float(off.max())


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What an engine is started with for one context setting: both come from here, so they agree or this raises."""

    hf_overrides: Mapping[str, Any]
    max_model_len: int
    reach: int | None  # the longest length that these overrides encode; None: no bound of their own

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

    `checkpoint_rope`: the checkpoint's `rope_scaling` or `rope_parameters`; kept by a native setting, replaced
    (never compounded) by any other. Raises GatedevalError when `max_length` is beyond what the setting reaches.
    """
    parameters = _parameters(setting, base_theta, max_position_embeddings, checkpoint_rope)
    length = _length(setting, parameters, max_position_embeddings)
    rotary_dim = int(head_dim * float(parameters.get("partial_rotary_factor", 1.0)))
    inv_freq, scaling = _frequencies(parameters, rotary_dim, length, np.float64)
    return Rope(inv_freq.astype(np.float64), scaling, parameters, length)


def rope_of(setting: ContextSetting, checkpoint_config: Mapping[str, Any]) -> Rope:
    """`rope` with the numbers read from a checkpoint's config.json."""
    theta, positions, declared = _read(checkpoint_config)
    head_dim = checkpoint_config.get("head_dim")
    if not head_dim:
        head_dim = int(checkpoint_config["hidden_size"]) // int(checkpoint_config["num_attention_heads"])
    return rope(
        setting, head_dim=head_dim, base_theta=theta, max_position_embeddings=positions, checkpoint_rope=declared
    )


def max_length(setting: ContextSetting, checkpoint_config: Mapping[str, Any]) -> int:
    """The longest prompt plus answer, in tokens, under `setting`: its own `max_length`, else all that it reaches."""
    theta, positions, declared = _read(checkpoint_config)
    return _length(setting, _parameters(setting, theta, positions, declared), positions)


def overrides(setting: ContextSetting, checkpoint_config: Mapping[str, Any]) -> Overrides:
    """What vLLM must be given for `setting`: `hf_overrides` and `max_model_len`, from one source.

    vLLM sets a dict-valued override on the config as it is, after its own completion of rope parameters: what is
    left out (rope_theta, rope_type, original length) is lost, so `rope_parameters` is always complete here, the
    attention factor as a number included. vLLM 0.32 takes `max_position_embeddings` as the limit for YaRN and
    the default type, so a longer prompt needs it raised; since every other number is explicit, none is derived from it.
    """
    theta, positions, declared = _read(checkpoint_config)
    parameters = _parameters(setting, theta, positions, declared)
    length = _length(setting, parameters, positions)
    if is_native(setting) and length <= positions:
        return Overrides(hf_overrides={}, max_model_len=length, reach=positions)
    given: dict[str, Any] = {"rope_parameters": parameters}
    kind = parameters["rope_type"]
    if kind == "dynamic":
        # vLLM builds the base from max_position_embeddings / max_trained_positions: without both, nothing is scaled.
        parameters["max_trained_positions"] = parameters["original_max_position_embeddings"]
        given["max_position_embeddings"] = max(length, int(parameters["original_max_position_embeddings"]))
    elif kind != "linear" and length > positions:  # linear: vLLM multiplies by the factor itself
        given["max_position_embeddings"] = length
    return Overrides(hf_overrides=given, max_model_len=length, reach=_reach(setting, parameters, positions))


def is_native(setting: ContextSetting) -> bool:
    """Whether the setting leaves the checkpoint's own encoding alone."""
    return setting.rope_theta is None and not is_extended(setting)


def is_extended(setting: ContextSetting) -> bool:
    """Whether the setting stretches positions (YaRN, position interpolation, dynamic NTK)."""
    return setting.yarn is not None or setting.linear is not None or setting.dynamic is not None


def _read(config: Mapping[str, Any]) -> tuple[float, int, Mapping[str, Any] | None]:
    """(rope_theta, max_position_embeddings, declared rope parameters) of a config.json, old or new style."""
    declared = config.get("rope_parameters") or config.get("rope_scaling")
    if declared is not None and not isinstance(declared, Mapping):
        raise GatedevalError(f"config.json: rope_scaling is {declared!r}, not a mapping; mend the checkpoint")
    theta = (declared or {}).get("rope_theta") or config.get("rope_theta") or DEFAULT_ROPE_THETA
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions <= 0:
        raise GatedevalError(f"config.json: max_position_embeddings is {positions!r}, not a positive whole number")
    declared = dict(declared or {})
    if "partial_rotary_factor" in config:
        declared.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    return float(theta), positions, declared or None


def _parameters(
    setting: ContextSetting, theta: float, positions: int, declared: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`setting` as complete `rope_parameters` in transformers' vocabulary: every number explicit."""
    kinds = [k for k in ("yarn", "linear", "dynamic") if getattr(setting, k) is not None]
    if len(kinds) > 1:
        raise GatedevalError(f"context {setting.label!r}: {' and '.join(kinds)} exclude one another; keep one")
    declared = dict(declared or {})
    partial = {k: declared[k] for k in ("partial_rotary_factor",) if declared.get(k) is not None}
    if setting.rope_theta is not None:
        theta = float(setting.rope_theta)
    common = {"rope_theta": theta, **partial}
    if is_native(setting):
        return _declared(declared, common, positions)
    if setting.yarn is not None:
        y = setting.yarn
        factor = y.attention_factor if y.attention_factor is not None else yarn_attention_factor(y.factor)
        return {
            "rope_type": "yarn",
            **common,
            "factor": float(y.factor),
            "original_max_position_embeddings": y.original_max_position_embeddings,
            "beta_fast": float(y.beta_fast),
            "beta_slow": float(y.beta_slow),
            "attention_factor": factor,
        }
    original = int(declared.get("original_max_position_embeddings") or positions)
    if kinds:
        stretch = {"factor": float(getattr(setting, kinds[0])), "original_max_position_embeddings": original}
        return {"rope_type": kinds[0], **common, **stretch}
    return {"rope_type": "default", **common}


def _declared(declared: Mapping[str, Any], common: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """The checkpoint's own rope parameters, completed; raises GatedevalError for a type that we cannot compute."""
    kind = declared.get("rope_type") or declared.get("type") or "default"
    if declared.get("mrope_section") is not None:
        kind = "mrope"
    if kind == "default":
        return {"rope_type": "default", **common}
    if kind not in ("yarn", "linear", "dynamic", "llama3"):
        raise GatedevalError(
            f"config.json: the checkpoint's rope type {kind!r} is not supported; supported are default, linear, "
            f"dynamic, yarn and llama3. Give the context an explicit rope_theta or yarn to replace it"
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


def _reach(setting: ContextSetting, parameters: Mapping[str, Any], positions: int) -> int | None:
    """The longest length for which these parameters make sense; None where the user has taken it in hand."""
    if parameters["rope_type"] in ("yarn", "linear", "dynamic"):
        stretched = int(parameters["factor"] * parameters["original_max_position_embeddings"])
        # A checkpoint that declares scaling may already give the extended length as max_position_embeddings.
        return max(stretched, positions) if is_native(setting) else stretched
    # An explicit base is how a model is made to go further (the paper: 4K at 1e4, 32K at 1e6): no bound of ours.
    return positions if setting.rope_theta is None else None


def _length(setting: ContextSetting, parameters: Mapping[str, Any], positions: int) -> int:
    """`max_length` resolved and checked, in tokens."""
    reach = _reach(setting, parameters, positions)
    if setting.max_length is None:
        return reach if reach is not None else positions
    if reach is not None and setting.max_length > reach:
        if parameters["rope_type"] in ("yarn", "linear", "dynamic"):
            original, factor = parameters["original_max_position_embeddings"], parameters["factor"]
            limit = f"{parameters['rope_type']} factor {factor:g} x original {original} = {reach}"
            remedy = f"use a factor of at least {setting.max_length / original:g}, or lower max_length"
        else:
            limit = f"the checkpoint's max_position_embeddings = {reach}"
            remedy = "lower max_length, or extend the context with rope_theta or yarn"
        raise GatedevalError(f"context {setting.label!r}: max_length {setting.max_length} is beyond {limit}; {remedy}")
    return setting.max_length


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on cos and sin: 0.1 ln(factor) + 1 (Peng et al., section 3.4, sqrt(1/t)); 1 below factor 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _frequencies(parameters: Mapping[str, Any], dim: int, length: int, dtype: Any) -> tuple[NDArray[Any], float]:
    """(inverse frequencies (dim / 2,), factor on cos and sin), in `dtype` np.float64, or np.float32 as engines do."""
    if dim <= 0 or dim % 2:
        raise GatedevalError(f"config.json: rotary dimension {dim} is not a positive even number")
    kind, base = parameters["rope_type"], float(parameters["rope_theta"])
    factor = float(parameters.get("factor", 1.0))
    original = int(parameters.get("original_max_position_embeddings", length))
    if kind == "dynamic":
        # The base that dynamic NTK has at `length` tokens. An engine builds its table once: short prompts get it too.
        base *= (factor * max(length, original) / original - (factor - 1)) ** (dim / (dim - 2))
    exponent = np.arange(0, dim, 2, dtype=dtype) / dtype(dim)
    # base ** (2 i / dim), correctly rounded to `dtype`; torch, too, narrows the base first.
    period = np.power(np.float64(dtype(base)), exponent.astype(np.float64)).astype(dtype)
    inv_freq = dtype(1) / period
    if kind == "linear":
        return inv_freq / dtype(factor), 1.0
    if kind == "llama3":
        return _llama3(parameters, inv_freq, factor, original, dtype), 1.0
    if kind != "yarn":
        return inv_freq, 1.0
    low, high = _yarn_range(parameters, dim, base, original)
    ramp = np.clip((np.arange(dim // 2, dtype=dtype) - dtype(low)) / dtype(high - low), 0, 1).astype(dtype)
    keep = dtype(1) - ramp  # 1: fast dimensions, extrapolated as they are; 0: slow ones, interpolated by the factor
    mixed = (dtype(1) / (dtype(factor) * period)) * (dtype(1) - keep) + inv_freq * keep
    return mixed, float(parameters["attention_factor"])


def _yarn_range(parameters: Mapping[str, Any], dim: int, base: float, original: int) -> tuple[float, float]:
    """The pair indices between which YaRN's ramp runs, from `original` positions (never max_position_embeddings).

    The paper's ramp is linear in the number of rotations r = original / wavelength, from beta_slow to beta_fast; its
    authors' code, and with it transformers and vLLM, has it linear in the pair index between those two points,
    rounded outwards. Checkpoints were trained with the latter, so that is what is computed.
    """

    def pair(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(float(parameters["beta_fast"])), pair(float(parameters["beta_slow"]))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high


def _llama3(
    parameters: Mapping[str, Any], inv_freq: NDArray[Any], factor: float, original: int, dtype: Any
) -> NDArray[Any]:
    """Llama 3.1's frequencies: slow ones divided by the factor, fast ones kept, a linear blend between."""
    slow, fast = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    turns = dtype(original) / (dtype(2 * math.pi) / inv_freq)
    blend = np.clip((turns - dtype(slow)) / dtype(fast - slow), 0, 1) if fast != slow else (turns >= slow).astype(dtype)
    return (dtype(1) - blend) * inv_freq / dtype(factor) + blend * inv_freq
