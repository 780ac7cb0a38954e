"""A gated twin computes the same function as its source, to the bit, in float32 and bfloat16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import Model
from harness.engine.requests import Prompt, Question
from harness.models.checkpoint import inspect
from harness.models.tiny import make_tiny
from harness.models.twin import make_twin
from harness.models.variant import AttnGate
from harness.types import GatedevalError
from tests.support.engines import altered, started

EXTENDED, SLOW = pytest.mark.extended, pytest.mark.slow
IDS = [(11 * i * i + 5 * i) % 4000 + 40 for i in range(200)]


@pytest.fixture(scope="module")
def twins(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with gated twins of the tiny baseline, by gate."""
    root = tmp_path_factory.mktemp("twins")
    for gate in ("headwise", "elementwise"):
        make_twin(tiny / "baseline", root / gate, gate)  # type: ignore[arg-type]
    return root


def measured(checkpoint: Path, dtype: str) -> tuple[np.ndarray, tuple[int, ...]]:
    with started(Model(label="m", path=str(checkpoint), dtype=dtype)) as engine:  # type: ignore[arg-type]
        [choice] = engine.choose([Question("q", tuple((tuple(IDS), (t,)) for t in range(4096)))])
        [answer] = engine.generate([Prompt("g", IDS, 24)])
    return np.array(choice.logprobs), answer.token_ids


@pytest.mark.engine
@pytest.mark.parametrize(
    ("dtype", "gate"),
    [
        ("float32", "headwise"),
        ("bfloat16", "elementwise"),
        pytest.param("float32", "elementwise", marks=pytest.mark.slow),
        pytest.param("bfloat16", "headwise", marks=pytest.mark.slow),
    ],
)
def test_twins_are_equal_to_the_bit(tiny: Path, twins: Path, dtype: str, gate: str) -> None:
    source, tokens = measured(tiny / "baseline", dtype)
    twin, twin_tokens = measured(twins / gate, dtype)
    assert np.array_equal(source, twin)
    assert tokens == twin_tokens


@pytest.mark.engine
@pytest.mark.parametrize(
    ("dtype", "gate"),
    [
        pytest.param("float32", AttnGate("value", activation="ns_sigmoid", input_dependent=False), marks=EXTENDED),
        pytest.param("bfloat16", AttnGate("key", "headwise", activation="silu", input_dependent=False), marks=SLOW),
        pytest.param("float32", AttnGate("attn_output", mode="add", activation="silu"), marks=SLOW),
        pytest.param("bfloat16", AttnGate("query", shared=True), marks=SLOW),
    ],
    ids=str,
)
def test_twins_with_other_gates_are_equal_to_the_bit(tiny: Path, tmp_path: Path, dtype: str, gate: AttnGate) -> None:
    source, tokens = measured(tiny / "baseline", dtype)
    make_twin(tiny / "baseline", tmp_path / "twin", gate)
    twin, twin_tokens = measured(tmp_path / "twin", dtype)
    assert np.array_equal(source, twin)
    assert tokens == twin_tokens


@pytest.mark.engine
@SLOW
@pytest.mark.parametrize("activation", ["ns_sigmoid", "identity"])
def test_twins_whose_logits_are_biases(tiny: Path, tmp_path: Path, activation: Any) -> None:
    """The projections of such a twin have biases of zero. A matrix product with a bias may sum in another order."""
    source, tokens = measured(tiny / "baseline", "float32")
    make_twin(tiny / "baseline", tmp_path / "twin", AttnGate(activation=activation))
    twin, twin_tokens = measured(tmp_path / "twin", "float32")
    assert np.abs(source - twin).max() <= 1e-4
    assert tokens == twin_tokens


def test_what_a_twin_is(tiny: Path, twins: Path) -> None:
    twin = inspect(twins / "headwise")
    assert twin.gate == "headwise"
    assert twin.architecture == "GatedQwen3ForCausalLM"
    assert twin.config["architectures"] == ["GatedQwen3ForCausalLM"]  # stock vLLM refuses it by name
    assert (twins / "headwise/tokenizer.json").read_bytes() == (tiny / "baseline/tokenizer.json").read_bytes()


def test_twins_that_cannot_be(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(GatedevalError, match="is not empty"):
        make_twin(tiny / "baseline", tiny / "headwise", "headwise")
    with pytest.raises(GatedevalError, match="has a headwise gate already"):
        make_twin(tiny / "headwise", tmp_path / "a", "elementwise")
    other = altered(tiny / "baseline", tmp_path / "b", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    with pytest.raises(GatedevalError, match="'gpt2' has no gated twin"):
        make_twin(other, tmp_path / "c", "headwise")


def test_the_tiny_checkpoints_differ_only_in_the_gate(tiny: Path) -> None:
    from safetensors.torch import load_file

    base = load_file(tiny / "baseline/model.safetensors")
    for gate in ("headwise", "elementwise"):
        arm, layout = load_file(tiny / gate / "model.safetensors"), inspect(tiny / gate).layout
        assert layout is not None
        for name, tensor in arm.items():
            same = tensor[layout.query_rows] if "q_proj" in name else tensor
            assert bool((same == base[name]).all()), name
    assert json.loads((tiny / "headwise/config.json").read_text())["headwise_attn_output_gate"] is True
    assert make_tiny(tiny) == []  # nothing is overwritten
