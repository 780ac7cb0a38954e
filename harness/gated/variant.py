"""The paper's other gates and norms as vLLM layers (section 2.2): gate positions G1 to G5, activations, sandwich norm.

Shapes: T tokens, E hidden size, D head_dim, N heads with gate values on this tensor-parallel rank (query heads, KV
heads, or 1 for a shared gate), G gate values per head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.layernorm import RMSNorm

from harness.gated.attention import GatedAttention
from harness.models.variant import AttnGate, Variant, canonical


class GateLayer(nn.Module):
    """Gate values s = activation(X W^T + b), or activation(constant), for the heads of this rank: (T, E) -> (T, N, G).

    Each rank holds the rows of its own heads; of KV heads that several ranks replicate, each of these ranks holds a
    copy. `first_head`, `num_heads`: which of the checkpoint's gate heads this rank has.
    """

    def __init__(self, gate: AttnGate, config: Mapping[str, Any], *, bias: bool) -> None:
        super().__init__()
        self.gate = gate
        hidden = config["hidden_size"]
        total = gate.heads(config["num_attention_heads"], config["num_key_value_heads"])
        self.width = gate.width(config["head_dim"], hidden)
        tp, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        if gate.shared or gate.position == "attn_output":
            self.first_head, self.num_heads = 0, 1
        else:  # as vLLM divides query and KV heads: with more ranks than KV heads, ranks share one
            self.first_head, self.num_heads = rank * total // tp, max(1, total // tp)
        self.total_rows = total * self.width
        rows = self.num_heads * self.width
        shape = (rows, hidden) if gate.input_dependent else (rows,)
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(rows), requires_grad=False) if bias and gate.input_dependent else None
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                parameter.weight_loader = self._load  # type: ignore[attr-defined]

    def _load(self, parameter: nn.Parameter, loaded: torch.Tensor) -> None:
        """Copy this rank's rows of the checkpoint's tensor."""
        if loaded.shape != (self.total_rows, *parameter.shape[1:]):
            raise ValueError(
                f"a gate tensor of the checkpoint has the shape {tuple(loaded.shape)}, attn_gate in config.json means"
                f" {(self.total_rows, *parameter.shape[1:])}"
            )
        start = self.first_head * self.width
        parameter.data.copy_(loaded[start : start + parameter.shape[0]])

    def forward(self, x_TE: torch.Tensor) -> torch.Tensor:
        """(T, E) pre-normed hidden states -> (T, N, G), or (1, N, G) where the gate does not depend on the input."""
        logits = F.linear(x_TE, self.weight, self.bias) if self.gate.input_dependent else self.weight.unsqueeze(0)
        return _activation(self.gate.activation, logits).view(-1, self.num_heads, self.width)


def _activation(name: str, logits: torch.Tensor) -> torch.Tensor:
    if name == "sigmoid":
        return torch.sigmoid(logits)
    if name == "silu":
        return F.silu(logits)
    return 0.5 + 0.5 * torch.sigmoid(logits) if name == "ns_sigmoid" else logits


class VariantAttention(GatedAttention):
    """Attention with a gate that has tensors of its own, and with an optional RMSNorm on each head's output.

    The parameters of the gate are `attn_gate.weight` and `attn_gate.bias` (`renamed` maps the checkpoint's names):
    vLLM's loader takes every name with "gate_proj" in it for a part of the MLP.
    """

    def __init__(self, *args: Any, variant: Variant, config: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.variant = variant
        gate = variant.gate
        self.position = gate.position if gate else ""
        self.attn_gate = GateLayer(gate, config, bias=settings["qkv_bias"]) if gate else None
        self.sdpa_norm = RMSNorm(self.head_dim, eps=settings["rms_norm_eps"]) if variant.sdpa_norm else None

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """(T,) positions and (T, E) pre-normed hidden states -> (T, E)."""
        qkvg, _ = self.qkv_proj(hidden_states)
        q, k, v, packed_gate, _ = qkvg.split(self.qkv_proj.local_sizes, dim=-1)
        s = self.attn_gate(hidden_states) if self.attn_gate is not None else None
        q, k, v = (self._gated(at, t, s) for at, t in (("query", q), ("key", k), ("value", v)))
        if self.q_norm is not None and self.k_norm is not None:
            q_THD = q.reshape(-1, self.num_heads, self.head_dim)
            k_TKD = k.reshape(-1, self.num_kv_heads, self.head_dim)
            q, k = self.q_norm(q_THD).view(q.shape), self.k_norm(k_TKD).view(k.shape)
        q, k = self.rotary_emb(positions, q, k)
        out = self.attn(q, k, v)
        if self.sdpa_norm is not None:
            out = self.sdpa_norm(out.view(-1, self.num_heads, self.head_dim)).view(out.shape)
        out = self._gated("sdpa_output", self.apply_gate(out, packed_gate), s)
        output, _ = self.o_proj(out)
        return self._gated("attn_output", output, s)

    def _gated(self, position: str, y: torch.Tensor, s_TNG: torch.Tensor | None) -> torch.Tensor:
        """`y`, (T, heads * D) or (T, E), with the gate applied if this is the gate's position."""
        if s_TNG is None or position != self.position:
            return y
        assert self.attn_gate is not None
        size = y.shape[-1] if position == "attn_output" else self.head_dim
        y_THD = y.reshape(y.shape[0], -1, size)
        gated = y_THD * s_TNG if self.attn_gate.gate.mode == "multiply" else y_THD + s_TNG
        return gated.reshape(y.shape)


def renamed(name: str) -> str:
    """The parameter that holds a tensor of the checkpoint (see `VariantAttention`)."""
    return (
        canonical(name)
        .replace(".self_attn.gate_proj.", ".self_attn.attn_gate.")
        .replace(".self_attn.gate_bias", ".self_attn.attn_gate.weight")
    )
