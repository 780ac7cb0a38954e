"""Gated attention as vLLM layers: one fused projection for query, key, value and gate, and the attention around it.

    Y = concat_heads(softmax(Q K^T / sqrt(D)) V * sigmoid(G)) W_o        [Q | K | V | G] = X W

Shapes: T tokens, E hidden size, H query heads and K KV heads on this tensor-parallel rank, D head_dim, G gate values
per head (0 none, 1 headwise, D elementwise).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.config import CacheConfig
from vllm.distributed import divide, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope

from harness.models.layout import Layout


class QKVGParallelLinear(QKVParallelLinear):
    """One column-parallel projection for query, key, value and gate: (T, E) -> (T, H·D + 2·K·D + H·G + Z).

    The output is [q|k|v|gate|zeros]; the Z zeros align each token's row (`Layout.fused_sizes`).

    The checkpoint's packed q_proj (see `harness.models.layout`) is split into query and gate rows, head by head, before
    it is sharded. Tensor parallelism thus works for any number of ranks that divides the query heads. With more ranks
    than KV heads, KV heads are replicated. Weights must be unquantised: no release defines a packed quantised q_proj.

    Raises:
        ValueError: a tensor of the checkpoint has another shape than the layout needs.
    """

    def __init__(self, hidden_size: int, layout: Layout, *, bias: bool, prefix: str) -> None:
        tp_size = get_tensor_model_parallel_world_size()
        self.layout = layout
        self.hidden_size = hidden_size
        self.head_size = self.v_head_size = layout.head_dim
        self.total_num_heads, self.total_num_kv_heads = layout.num_heads, layout.num_kv_heads
        self.num_heads = divide(layout.num_heads, tp_size)
        if tp_size >= layout.num_kv_heads:
            self.num_kv_heads, self.num_kv_head_replicas = 1, divide(tp_size, layout.num_kv_heads)
        else:
            self.num_kv_heads, self.num_kv_head_replicas = divide(layout.num_kv_heads, tp_size), 1
        self.local_sizes = layout.fused_sizes(tp_size)
        self.output_sizes = [size * tp_size for size in self.local_sizes]
        ColumnParallelLinear.__init__(
            self, hidden_size, sum(self.output_sizes), bias=bias, gather_output=False, quant_config=None, prefix=prefix
        )

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor, loaded_shard_id: Any = None) -> None:
        """Copy this rank's rows of the checkpoint's q_proj (with its gate rows), k_proj or v_proj into `param`.

        `loaded_weight`: the whole tensor of the checkpoint, a weight (rows, E) or a bias (rows,). `loaded_shard_id`:
        "q", "k" or "v".
        """
        layout = self.layout
        kv_rows = layout.num_kv_heads * layout.head_dim
        rows = {"q": layout.q_rows, "k": kv_rows, "v": kv_rows}[loaded_shard_id]
        if loaded_weight.shape != (rows, *param.shape[1:]):
            raise ValueError(
                f"{self.prefix}: {loaded_shard_id}_proj of the checkpoint is {tuple(loaded_weight.shape)}, a"
                f" {layout.gate} gate with {layout.num_heads}/{layout.num_kv_heads} heads of {layout.head_dim} needs"
                f" {(rows, *param.shape[1:])}"
            )
        values, gates = layout.shard(loaded_shard_id, self.tp_size, self.tp_rank)
        part = {"q": 0, "k": 1, "v": 2}[loaded_shard_id]
        self._slot(param, part).copy_(loaded_weight[torch.from_numpy(values)])
        if loaded_shard_id == "q":
            self._slot(param, 3).copy_(loaded_weight[torch.from_numpy(gates)])
            self._slot(param, 4).zero_()

    weight_loader_v2 = weight_loader  # vLLM calls one of the two, depending on the quantisation method

    def _slot(self, param: nn.Parameter, part: int) -> torch.Tensor:
        """The slice of this rank's parameter that holds part 0 (q), 1 (k), 2 (v), 3 (gate) or 4 (zeros)."""
        return param.data.narrow(0, sum(self.local_sizes[:part]), self.local_sizes[part])


class GatedAttention(nn.Module):
    """Grouped-query attention with optional q/k norm and an output gate (paper section 3.1, position G1).

    `qkv_bias` puts a bias on q, k, v, the gate and o_proj, as in the authors' code. Under tensor parallelism,
    RowParallelLinear adds o_proj's bias on the first rank only, so the sum over ranks has it once.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        hidden_size: int,
        rope_parameters: dict[str, Any],
        max_position: int,
        rms_norm_eps: float,
        qkv_bias: bool,
        use_qk_norm: bool,
        cache_config: CacheConfig | None,
        prefix: str,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.head_dim, self.gate_dim = layout.head_dim, layout.gate_dim
        self.qkv_proj = QKVGParallelLinear(hidden_size, layout, bias=qkv_bias, prefix=f"{prefix}.qkv_proj")
        self.num_heads, self.num_kv_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.o_proj = RowParallelLinear(
            layout.num_heads * layout.head_dim, hidden_size, bias=qkv_bias, prefix=f"{prefix}.o_proj"
        )
        self.rotary_emb = get_rope(layout.head_dim, max_position=max_position, rope_parameters=rope_parameters)
        self.attn = Attention(
            self.num_heads,
            layout.head_dim,
            layout.head_dim**-0.5,
            num_kv_heads=self.num_kv_heads,
            cache_config=cache_config,
            prefix=f"{prefix}.attn",
        )
        self.q_norm = RMSNorm(layout.head_dim, eps=rms_norm_eps) if use_qk_norm else None
        self.k_norm = RMSNorm(layout.head_dim, eps=rms_norm_eps) if use_qk_norm else None

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """(T,) positions and (T, E) pre-normed hidden states -> (T, E)."""
        qkvg, _ = self.qkv_proj(hidden_states)
        q, k, v, gate, _ = qkvg.split(self.qkv_proj.local_sizes, dim=-1)  # (T, H·D), (T, K·D), (T, K·D), (T, H·G)
        if self.q_norm is not None and self.k_norm is not None:  # per head; the gate is neither normed nor rotated
            q_THD = q.view(-1, self.num_heads, self.head_dim)
            k_TKD = k.view(-1, self.num_kv_heads, self.head_dim)
            q, k = self.q_norm(q_THD).view(q.shape), self.k_norm(k_TKD).view(k.shape)
        q, k = self.rotary_emb(positions, q, k)
        output, _ = self.o_proj(self.apply_gate(self.attn(q, k, v), gate))
        return output

    def apply_gate(self, attn_out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """(T, H·D) attention output times sigmoid of (T, H·G) gate logits -> (T, H·D), in the model's dtype.

        torch.compile makes one kernel of the two. In eager mode both run in place and give the same bits: nothing reads
        the attention output or the gate logits again, and at 8K tokens two new tensors cost more than the arithmetic.
        """
        if self.gate_dim == 0:
            return attn_out
        compiling = torch.compiler.is_compiling()
        gate = torch.sigmoid(gate) if compiling else gate.sigmoid_()
        if self.gate_dim == self.head_dim:  # no views here: in a decode step they cost as much as the arithmetic
            return attn_out * gate if compiling else attn_out.mul_(gate)
        attn_THD, gate_TH1 = attn_out.view(-1, self.num_heads, self.head_dim), gate.unsqueeze(-1)
        if compiling:
            return (attn_THD * gate_TH1).view(attn_out.shape)
        attn_THD.mul_(gate_TH1)
        return attn_out
