"""Where the gates of other families are in vLLM's own attention classes: which module's output has their logits.

Keyed by the name of vLLM's class, whose code defines layout and activation; attributes with the same names mean other
things elsewhere. Shapes: T tokens, H query heads of this rank, G gate values per head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GateSource:
    """`module`: its forward output has the gate's logits. `values`: that output -> gate values (T, H, G)."""

    module: nn.Module
    values: Callable[[Any], Tensor]


def gate_source(attention: Any) -> GateSource | None:
    """Where the gate of one of vLLM's own attention modules is computed; None: it has none, or is not known here."""
    kind = type(attention).__name__
    if kind == "Qwen3NextAttention" and attention.attn_output_gate:  # Qwen3.5's too
        return GateSource(attention.qkv_proj, lambda output: _per_head(attention, output))
    name, activation = _separate(kind, attention)
    module = getattr(attention, name, None) if name else None
    if module is None:
        return None

    def values(output: Any) -> Tensor:
        logits = output[0]  # vLLM's linear layers return (output, bias)
        return activation(logits.float()).view(logits.shape[0], attention.num_heads, -1)

    return GateSource(module, values)


def _per_head(attention: Any, output: Any) -> Tensor:
    """Qwen3-Next: the projection's output begins with [query | gate] of each head, head_dim values each."""
    packed = output[0][:, : 2 * attention.q_size]
    both = packed.view(packed.shape[0], attention.num_heads, 2, attention.head_dim)
    return torch.sigmoid(both[:, :, 1].float())


def _separate(kind: str, attention: Any) -> tuple[str, Callable[[Tensor], Tensor]]:
    """(attribute with the gate's matrix, activation) of a class with a matrix of its own; ("", ...) for others."""
    if kind == "AfmoeAttention":
        return "gate_proj", torch.sigmoid
    if kind == "Step3p5Attention":
        return "g_proj", torch.sigmoid
    if kind == "MuseGlimmerAttention":
        return "output_gate_proj", torch.sigmoid
    if kind == "LagunaAttention":
        return "g_proj", F.softplus
    if kind == "K2HorizonAttention":
        silu = attention.gate_func == "silu"
        return "gate_proj", F.silu if silu else lambda logits: F.softplus(logits, beta=math.log(2))
    return "", torch.sigmoid
