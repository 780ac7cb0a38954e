"""Rotary encodings as pure mathematics: inverse frequencies, the factor on cos and sin, and the tables of both.

Input are complete `rope_parameters`, with the keys that transformers and vLLM use; `harness.rope.context` makes them
from a context setting. This module imports neither torch nor vllm nor transformers.

Sources: RoPE, Su et al. 2021 (arXiv 2104.09864), section 3.2.2; position interpolation, Chen et al. 2023 (2306.15595),
eq. 4; YaRN, Peng et al. 2023 (2309.00071), section 3.1 (NTK-aware), 3.2 (NTK-by-parts) and 3.4 (the attention
temperature); LongRoPE, Ding et al. 2024 (2402.13753), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.types import GatedevalError

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]

_EPS = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}  # half an ulp of a value below 2


@dataclass(frozen=True, eq=False)
class Rope:
    """The rotary encoding of one context setting.

    `inv_freq`: (rotary_dim / 2,) float64, radians per position. `attention_scaling`: the factor on cos and sin;
    attention scores change by its square. `parameters`: transformers' `rope_parameters`, complete.
    `length`: the longest prompt plus answer that the setting allows, in tokens.
    """

    inv_freq: F64
    attention_scaling: float
    parameters: Mapping[str, Any]
    length: int

    @property
    def rotary_dim(self) -> int:
        """Number of a head's dimensions that are rotated."""
        return 2 * len(self.inv_freq)

    def to_plain(self) -> dict[str, Any]:
        """Plain data that can be sent to another process; `from_plain` is the inverse."""
        return {
            "inv_freq": [float(f) for f in self.inv_freq],
            "attention_scaling": float(self.attention_scaling),
            "parameters": dict(self.parameters),
            "length": int(self.length),
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Rope:
        """A `Rope` from the data of `to_plain`."""
        inv_freq = np.asarray(data["inv_freq"], dtype=np.float64)
        return cls(inv_freq, data["attention_scaling"], data["parameters"], data["length"])

    def cos_sin(self, positions: Any, *, arithmetic: Literal["float64", "float32"] = "float64") -> F32:
        """The rows of vLLM's `cos_sin_cache`: (positions, rotary_dim) float32, [cos | sin], attention factor included.

        `positions`: a number n (positions 0 .. n-1) or an array of positions.
        `arithmetic` "float64" computes angles in double precision and rounds once, so every entry is within
        2**-24 * attention_scaling of the mathematical value, at position 131071 as at 0.
        "float32" computes in single precision throughout, as vLLM and transformers do: up to position 131071 it is
        within 2e-5 of their tables (0.008 for a frequency whose power their library rounds to the neighbouring
        float32), and within 0.01 of the mathematical value.
        """
        t = np.arange(positions) if np.ndim(positions) == 0 else np.asarray(positions)
        if arithmetic == "float64":
            angles = t.astype(np.float64)[:, None] * self.inv_freq
        else:
            divisor = 1.0
            parameters = dict(self.parameters)
            if parameters["rope_type"] == "linear":  # vLLM divides the positions, not the frequencies
                divisor, parameters = float(parameters["factor"]), {**parameters, "rope_type": "default"}
            inv_freq, _ = frequencies(parameters, self.rotary_dim, self.length, np.float32)
            scaled = t.astype(np.float32) / np.float32(divisor)
            angles = (scaled[:, None] * inv_freq).astype(np.float64)
        table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        if arithmetic == "float32":
            return table.astype(np.float32) * np.float32(self.attention_scaling)
        return (table * self.attention_scaling).astype(np.float32)

    def tolerance(self, positions: Any, dtype: str = "float32") -> F64:
        """Largest absolute difference between a correct engine's table and `cos_sin`: (positions, rotary_dim).

        An engine's single-precision frequency has an error of a few ulp, which the position p multiplies. The bound is
        p * inv_freq * 2**-20 on the angle, plus the rounding of cos and sin, plus the cast to `dtype`.
        """
        t = np.arange(positions) if np.ndim(positions) == 0 else np.asarray(positions)
        angle = t.astype(np.float64)[:, None] * self.inv_freq * 2.0**-20
        half = angle + 2.0**-22 + _EPS[dtype]
        return self.attention_scaling * np.concatenate([half, half], axis=1)

    def check_frequencies(self, inv_freq: Any, attention_scaling: float, where: str = "engine") -> float:
        """The largest relative difference between an engine's frequencies, (rotary_dim / 2,), and this encoding.

        Raises:
            GatedevalError: another number of frequencies, or other frequencies, or another factor on cos and sin.
        """
        live = np.asarray(inv_freq, dtype=np.float64)
        if live.shape != self.inv_freq.shape:
            raise GatedevalError(f"{where}: {live.size} rotary frequencies, expected {self.inv_freq.size}")
        off = float(np.abs(live / self.inv_freq - 1).max())
        if off > 1e-5 or abs(attention_scaling - self.attention_scaling) > 1e-6:
            raise GatedevalError(
                f"{where}: the rotary frequencies differ from the setting's by a factor of up to {1 + off:.3g}, and the"
                f" factor on cos and sin is {attention_scaling:g}, expected {self.attention_scaling:g}"
            )
        return off

    def check_table(
        self, table: Any, *, rows: int | None = None, dtype: str = "float32", where: str = "engine"
    ) -> float:
        """The largest absolute difference between an engine's table, (rows, rotary_dim), and this encoding.

        `rows`: rows that the engine's longest prompt needs (default: `length`). `where`: names the engine in errors.

        Raises:
            GatedevalError: the table is too short, has another width, or encodes something else.
        """
        live = np.asarray(table, dtype=np.float64)
        rows = self.length if rows is None else rows
        if live.ndim != 2 or live.shape[1] != self.rotary_dim or live.shape[0] < rows:
            raise GatedevalError(
                f"{where}: rotary table has shape {live.shape}, the context setting needs at least "
                f"({rows}, {self.rotary_dim}); the engine did not take the setting"
            )
        # Compare all early positions, then fewer and fewer, and the last. A few rows show a wrong base or factor.
        picks = np.unique(np.concatenate([np.arange(min(rows, 256)), np.geomspace(1, rows, 512).astype(int) - 1]))
        off = np.abs(live[picks] - self.cos_sin(picks))
        excess = off - self.tolerance(picks, dtype)
        if not np.all(excess <= 0):  # `not all(<=)` instead of `any(>)`, so that NaN fails
            row, column = np.unravel_index(int(np.argmax(np.nan_to_num(excess, nan=np.inf))), excess.shape)
            raise GatedevalError(
                f"{where}: rotary table differs from the context setting: position {picks[row]}, column {column} is "
                f"{live[picks[row], column]:.6f}, should be {self.cos_sin(picks[row : row + 1])[0, column]:.6f} "
                f"(attention factor {self.attention_scaling:.4f})"
            )
        return float(off.max())


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on cos and sin: 0.1 ln(factor) + 1 (Peng et al., section 3.4, sqrt(1/t)); 1 for factors up to 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_attention_factor(factor: float, original: int) -> float:
    """LongRoPE's factor on cos and sin: sqrt(1 + ln(factor) / ln(original)); 1 for factors up to 1."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def ntk_base(base: float, factor: float, dim: int) -> float:
    """The base of NTK-aware scaling: the slowest of dim / 2 pairs becomes `factor` times slower, the fastest stays."""
    return base * factor ** (dim / (dim - 2)) if dim > 2 else base


def frequencies(parameters: Mapping[str, Any], dim: int, length: int, dtype: Any) -> tuple[NDArray[Any], float]:
    """(inverse frequencies (dim / 2,), factor on cos and sin), in `dtype`: np.float64, or np.float32 like engines.

    Raises:
        GatedevalError: `dim` is not a positive even number, or longrope has another number of factors than pairs.
    """
    if dim <= 0 or dim % 2:
        raise GatedevalError(f"config.json: rotary dimension {dim} is not a positive even number")
    kind, base = parameters["rope_type"], float(parameters["rope_theta"])
    factor = float(parameters.get("factor", 1.0))
    original = int(parameters.get("original_max_position_embeddings", length))
    if kind == "ntk":
        base = ntk_base(base, factor, dim)
    if kind == "dynamic":
        # Dynamic NTK's base at `length` tokens. An engine builds one table, so shorter prompts get the same base.
        base *= (factor * max(length, original) / original - (factor - 1)) ** (dim / (dim - 2))
    exponent = np.arange(0, dim, 2, dtype=dtype) / dtype(dim)
    # base ** (2 i / dim), correctly rounded to `dtype`. The base is narrowed first, as torch does.
    period = np.power(np.float64(dtype(base)), exponent.astype(np.float64)).astype(dtype)
    inv_freq = dtype(1) / period
    if kind == "linear":
        return inv_freq / dtype(factor), 1.0
    if kind == "longrope":
        return _longrope(parameters, period, length > original, dtype), float(parameters["attention_factor"])
    if kind == "llama3":
        return _llama3(parameters, inv_freq, factor, original, dtype), 1.0
    if kind != "yarn":
        return inv_freq, 1.0
    low, high = _yarn_range(parameters, dim, base, original)
    ramp = np.clip((np.arange(dim // 2, dtype=dtype) - dtype(low)) / dtype(high - low), 0, 1).astype(dtype)
    keep = dtype(1) - ramp  # 1: fast dimensions, unchanged; 0: slow dimensions, interpolated by the factor
    mixed = (dtype(1) / (dtype(factor) * period)) * (dtype(1) - keep) + inv_freq * keep
    return mixed, float(parameters["attention_factor"])


def _yarn_range(parameters: Mapping[str, Any], dim: int, base: float, original: int) -> tuple[float, float]:
    """The pair indices between which YaRN's ramp runs. They follow from `original`, never max_position_embeddings.

    The paper's ramp is linear in the number of rotations r = original / wavelength, from beta_slow to beta_fast. The
    authors' code, transformers and vLLM have a ramp that is linear in the pair index between those two points, rounded
    outwards. Checkpoints were trained with the latter, so this function computes the latter.
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
    """Llama 3.1's frequencies: slow ones are divided by the factor, fast ones kept, those between blended linearly."""
    slow, fast = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    turns = dtype(original) / (dtype(2 * math.pi) / inv_freq)
    blend = np.clip((turns - dtype(slow)) / dtype(fast - slow), 0, 1) if fast != slow else (turns >= slow).astype(dtype)
    return (dtype(1) - blend) * inv_freq / dtype(factor) + blend * inv_freq


def _longrope(parameters: Mapping[str, Any], period: NDArray[Any], long: bool, dtype: Any) -> NDArray[Any]:
    """LongRoPE's frequencies: every pair has a factor, one up to the original length and another one beyond it.

    As in vLLM, the longest length of the setting decides which ones all prompts have.
    """
    name = "long_factor" if long else "short_factor"
    factors = np.asarray(parameters[name], dtype=dtype)
    if factors.shape != period.shape:
        raise GatedevalError(
            f"longrope: {name} has {factors.size} numbers, and the model rotates {period.size} pairs of dimensions;"
            " give one number per pair"
        )
    return np.asarray(dtype(1) / (factors * period))
