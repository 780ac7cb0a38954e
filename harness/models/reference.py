"""The paper's model in plain torch: a Qwen3-type decoder whose attention output is gated.

Gated Attention for LLMs (arXiv 2505.06708), section 3.1, position G1: after scaled dot-product attention and before the
output projection, each query head's output is multiplied by sigmoid(X W_gate), where X is the layer's pre-normed hidden
state. Tests compare this model with the vLLM plugin, so it shares no code with the plugin except the layout's sizes,
the config and the rotary tables of `harness.rope`. The demo's models are trained with it, and a `Trace` records
attention weights and gates.

Shapes: B sequences, T tokens, E hidden size, H query heads, K key/value heads, D head_dim, G gate values per head
(0 none, 1 headwise, D elementwise), V vocabulary. Positions start at 0; there is no padding and no KV cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.config import ContextSetting
from harness.models.checkpoint import inspect
from harness.models.layout import (
    ARCHITECTURE,
    HEADWISE_FLAG,
    MOE_ARCHITECTURE,
    Layout,
    gate_from_flags,
    has_experts,
    number_of_experts,
)
from harness.models.variant import Variant, canonical
from harness.models.writing import write_checkpoint
from harness.rope import context
from harness.types import Gate, GatedevalError, GateLayout

NATIVE = ContextSetting(label="native")


@dataclass
class Trace:
    """Attention weights, outputs and gates of one forward pass, one entry per layer.

    `attention`: (B, H, T, T) weights, row = query. `outputs`: (B, T, H, D) of scaled dot-product attention, before
    norm and gate. `projected`: (B, T, H, D) what o_proj reads, after norm and gate. `gates`: (B, T, heads, G) gate
    values after their activation; no entries without a gate. `stream`: (B, T, E) residual stream after the layer.
    """

    attention: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    projected: list[Tensor] = field(default_factory=list)
    gates: list[Tensor] = field(default_factory=list)
    stream: list[Tensor] = field(default_factory=list)

    def first_token(self) -> Tensor:
        """Mean attention weight on key position 0 over all queries, per layer and head: (layers, H)."""
        return torch.stack([a[..., 0].mean(dim=(0, 2)) for a in self.attention])

    def gate_mean(self) -> Tensor:
        """Mean gate over tokens (and head dimensions), per layer and head: (layers, H)."""
        return torch.stack([g.mean(dim=(0, 1, 3)) for g in self.gates])


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) · weight, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) -> (..., size), in x's dtype."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


def rotate(x_BTHD: Tensor, cos_sin_TD: Tensor) -> Tensor:
    """RoPE (Su et al. 2021, section 3.4.2): rotate dimensions i and i + D/2 together. `cos_sin_TD`: [cos | sin]."""
    cos, sin = cos_sin_TD[:, None, :].chunk(2, dim=-1)
    a, b = x_BTHD.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x_BTHD.dtype)


class Attention(nn.Module):
    """Grouped-query attention with q/k norm and an output gate packed into q_proj, as in the released checkpoints.

    q_proj holds, per KV head, the query rows of the heads in its group, then their gate rows (with `gate_layout`
    per-head: for each head its query rows, then its gate rows).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, bias, eps = config["hidden_size"], bool(config.get("qkv_bias")), config["rms_norm_eps"]
        self.layout = layout = Layout.from_config(config)
        heads, kv = layout.num_heads * layout.head_dim, layout.num_kv_heads * layout.head_dim
        self.q_proj = nn.Linear(hidden, layout.q_rows, bias=bias)
        self.k_proj = nn.Linear(hidden, kv, bias=bias)
        self.v_proj = nn.Linear(hidden, kv, bias=bias)
        self.o_proj = nn.Linear(heads, hidden, bias=bias)
        self.variant = Variant.from_config(config)
        self.gate_proj: nn.Linear | None = None
        if gate := self.variant.gate:
            rows = gate.rows(config)
            if gate.input_dependent:
                self.gate_proj = nn.Linear(hidden, rows, bias=bias)
            else:
                self.gate_bias = nn.Parameter(torch.zeros(rows))
        self.sdpa_norm = RMSNorm(layout.head_dim, eps) if self.variant.sdpa_norm else None
        normed = config.get("use_qk_norm", True)
        self.q_norm = RMSNorm(layout.head_dim, eps) if normed else None
        self.k_norm = RMSNorm(layout.head_dim, eps) if normed else None

    def forward(self, x_BTE: Tensor, cos_sin_TD: Tensor, trace: Trace | None = None) -> Tensor:
        """(B, T, E) pre-normed hidden states -> (B, T, E). Appends this layer's weights and gates to `trace`."""
        (batch, length, _), at = x_BTE.shape, self.layout
        group = at.num_heads // at.num_kv_heads
        blocks = at.num_heads if at.packing == "per-head" else at.num_kv_heads  # [queries | gates] of each
        each = at.num_heads // blocks
        packed = self.q_proj(x_BTE).view(batch, length, blocks, each * (at.head_dim + at.gate_dim))
        q, gate = packed.split([each * at.head_dim, each * at.gate_dim], dim=-1)
        q_BTHD = q.reshape(batch, length, at.num_heads, at.head_dim)
        k_BTKD = self.k_proj(x_BTE).view(batch, length, at.num_kv_heads, at.head_dim)
        v_BTKD = self.v_proj(x_BTE).view(batch, length, at.num_kv_heads, at.head_dim)
        s = self.gate_values(x_BTE)
        q_BTHD = self.gated("query", q_BTHD, s)
        k_BTKD, v_BTKD = self.gated("key", k_BTKD, s), self.gated("value", v_BTKD, s)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHD, k_BTKD = self.q_norm(q_BTHD), self.k_norm(k_BTKD)
        q_BHTD = rotate(q_BTHD, cos_sin_TD).transpose(1, 2)
        k_BHTD = rotate(k_BTKD, cos_sin_TD).transpose(1, 2).repeat_interleave(group, dim=1)
        v_BHTD = v_BTKD.transpose(1, 2).repeat_interleave(group, dim=1)
        if trace is None:
            out = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        else:
            weights = causal_attention(q_BHTD, k_BHTD)
            trace.attention.append(weights)
            out = weights @ v_BHTD
        out_BTHD = out.transpose(1, 2)
        if trace is not None:
            trace.outputs.append(out_BTHD)
        if self.sdpa_norm is not None:
            out_BTHD = self.sdpa_norm(out_BTHD)
        if at.gate_dim:
            gate_BTHG = torch.sigmoid(gate.reshape(batch, length, at.num_heads, at.gate_dim))
            out_BTHD = out_BTHD * gate_BTHG  # headwise: one value for all D dimensions of the head
            if trace is not None:
                trace.gates.append(gate_BTHG)
        out_BTHD = self.gated("sdpa_output", out_BTHD, s)
        if trace is not None:
            trace.projected.append(out_BTHD)
            if s is not None:
                trace.gates.append(s.expand(batch, length, *s.shape[2:]))
        block_BTE = self.o_proj(out_BTHD.reshape(batch, length, -1))
        return self.gated("attn_output", block_BTE[:, :, None], s)[:, :, 0]

    def gate_values(self, x_BTE: Tensor) -> Tensor | None:
        """The values s of the gate that `attn_gate` describes, (B, T, heads or 1, G); None without one.

        Paper, section 2.2: s = activation(X W), or of a learned constant where the gate does not depend on the input.
        """
        gate = self.variant.gate
        if gate is None:
            return None
        logits = self.gate_bias[None, None] if self.gate_proj is None else self.gate_proj(x_BTE)
        open_share = torch.sigmoid(logits)
        s = {
            "sigmoid": open_share,
            "silu": logits * open_share,
            "ns_sigmoid": (1 + open_share) / 2,
            "identity": logits,
        }[gate.activation]
        heads = gate.heads(self.layout.num_heads, self.layout.num_kv_heads)
        return s.view(*s.shape[:2], heads, -1)

    def gated(self, position: str, y_BTHD: Tensor, s: Tensor | None) -> Tensor:
        """`y_BTHD` with the gate applied, if this is its position."""
        gate = self.variant.gate
        if gate is None or s is None or gate.position != position:
            return y_BTHD
        return y_BTHD * s if gate.mode == "multiply" else y_BTHD + s


def causal_attention(q_BHTD: Tensor, k_BHTD: Tensor) -> Tensor:
    """softmax(q·k / sqrt(D)) over the keys up to each query: (B, H, T, T)."""
    scores = q_BHTD @ k_BHTD.transpose(-1, -2) * q_BHTD.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1)


class SwiGLU(nn.Module):
    """The MLP: down(silu(gate(x)) · up(x)). Its `gate_proj` has nothing to do with the attention output gate."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x_BTE: Tensor) -> Tensor:
        """(B, T, E) -> (B, T, E)."""
        return self.down_proj(F.silu(self.gate_proj(x_BTE)) * self.up_proj(x_BTE))


class Experts(nn.Module):
    """A mixture of experts, as in Qwen3-MoE: the router's softmax over all experts, the k largest of them, their sum.

    y = sum of p_i · expert_i(x) over the k experts with the largest p = softmax(x W_router); with `norm_topk_prob` the
    k values of p are divided by their sum first.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, number = config["hidden_size"], number_of_experts(config)
        self.k, self.normed = config["num_experts_per_tok"], bool(config.get("norm_topk_prob"))
        self.gate = nn.Linear(hidden, number, bias=False)  # the router; it has nothing to do with the attention's gate
        self.experts = nn.ModuleList(SwiGLU(hidden, config["moe_intermediate_size"]) for _ in range(number))

    def forward(self, x_BTE: Tensor) -> Tensor:
        """(B, T, E) -> (B, T, E). Every expert sees only the tokens that chose it."""
        x_NE = x_BTE.reshape(-1, x_BTE.shape[-1])
        share_NK, chosen_NK = self.gate(x_NE).float().softmax(-1).topk(self.k, dim=-1)
        if self.normed:
            share_NK = share_NK / share_NK.sum(-1, keepdim=True)
        out_NE = torch.zeros_like(x_NE)
        for number, expert in enumerate(self.experts):
            token, rank = (chosen_NK == number).nonzero(as_tuple=True)
            if len(token):
                out_NE.index_add_(0, token, expert(x_NE[token]) * share_NK[token, rank, None].to(x_NE.dtype))
        return out_NE.view_as(x_BTE)


class Layer(nn.Module):
    """One decoder layer: attention, then MLP; each reads the normed residual stream and is added to it."""

    def __init__(self, config: Mapping[str, Any], number: int) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn = Attention(config)
        self.mlp: Any = Experts(config) if has_experts(config, number) else SwiGLU(hidden, config["intermediate_size"])
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        sandwich = self.self_attn.variant.sandwich_norm
        self.attn_output_layernorm = RMSNorm(hidden, eps) if sandwich else nn.Identity()
        self.mlp_output_layernorm = RMSNorm(hidden, eps) if sandwich else nn.Identity()

    def forward(self, x_BTE: Tensor, cos_sin_TD: Tensor, trace: Trace | None = None) -> Tensor:
        """(B, T, E) residual stream -> (B, T, E)."""
        x_BTE = x_BTE + self.attn_output_layernorm(self.self_attn(self.input_layernorm(x_BTE), cos_sin_TD, trace))
        return x_BTE + self.mlp_output_layernorm(self.mlp(self.post_attention_layernorm(x_BTE)))


class Decoder(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, ids_BT: Tensor, cos_sin_TD: Tensor, trace: Trace | None = None) -> Tensor:
        """(B, T) token ids -> (B, T, E) hidden states after the final norm."""
        x_BTE = self.embed_tokens(ids_BT)
        for layer in self.layers:
            x_BTE = layer(x_BTE, cos_sin_TD, trace)
            if trace is not None:
                trace.stream.append(x_BTE)
        return self.norm(x_BTE)


class Reference(nn.Module):
    """The whole model. Its tensors have the names of the released checkpoints.

    `config`: a checkpoint's config.json, with `head_dim` and `num_key_value_heads`.

    Raises:
        GatedevalError: the config asks for another activation or for sliding-window attention.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        if config.get("hidden_act", "silu") != "silu" or config.get("use_sliding_window"):
            raise GatedevalError("the reference model has SwiGLU with silu and full attention only; see config.json")
        self.config = dict(config)
        self.model = Decoder(config)
        self.lm_head: nn.Linear | None = None
        if not config.get("tie_word_embeddings"):
            self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    @property
    def gate(self) -> Gate:
        """none, headwise or elementwise."""
        return gate_from_flags(self.config)

    def cos_sin(self, length: int, setting: ContextSetting = NATIVE) -> Tensor:
        """Rotary tables (length, D) float32, [cos | sin], of a context setting (`harness.rope.context`)."""
        return torch.from_numpy(context.rope_of(setting, self.config).cos_sin(length))

    def head(self, hidden: Tensor) -> Tensor:
        """(..., E) final hidden states -> (..., V) logits."""
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(hidden, weight)

    def forward(self, ids_BT: Tensor, cos_sin_TD: Tensor | None = None, trace: Trace | None = None) -> Tensor:
        """(B, T) token ids -> (B, T, V) next-token logits.

        `cos_sin_TD`: rotary tables; None: the checkpoint's own. `trace`: filled if given.
        """
        if cos_sin_TD is None:
            cos_sin_TD = self.cos_sin(ids_BT.shape[1])
        return self.head(self.model(ids_BT, cos_sin_TD, trace))

    @torch.inference_mode()
    def generate(
        self, ids: Sequence[int], tokens: int, *, setting: ContextSetting = NATIVE, stop: Iterable[int] = ()
    ) -> list[int]:
        """Greedy continuation of one prompt: at most `tokens` token ids, without the stop token.

        There is no KV cache: every new token costs a forward pass over the whole sequence.
        """
        answer: list[int] = []
        cos_sin, ends = self.cos_sin(len(ids) + tokens, setting), set(stop)
        for _ in range(tokens):
            ids_BT = torch.tensor([[*ids, *answer]])
            hidden = self.model(ids_BT, cos_sin[: ids_BT.shape[1]])
            token = int(self.head(hidden[0, -1]).argmax())
            if token in ends:
                break
            answer.append(token)
        return answer

    def save(self, target: Path, dtype: torch.dtype = torch.bfloat16, **config: Any) -> None:
        """Write a checkpoint folder in the released format: weights rounded to `dtype`, `config` entries replaced."""
        tensors = {name: tensor.detach().to(dtype) for name, tensor in self.state_dict().items()}
        write_checkpoint(target, {**self.config, **config}, tensors)


def load(path: Path | str, gate_layout: GateLayout | None = None) -> Reference:
    """A checkpoint folder as a float32 model in eval mode. Every tensor of the checkpoint is used and none is missing.

    `gate_layout`: where its gate rows are, if config.json does not say it.

    Raises:
        GatedevalError: `harness.models.checkpoint.inspect` refuses the folder, or the model is of another family.
    """
    from safetensors.torch import load_file

    checkpoint = inspect(path, gate_layout)
    if checkpoint.layout is None or (
        HEADWISE_FLAG not in checkpoint.config
        and checkpoint.architecture not in ("Qwen3ForCausalLM", ARCHITECTURE, MOE_ARCHITECTURE)
    ):
        raise GatedevalError(f"{path}: {checkpoint.architecture} is not a model of the paper's family (Qwen3)")
    model = Reference(checkpoint.config)
    tensors: dict[str, Tensor] = {}
    for file in checkpoint.weight_files:
        tensors.update(load_file(file))
    if model.lm_head is None:
        tensors.pop("lm_head.weight", None)
    model.load_state_dict({canonical(name): tensor.float() for name, tensor in tensors.items()}, strict=True)
    return model.eval()
