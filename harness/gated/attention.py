"""Gated attention as vLLM layers: one fused query-key-value-gate projection, and the attention block around it.

Shapes: T tokens, H query heads and K KV heads on this tensor-parallel rank, D head_dim, G gate values a head.
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
    """Query, key, value and gate in one column-parallel projection; per rank the output is [q | k | v | gate].

    The checkpoint's packed q_proj (see `layout`) is taken apart head by head before sharding, so that tensor
    parallelism is right for any rank count that divides the query heads, also beyond the number of KV heads (which are
    then replicated). Only unquantised weights: the packing of a quantised q_proj is not defined by any release.

    Raises:
        ValueError: a tensor whose shape is not the planned one.
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
        kv_size = self.num_kv_heads * layout.head_dim
        self.local_sizes = [self.num_heads * layout.head_dim, kv_size, kv_size, self.num_heads * layout.gate_dim]
        self.output_sizes = [size * tp_size for size in self.local_sizes]
        ColumnParallelLinear.__init__(
            self, hidden_size, sum(self.output_sizes), bias=bias, gather_output=False, quant_config=None, prefix=prefix
        )

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor, loaded_shard_id: Any = None) -> None:
        """Copy this rank's rows of a checkpoint's q_proj (with its gate rows), k_proj or v_proj, weight or bias."""
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
        if loaded_shard_id == "q" and layout.gate_dim:
            self._slot(param, 3).copy_(loaded_weight[torch.from_numpy(gates)])

    weight_loader_v2 = weight_loader  # vLLM picks one of the two by quantisation method; here they are the same

    def _slot(self, param: nn.Parameter, part: int) -> torch.Tensor:
        """Where part 0..3 (q, k, v, gate) lies in this rank's parameter."""
        return param.data.narrow(0, sum(self.local_sizes[:part]), self.local_sizes[part])


class GatedAttention(nn.Module):
    """Grouped-query attention with optional q/k norm and an output gate (paper section 3.1, position G1).

    `qkv_bias` puts a bias on q, k, v, the gate and o_proj, as the authors' code does; under tensor parallelism o_proj's
    bias is added on the first rank alone (RowParallelLinear sees to it), so once.
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
        """(T, hidden) pre-normed hidden states -> (T, hidden)."""
        qkvg, _ = self.qkv_proj(hidden_states)
        q, k, v, gate = qkvg.split(self.qkv_proj.local_sizes, dim=-1)  # the gate is neither normed nor rotated
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q.view(-1, self.num_heads, self.head_dim)).view(q.shape)
            k = self.k_norm(k.view(-1, self.num_kv_heads, self.head_dim)).view(k.shape)
        q, k = self.rotary_emb(positions, q, k)
        output, _ = self.o_proj(self._gated(self.attn(q, k, v), gate))
        return output

    def _gated(self, attn_TE: torch.Tensor, gate_TG: torch.Tensor) -> torch.Tensor:
        """(T, H·D) attention output times sigmoid of (T, H·G) gate logits, in the model's dtype.

        Compiled, the two become one kernel. Run eagerly, both are done in place, with the same bits: nobody reads the
        attention output or the gate's part of the projection again, and at 8K tokens two fresh tensors cost more than
        the arithmetic.
        """
        if self.gate_dim == 0:
            return attn_TE
        compiling = torch.compiler.is_compiling()
        gate_TG = torch.sigmoid(gate_TG) if compiling else gate_TG.sigmoid_()
        if self.gate_dim == self.head_dim:  # no views where none are needed: in a decode step they cost like arithmetic
            return attn_TE * gate_TG if compiling else attn_TE.mul_(gate_TG)
        attn_THD, gate_TH1 = attn_TE.view(-1, self.num_heads, self.head_dim), gate_TG.unsqueeze(-1)
        if compiling:
            return (attn_THD * gate_TH1).view(attn_TE.shape)
        attn_THD.mul_(gate_TH1)
        return attn_TE
