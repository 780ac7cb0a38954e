"""The packing of gate rows inside q_proj, against rows counted by hand, for every tensor-parallel split."""

from __future__ import annotations

import numpy as np
import pytest

from harness.models.layout import (
    ARCHITECTURE,
    Layout,
    expected_tensors,
    gate_from_flags,
    gate_from_rows,
    needs_our_model,
    tensor_mismatch,
)
from harness.types import Gate, GatedevalError

# 4 query heads, 2 KV heads, head_dim 2; row i of the packed projection is filled with i.
HEADWISE = Layout(4, 2, 2, "headwise")  # per group: q0 q0 q1 q1 g0 g1
ELEMENTWISE = Layout(4, 2, 2, "elementwise")  # per group: q0 q0 q1 q1 g0 g0 g1 g1


def test_headwise_rows_by_hand() -> None:
    assert HEADWISE.q_rows == 12
    assert HEADWISE.query_rows.tolist() == [0, 1, 2, 3, 6, 7, 8, 9]
    assert HEADWISE.gate_rows.tolist() == [4, 5, 10, 11]


def test_elementwise_rows_by_hand() -> None:
    assert ELEMENTWISE.q_rows == 16
    assert ELEMENTWISE.query_rows.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert ELEMENTWISE.gate_rows.tolist() == [4, 5, 6, 7, 12, 13, 14, 15]


def test_no_gate_is_the_identity() -> None:
    layout = Layout(4, 2, 2, "none")
    assert layout.query_rows.tolist() == list(range(8))
    assert layout.gate_rows.size == 0


@pytest.mark.parametrize(
    ("tp", "queries", "gates", "keys"),
    [
        (1, [[0, 1, 2, 3, 6, 7, 8, 9]], [[4, 5, 10, 11]], [[0, 1, 2, 3]]),
        (2, [[0, 1, 2, 3], [6, 7, 8, 9]], [[4, 5], [10, 11]], [[0, 1], [2, 3]]),
        # more ranks than KV heads: one query head each, KV heads held twice
        (4, [[0, 1], [2, 3], [6, 7], [8, 9]], [[4], [5], [10], [11]], [[0, 1], [0, 1], [2, 3], [2, 3]]),
    ],
)
def test_headwise_shards_by_hand(tp: int, queries: list, gates: list, keys: list) -> None:
    for rank in range(tp):
        query, gate = HEADWISE.shard("q", tp, rank)
        assert query.tolist() == queries[rank]
        assert gate.tolist() == gates[rank]
        for projection in ("k", "v"):
            rows, none = HEADWISE.shard(projection, tp, rank)
            assert rows.tolist() == keys[rank]
            assert none.size == 0


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_elementwise_shards_cover_each_row_once(tp: int) -> None:
    shards = [np.concatenate(ELEMENTWISE.shard("q", tp, rank)) for rank in range(tp)]
    assert sorted(np.concatenate(shards).tolist()) == list(range(16))
    assert ELEMENTWISE.shard("q", 4, 3)[0].tolist() == [10, 11]
    assert ELEMENTWISE.shard("q", 4, 3)[1].tolist() == [14, 15]


@pytest.mark.parametrize(("heads", "kv", "tp"), [(4, 2, 3), (9, 3, 2), (8, 3, 2), (6, 4, 1)])
def test_heads_that_do_not_divide_are_refused(heads: int, kv: int, tp: int) -> None:
    with pytest.raises(GatedevalError, match=r"divide|multiple"):
        Layout(heads, kv, 2, "headwise").shard("q", tp, 0)


def test_flags() -> None:
    assert gate_from_flags({}) == "none"
    assert gate_from_flags({"headwise_attn_output_gate": True}) == "headwise"
    assert gate_from_flags({"elementwise_attn_output_gate": True}) == "elementwise"
    both = {"headwise_attn_output_gate": True, "elementwise_attn_output_gate": True}
    assert gate_from_flags(both) == "headwise"


def test_rows_of_the_released_1b_models() -> None:
    assert gate_from_rows(2048, 16, 128) == "none"
    assert gate_from_rows(2064, 16, 128) == "headwise"
    assert gate_from_rows(4096, 16, 128) == "elementwise"
    assert gate_from_rows(2050, 16, 128) is None


def test_who_needs_our_model() -> None:
    qwen3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    assert not needs_our_model(qwen3)
    assert not needs_our_model({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    assert not needs_our_model({"model_type": "llama", "headwise_attn_output_gate": True})
    assert needs_our_model(qwen3 | {"headwise_attn_output_gate": True})
    assert needs_our_model({"model_type": "qwen2", "elementwise_attn_output_gate": True})
    assert needs_our_model(qwen3 | {"use_qk_norm": False})
    assert needs_our_model(qwen3 | {"qkv_bias": True})
    assert not needs_our_model(qwen3 | {"attention_bias": True})  # never read by the authors' code
    assert needs_our_model({"model_type": "qwen3", "architectures": [ARCHITECTURE]})


def test_every_tensor_is_accounted_for() -> None:
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "tie_word_embeddings": True,
        "qkv_bias": True,
        "use_qk_norm": False,
    }
    names = expected_tensors(config)
    assert names is not None
    assert "model.layers.1.self_attn.o_proj.bias" in names
    assert not any("q_norm" in name for name in names)
    assert tensor_mismatch(config, names) is None
    assert tensor_mismatch(config, names | {"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"}) is None
    assert "missing: model.layers.0.self_attn.q_proj.bias" in str(
        tensor_mismatch(config, names - {"model.layers.0.self_attn.q_proj.bias"})
    )
    assert "not in the model: model.layers.0.self_attn.gate_proj.weight" in str(
        tensor_mismatch(config, names | {"model.layers.0.self_attn.gate_proj.weight"})
    )


@pytest.mark.parametrize("gate", ["none", "headwise", "elementwise"])
@pytest.mark.parametrize(
    "heads", [(4, 1), (4, 2), (9, 3), (12, 2), (14, 2), (15, 5), (16, 2), (16, 8), (32, 8), (40, 8)]
)
@pytest.mark.parametrize("head_dim", [20, 32, 64, 80, 128])
def test_every_rank_s_fused_row_is_a_multiple_of_16_bytes(gate: Gate, heads: tuple[int, int], head_dim: int) -> None:
    layout = Layout(*heads, head_dim, gate)
    ranks = [tp for tp in range(1, 9) if heads[0] % tp == 0 and (heads[1] % tp == 0 or tp % heads[1] == 0)]
    for tp in ranks:
        queries, keys, values, gates, zeros = layout.fused_sizes(tp)
        assert (queries + keys + values + gates + zeros) * 2 % 16 == 0  # bfloat16; float32 all the more
        assert 0 <= zeros < 16
        assert (queries, gates) == (heads[0] // tp * head_dim, heads[0] // tp * layout.gate_dim)
        assert keys == values == max(1, heads[1] // tp) * head_dim


def test_zeros_by_hand() -> None:
    """16 heads of 128, headwise: 16 gates on one rank need no zeros, 8 gates on one of two ranks need 8."""
    layout = Layout(16, 2, 128, "headwise")
    assert [layout.fused_sizes(tp)[3:] for tp in (1, 2, 4, 8)] == [[16, 0], [8, 8], [4, 12], [2, 14]]
