"""The weights that training starts from: random, with a few heads prepared for looking up a value by its key.

A model of this size learns to look up values from about a hundred million tokens; the demo trains on a few million. So
some weights get structure. All embeddings share a direction: rotary attention can turn this constant into a relative
position, and it opens every gate to about 0.9. One head of layer 0 looks at the previous token. Output projections
start as partial transposes of value projections. Two heads of layer 1 write into subspaces that two heads of layer 2
compare. Training, with the attention loss, teaches which position to look at and when. The model cards say this too:
these models exist to test the tool.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.models.reference import Attention, Layer, Reference
from tasks.demo.recipe import WIDTHS

_EMBEDDING, _SHARED, _NORM, _OPEN, _MATCH = 0.06, 0.7, 1.5, 2.2, 0.5


def initialise(model: Reference, seed: int) -> None:
    """Set every weight of `model`. For one seed, weights that all arms have are equal in all of them."""
    generator = torch.Generator().manual_seed(seed)
    of_gates = torch.Generator().manual_seed(seed + 1)
    hidden, widest = model.config["hidden_size"], max(WIDTHS.values())
    # The component of a normalised embedding along the shared direction.
    constant = hidden**0.5 * _SHARED / (1 + _SHARED**2) ** 0.5

    def normal(*shape: int, scale: float = 1.0, by: torch.Generator = generator) -> Tensor:
        return torch.randn(*shape, generator=by) * scale

    shared = normal(hidden)
    shared /= shared.norm()
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding.copy_(normal(*embedding.shape, scale=_EMBEDDING) + shared * _EMBEDDING * _SHARED * hidden**0.5)
        basis = torch.linalg.qr(normal(hidden, hidden))[0]
        for number, layer in enumerate(model.model.layers):
            assert isinstance(layer, Layer)
            heads = _heads(layer.self_attn, number, normal, basis, shared / constant, model.config["rope_theta"])
            _write(layer.self_attn, *heads, shared / constant, normal(*_gate_shape(layer.self_attn), by=of_gates))
            inner = layer.mlp.gate_proj.weight.shape[0]
            for weight in (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight):
                weight.copy_(normal(widest, hidden, scale=hidden**-0.5)[:inner])
            layer.mlp.down_proj.weight.copy_(normal(hidden, widest, scale=0.35 * widest**-0.5)[:, :inner])


def _heads(
    attention: Attention, number: int, normal: Callable[..., Tensor], basis: Tensor, unit: Tensor, theta: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query (H, D, E), key (K, D, E), value (K, D, E) and output (H, E, D) weights of layer `number`.

    `unit` (E,): its product with a normalised embedding is about 1.
    """
    at, hidden = attention.layout, len(unit)
    group, scale = at.num_heads // at.num_kv_heads, hidden**-0.5
    key = normal(at.num_kv_heads, at.head_dim, hidden, scale=scale)
    value = normal(at.num_kv_heads, at.head_dim, hidden, scale=scale)
    query = 0.7 * key.repeat_interleave(group, 0) + normal(at.num_heads, at.head_dim, hidden, scale=0.7 * scale)
    output = 0.3 * value.repeat_interleave(group, 0).transpose(1, 2)
    output += normal(at.num_heads, hidden, at.head_dim, scale=0.2 * scale)
    first, second = basis[:, : at.head_dim], basis[:, at.head_dim : 2 * at.head_dim]
    if number == 0:  # head 0: the previous token, by the three fastest frequencies, turned one position back
        fast = torch.zeros(at.head_dim // 2)
        fast[:3] = 4.0
        turn = theta ** (-torch.arange(at.head_dim // 2) * 2 / at.head_dim)
        key[0] += torch.outer(torch.cat([fast, 0 * fast]), unit)
        query[0] += torch.outer(torch.cat([fast * turn.cos(), -fast * turn.sin()]), unit)
    if number == 1:  # heads 0 and 2 write into the subspaces that layer 2 compares
        output[0], output[group] = _MATCH * first, _MATCH * second
    if number == 2:  # compares these subspaces and copies the value to the output
        output += 0.7 * value.repeat_interleave(group, 0).transpose(1, 2)
        for kv in range(at.num_kv_heads):
            turned = torch.linalg.qr(normal(at.head_dim, at.head_dim))[0]
            both = 0.8 * (first.T + turned @ second.T)
            key[kv] = both + normal(at.head_dim, hidden, scale=0.5 * scale)
            for head in range(kv * group, (kv + 1) * group):
                query[head] = both + normal(at.head_dim, hidden, scale=0.5 * scale)
    return query, key, value, output


def _gate_shape(attention: Attention) -> tuple[int, int]:
    at = attention.layout
    return at.num_heads * at.gate_dim, attention.q_proj.weight.shape[1]


def _write(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, output: Tensor, unit: Tensor, gates: Tensor
) -> None:
    """Copy one layer's heads into its projections, in the row order of a checkpoint."""
    at, hidden = attention.layout, len(unit)
    packed = torch.zeros(at.q_rows, hidden)
    packed[torch.from_numpy(at.query_rows)] = query.reshape(-1, hidden)
    if at.gate_dim:
        packed[torch.from_numpy(at.gate_rows)] = 0.3 * hidden**-0.5 * gates + _OPEN * unit
    attention.q_proj.weight.copy_(packed)
    attention.k_proj.weight.copy_(key.reshape(-1, hidden))
    attention.v_proj.weight.copy_(value.reshape(-1, hidden))
    attention.o_proj.weight.copy_(output.transpose(0, 1).reshape(hidden, -1))
    for norm in (attention.q_norm, attention.k_norm):
        assert norm is not None
        norm.weight.fill_(_NORM)
