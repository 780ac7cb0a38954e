"""The plain torch model, compared with the numbers of the authors' own code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from harness.models.reference import Reference, Trace, load
from harness.types import GatedevalError
from tests.support.engines import Oracle, altered

FOLDERS = [
    "a_baseline_gqa",
    "b_headwise_gqa",
    "c_elementwise_gqa",
    "e_elementwise_mqa",
    "g_headwise_qkvbias",
    "i_elementwise_yarn",
    "k32_headwise_tied_hd32",
    "k_headwise_tied_hd16",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_agrees_with_the_authors_code(shared: Path, folder: str) -> None:
    oracle, model = Oracle(shared, folder), load(shared / "oracles" / folder)
    ids, trace = torch.tensor([oracle.ids]), Trace()
    with torch.inference_mode():
        plain, traced = model(ids), model(ids, trace=trace)
    assert float((plain - traced).abs().max()) < 1e-4  # fused and explicit attention
    logprobs = plain[0, oracle.positions].double().log_softmax(-1).numpy()
    assert np.abs(logprobs - oracle.logprobs).max() <= 1e-4 * (2 if "yarn" in folder else 1)
    assert model.generate(oracle.ids, len(oracle.greedy)) == oracle.greedy

    expected = np.load(shared / "oracles" / folder / "expected.npz")
    assert np.abs(trace.first_token().numpy() - expected["first_token_attn_per_head"]).max() <= 1e-5
    if model.gate == "none":
        assert not trace.gates
        assert "gate_mean_per_head" not in expected
    else:
        assert np.abs(trace.gate_mean().numpy() - expected["gate_mean_per_head"]).max() <= 1e-5


@pytest.mark.parametrize("folder", ["a_baseline_gqa", "b_headwise_gqa", "c_elementwise_gqa", "g_headwise_qkvbias"])
def test_saved_checkpoint_is_the_same_model(shared: Path, tmp_path: Path, folder: str) -> None:
    model = load(shared / "oracles" / folder)
    model.save(tmp_path / "copy", torch.float32)
    again = load(tmp_path / "copy")
    assert again.gate == model.gate
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids), again(ids))


def test_missing_and_unexpected_tensors_are_refused(shared: Path, tmp_path: Path) -> None:
    source = shared / "oracles/b_headwise_gqa"
    name = "model.layers.1.self_attn.q_norm.weight"
    less = altered(source, tmp_path / "less", lambda t: {k: v for k, v in t.items() if k != name})
    with pytest.raises(GatedevalError, match="missing"):
        load(less)
    more = altered(
        source, tmp_path / "more", lambda t: {**t, "model.layers.1.self_attn.g_proj.weight": t[name].clone()}
    )
    with pytest.raises(GatedevalError, match="not in the model"):
        load(more)


def test_other_families_are_refused() -> None:
    with pytest.raises(GatedevalError, match="silu"):
        Reference({"hidden_act": "gelu"})
