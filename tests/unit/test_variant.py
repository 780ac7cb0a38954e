"""The paper's other gates: their description in config.json, parameter counts, refusals, and the plain-torch model."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.models.checkpoint import inspect
from harness.models.layout import ARCHITECTURE, tensor_mismatch
from harness.models.reference import load
from harness.models.variant import AttnGate, Variant
from harness.probe.reference import probe_reference
from harness.types import GatedevalError
from tests.support.variants import FOLDERS, random_checkpoint, valid_gates

MOE = {
    "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 24,
}  # fmt: skip
"""The shapes at which the paper's 15B MoE model has the parameter counts of Table 1."""


@pytest.mark.parametrize(
    ("described", "millions"),
    [
        ({"position": "sdpa_output", "granularity": "elementwise"}, 201),
        ({"position": "sdpa_output", "granularity": "headwise"}, 1.6),
        ({"position": "value", "granularity": "elementwise"}, 25),
        ({"position": "key", "granularity": "elementwise"}, 25),
        ({"position": "query", "granularity": "elementwise"}, 201),
        ({"position": "value", "granularity": "headwise"}, 0.2),
        ({"position": "attn_output"}, 100.7),
    ],
)
def test_added_parameters_are_those_of_the_paper_s_table_1(described: dict[str, Any], millions: float) -> None:
    added = Variant.from_config({"attn_gate": described}).added_parameters(MOE)
    assert added / 1e6 == pytest.approx(millions, rel=0.03)


def test_every_valid_combination_has_a_name_of_its_own_and_no_other_is_accepted() -> None:
    gates = valid_gates()
    assert len({gate.label for gate in gates}) == len(gates)
    # 5 positions x 2 granularities x shared or not, less 3 of attn_output; times mode, activation, input, norm
    assert len(gates) == (5 * 4 - 3) * 2 * 4 * 2 * 2
    assert AttnGate(position="value", granularity="headwise", shared=True, activation="silu").label == (
        "value (G2), headwise, shared by all heads, multiplied, silu"
    )
    assert Variant.from_config({}).label == "none"
    assert not Variant.from_config({"sandwich_norm": False, "attn_gate": None})
    assert Variant.from_config({"sdpa_norm": True, "sandwich_norm": True}).label == (
        "RMSNorm on the SDPA output; sandwich norm"
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"attn_gate": {"position": "v"}}, "attn_gate.position 'v' is not known; there are sdpa_output, value"),
        ({"attn_gate": {"positions": "value"}}, "no key 'positions'; did you mean 'position'"),
        ({"attn_gate": {"shared": "false"}}, "attn_gate.shared 'false' is not known; there are false, true"),
        ({"attn_gate": {"shared": 1}}, "attn_gate.shared 1 is not known"),
        ({"attn_gate": {"activation": ["silu"]}}, "attn_gate.activation"),
        ({"attn_gate": "value"}, "should be a mapping"),
        ({"attn_gate": {"position": "attn_output", "granularity": "headwise"}}, "has no heads"),
        ({"attn_gate": {"position": "attn_output", "shared": True}}, "has no heads"),
        ({"attn_gate": {}, "headwise_attn_output_gate": True}, "both describe a gate"),
        ({"sandwich_norm": "yes"}, "sandwich_norm should be true or false"),
    ],
)
def test_an_unknown_or_undefined_variant_is_refused_by_name(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(GatedevalError, match=words.replace("(", r"\(")):
        Variant.from_config(config)
    folder = random_checkpoint(tmp_path / "m", {})
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, **config}))
    with pytest.raises(GatedevalError, match=str(folder)):
        inspect(folder)


def test_a_checkpoint_with_missing_or_other_gate_tensors_is_refused(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path / "m", {"attn_gate": {"position": "value"}})
    found = inspect(folder)
    assert (found.architecture, found.gate) == (ARCHITECTURE, "value (G2), elementwise, multiplied, sigmoid")
    facts = json.loads((folder / "config.json").read_text())
    for changed, words in (
        ({"attn_gate": {"position": "value", "granularity": "headwise"}}, r"shape \(64, 128\).*means \(2, 128\)"),
        ({"attn_gate": {"input_dependent": False, "position": "value"}}, "missing: .*gate_bias"),
        ({"attn_gate": None}, "not in the model: .*gate_proj"),
        ({"sandwich_norm": True}, "missing: .*output_layernorm"),
        ({"sdpa_norm": True}, "missing: .*sdpa_norm"),
    ):
        (folder / "config.json").write_text(json.dumps({**facts, **changed}))
        with pytest.raises(GatedevalError, match=words):
            inspect(folder)
    names = [*found.tensors, "model.layers.0.self_attn.gate_bias"]
    assert "not in the model" in str(tensor_mismatch(found.config, names))


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_plain_torch_model_gives_the_reference_numbers(shared: Path, folder: str) -> None:
    path = shared / "oracles" / folder
    expected = np.load(path / "expected.npz")
    ids = [int(i) for i in expected["input_ids"][0]]
    model = load(path)
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids])).log_softmax(-1)[0, expected["logits_positions"]]
    assert (logprobs - torch.tensor(expected["logits"][0]).log_softmax(-1)).abs().max() <= 1e-3
    probe = probe_reference(model, ids, first_query=True)
    assert np.abs(probe.first.numpy() - expected["first_token_attn_per_head"]).max() <= 1e-5
    assert np.abs(probe.entropy.numpy() - expected["attn_entropy_per_head"]).max() <= 1e-5
    assert np.abs(probe.hidden.numpy() - expected["hidden_max"]).max() <= 1e-3
    assert np.abs(probe.small_after.numpy() - expected["sdpa_small_share"]).max() <= 2e-4
    if "gate_mean_per_head" in expected:
        assert probe.gate_mean is not None
        assert np.abs(probe.gate_mean.numpy() - expected["gate_mean_per_head"]).max() <= 1e-5


def test_every_part_of_a_description_changes_the_function(tmp_path: Path) -> None:
    """The same seed, one key altered at a time: no key is read and then ignored."""
    base: dict[str, Any] = {"attn_gate": {"position": "sdpa_output", "granularity": "headwise"}}
    changes: list[dict[str, Any]] = [
        {}, {"mode": "add"}, {"activation": "silu"}, {"activation": "ns_sigmoid"}, {"activation": "identity"},
        {"shared": True}, {"granularity": "elementwise"}, {"input_dependent": False}, {"sdpa_norm": True},
        *({"position": p} for p in ("value", "key", "query")),
        {"position": "attn_output", "granularity": "elementwise"},
    ]  # fmt: skip
    ids = torch.arange(3, 23)[None]
    outputs = []
    for number, change in enumerate(changes):
        described = {"attn_gate": {**base["attn_gate"], **change}}
        folder = random_checkpoint(tmp_path / str(number), {**described, "use_qk_norm": False})
        with torch.inference_mode():
            outputs.append(load(folder)(ids))
    folder = random_checkpoint(tmp_path / "sandwich", {**base, "use_qk_norm": False, "sandwich_norm": True})
    with torch.inference_mode():
        outputs.append(load(folder)(ids))
    for a, b in itertools.combinations(outputs, 2):
        assert (a - b).abs().max() > 1e-2
