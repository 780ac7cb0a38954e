"""Twins of every gate that can be neutral: the plain-torch model computes the same bits as the source."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.models.checkpoint import inspect
from harness.models.reference import load
from harness.models.twin import make_twin, neutral
from harness.models.variant import AttnGate
from harness.types import GatedevalError
from tests.checkpoints import odd
from tests.support.in_process import gatedeval
from tests.support.variants import random_checkpoint, valid_gates

IDS = torch.tensor([[(7 * i * i + 3 * i) % 512 for i in range(24)]])


def logits(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        return load(folder)(IDS)


@pytest.fixture(scope="module", params=["plain", "biases, no q/k norm"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = request.param == "plain"
    config = {"qkv_bias": not plain, "use_qk_norm": plain, "num_hidden_layers": 2}
    return random_checkpoint(tmp_path_factory.mktemp("source") / "m", config)


GATES = [gate for gate in valid_gates() if not gate.sdpa_norm]
SOME = random.Random(1).sample(GATES, 24)
"""Every position, mode and activation several times."""


@pytest.mark.parametrize(
    ("gates", "expected"),
    [pytest.param(SOME, 20, id="some"), pytest.param(GATES, 238, id="all", marks=pytest.mark.slow)],
)
def test_every_gate_that_can_be_neutral_is_to_the_bit(
    source: Path, tmp_path: Path, gates: list[AttnGate], expected: int
) -> None:
    wanted, made = logits(source), 0
    for number, gate in enumerate(gates):
        target = tmp_path / str(number)
        if (gate.mode, gate.activation) == ("add", "ns_sigmoid"):
            with pytest.raises(GatedevalError, match="never zero"):
                make_twin(source, target, gate)
            assert not target.exists()
            continue
        make_twin(source, target, gate)
        assert inspect(target).gate == gate.label
        assert torch.equal(logits(target), wanted), gate.label
        made += 1
    assert made == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["multiply", "add"])
@pytest.mark.parametrize("activation", ["sigmoid", "silu", "ns_sigmoid", "identity"])
def test_the_constants_are_exact_in_16_bits(dtype: torch.dtype, mode: Any, activation: Any) -> None:
    gate = AttnGate(mode=mode, activation=activation)
    if (mode, activation) == ("add", "ns_sigmoid"):
        with pytest.raises(GatedevalError, match="never zero"):
            neutral(gate)
        return
    constants = neutral(gate)
    logit = torch.full((64,), constants.logit, dtype=dtype)
    s = {
        "sigmoid": torch.sigmoid(logit),
        "silu": torch.nn.functional.silu(logit),
        "ns_sigmoid": 0.5 + 0.5 * torch.sigmoid(logit),
        "identity": logit,
    }[activation]
    y = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal((y * constants.scale) * s if mode == "multiply" else y + s, y)


def test_a_matrix_that_cannot_be_scaled_exactly_is_refused(tmp_path: Path) -> None:
    source = random_checkpoint(tmp_path / "m", {"torch_dtype": "float16"})
    odd.with_tensors(source, lambda t: t.update({k: v.half() for k, v in t.items()}))
    with pytest.raises(GatedevalError, match=r"o_proj\.weight cannot be multiplied by 0\.03125 exactly in float16"):
        make_twin(source, tmp_path / "twin", AttnGate(activation="silu"))


def test_a_norm_has_no_twin(source: Path, tmp_path: Path) -> None:
    with pytest.raises(GatedevalError, match="sdpa_norm"):
        make_twin(source, tmp_path / "twin", AttnGate(sdpa_norm=True))
    normed = random_checkpoint(tmp_path / "normed", {"sandwich_norm": True})
    with pytest.raises(GatedevalError, match="has sandwich norm; a twin is made of a model without it"):
        make_twin(normed, tmp_path / "twin", AttnGate())


@pytest.mark.parametrize("gate", ["headwise", AttnGate(position="value", activation="identity")])
@pytest.mark.slow
def test_a_mixture_of_experts_and_a_llama_with_biases(tmp_path: Path, gate: Any) -> None:
    from tests.checkpoints import families

    for family in ("qwen3_moe", "llama"):
        source = families.write(family, tmp_path / family)
        if family == "llama":
            biases = {
                f"model.layers.{layer}.self_attn.{name}.bias": torch.randn(rows)
                for layer in range(2)
                for name, rows in (("q_proj", 128), ("k_proj", 64), ("v_proj", 64), ("o_proj", 64))
            }
            odd.with_tensors(source, lambda t, b=biases: t.update(b))
            facts = json.loads((source / "config.json").read_text())
            (source / "config.json").write_text(json.dumps(facts | {"attention_bias": True}))
        make_twin(source, tmp_path / f"{family}-twin", gate)
        make_twin(source, tmp_path / f"{family}-none", "none")
        assert torch.equal(logits(tmp_path / f"{family}-twin"), logits(tmp_path / f"{family}-none"))
        theirs = families.logprobs(source, IDS[0].tolist())
        ours = logits(tmp_path / f"{family}-twin")[0].double().log_softmax(-1)
        assert (ours - torch.from_numpy(theirs)).abs().max() < 1e-4


def test_the_command(tmp_path: Path) -> None:
    source = random_checkpoint(tmp_path / "m", {})
    value = ["--gate", "headwise", "--position", "value", "--activation", "ns_sigmoid", "--input-independent"]
    done = gatedeval("twin", source, tmp_path / "twin", *value, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'twin'}\n"), done.stderr
    label = "value (G2), headwise, multiplied, ns_sigmoid, input-independent"
    assert inspect(tmp_path / "twin").gate == label
    wrong = gatedeval("twin", source, tmp_path / "x", "--gate", "none", "--shared", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "--shared means nothing" in wrong.stderr
    wrong = gatedeval("twin", source, tmp_path / "x", "--gate", "headwise", "--position", "attn_output", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "position attn_output has no heads" in wrong.stderr
    assert not (tmp_path / "x").exists()
