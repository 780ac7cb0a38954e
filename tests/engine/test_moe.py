"""A gated Qwen3-MoE in vLLM, as the dense model: against the plain-torch model, on one rank and two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.config import EngineOptions
from harness.models.checkpoint import inspect
from harness.models.layout import MOE_ARCHITECTURE, Layout
from harness.models.reference import load
from tests.checkpoints import families
from tests.engine.test_variants import COMPILED, TP2, check_against_plain_torch
from tests.support.in_process import EAGER
from tests.support.variants import random_checkpoint

MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": [],
}  # fmt: skip
GATES: dict[str, dict[str, Any]] = {
    "headwise": {"headwise_attn_output_gate": True, "packed_rows": Layout(4, 2, 32, "headwise").q_rows},
    "elementwise": {
        "elementwise_attn_output_gate": True, "packed_rows": Layout(4, 2, 32, "elementwise").q_rows,
        "num_hidden_layers": 3, "mlp_only_layers": [1], "norm_topk_prob": False,
    },
    "value": {"attn_gate": {"position": "value", "activation": "silu"}, "sandwich_norm": True, "qkv_bias": True},
}  # fmt: skip
SLOW = pytest.mark.slow


@pytest.mark.engine
@pytest.mark.parametrize(
    ("gate", "options"),
    [
        pytest.param("headwise", EAGER, id="headwise"),
        pytest.param("elementwise", EAGER, id="elementwise-mixed-layers", marks=SLOW),
        pytest.param("value", EAGER, id="value-sandwich-biases", marks=SLOW),
        pytest.param("elementwise", TP2, id="elementwise-tp2", marks=SLOW),
        pytest.param("headwise", TP2, id="headwise-tp2", marks=SLOW),
        pytest.param("value", TP2, id="value-tp2", marks=SLOW),
        pytest.param("headwise", COMPILED, id="headwise-compiled", marks=SLOW),
    ],
)
def test_a_gated_mixture_of_experts_is_the_plain_torch_model(tmp_path: Path, gate: str, options: EngineOptions) -> None:
    folder = random_checkpoint(tmp_path / "m", MOE | GATES[gate])
    assert inspect(folder).architecture == MOE_ARCHITECTURE
    check_against_plain_torch(folder, options)


def test_the_plain_torch_experts_are_transformers(tmp_path: Path) -> None:
    """Without a gate, but in our format: the same numbers as transformers' Qwen3-MoE on the same weights."""
    from harness.models.twin import make_twin

    source = families.write("qwen3_moe", tmp_path / "m")
    make_twin(source, tmp_path / "none", "none")
    ids = list(range(2, 90))
    with torch.inference_mode():
        ours = load(tmp_path / "none")(torch.tensor([ids]))[0].double().log_softmax(-1)
    assert (ours - torch.from_numpy(families.logprobs(source, ids))).abs().max() < 1e-4


def test_missing_experts_are_refused(tmp_path: Path) -> None:
    from harness.types import GatedevalError
    from tests.checkpoints import odd

    folder = random_checkpoint(tmp_path / "m", MOE | GATES["headwise"])
    odd.with_tensors(folder, lambda t: t.pop("model.layers.1.mlp.experts.3.up_proj.weight"))
    with pytest.raises(GatedevalError, match=r"1 tensor\(s\) missing: model\.layers\.1\.mlp\.experts\.3\.up_proj"):
        inspect(folder)
