"""Other places for the gate rows in vLLM: converted checkpoints, and layouts that only the config names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.config import EngineOptions, Model
from harness.models.convert import convert
from harness.types import GateLayout
from tests.engine.test_variants import COMPILED, TP2
from tests.support.engines import Oracle, started
from tests.support.in_process import EAGER

pytestmark = pytest.mark.engine

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("folder", "layout", "kind", "options"),
    [
        pytest.param("c_elementwise_gqa", "per-head", "llama", EAGER, id="per-head-only-in-the-config-llama"),
        pytest.param("b_headwise_gqa", "per-head", "", EAGER, id="per-head", marks=SLOW),
        pytest.param("g_headwise_qkvbias", "separate", "", EAGER, id="separate-biases", marks=SLOW),
        pytest.param("c_elementwise_gqa", "per-head", "", TP2, id="per-head-tp2", marks=SLOW),
        pytest.param("b_headwise_gqa", "separate", "qwen3", EAGER, id="separate-only-in-the-config", marks=SLOW),
        pytest.param("b_headwise_gqa", "per-group", "mistral", TP2, id="per-group-mistral-tp2", marks=SLOW),
        pytest.param("g_headwise_qkvbias", "separate", "", TP2, id="separate-tp2", marks=SLOW),
        pytest.param("c_elementwise_gqa", "per-head", "", COMPILED, id="per-head-compiled", marks=SLOW),
    ],
)
def test_every_layout_gives_the_authors_numbers(
    shared: Path, tmp_path: Path, folder: str, layout: GateLayout, kind: str, options: EngineOptions
) -> None:
    """`kind`: the model type of a checkpoint whose config.json says nothing about the layout, as others write it."""
    target = tmp_path / "m"
    convert(shared / "oracles" / folder, target, layout, say=lambda line: None)
    if kind:
        facts = json.loads((target / "config.json").read_text())
        for key in ("gate_layout", "attn_gate", "use_qk_norm", "qkv_bias"):
            facts.pop(key, None)
        facts |= {"model_type": kind, "architectures": [f"{kind.capitalize()}ForCausalLM"], "attention_bias": False}
        (target / "config.json").write_text(json.dumps(facts))
    model = Model(
        label="m",
        path=str(target),
        tokenizer=str(shared / "oracles/ruler/tokenizer_bpe4k"),
        dtype="float32",
        gate_layout=layout if kind else None,
    )
    oracle = Oracle(shared, folder)
    with started(model, options=options) as engine:
        assert engine.facts["model_class"] == "GatedQwen3ForCausalLM"
        assert np.abs(oracle.measured(engine) - oracle.logprobs).max() <= 1e-3
        oracle.check_greedy(engine)
