"""Gates of other families: `check` names the layout with its evidence, from model type and shapes together."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from harness.config import Model
from harness.models.checkpoint import inspect
from harness.models.other_gates import find_other_gate
from harness.run.plan_text import describe
from harness.types import GatedevalError
from tests.checkpoints import odd
from tests.support.engines import altered

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 256,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def written(directory: Path, model_type: str, **config: Any) -> Path:
    """A random checkpoint of a family, made by transformers' own class."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    made = AutoConfig.for_model(model_type, **{**SIZES, **config})
    AutoModelForCausalLM.from_config(made, dtype=torch.float32).save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    ("model_type", "config", "gate", "evidence"),
    [
        (
            "qwen3_next",
            {**MOE, "shared_expert_intermediate_size": 32},
            "elementwise",
            "per head [query | gate] (model type qwen3_next; model.layers.3.self_attn.q_proj.weight has 256 rows",
        ),
        (
            "qwen3_5_text",
            {},
            "elementwise",
            "per head [query | gate] (model type qwen3_5_text; model.layers.3.self_attn.q_proj.weight has 256 rows",
        ),
        (
            "afmoe",
            {**MOE, "num_dense_layers": 1},
            "elementwise",
            "separate matrix (model type afmoe; model.layers.0.self_attn.gate_proj.weight has 128 rows = 128, in"
            " model.safetensors); sigmoid",
        ),
    ],
)
def test_check_names_the_layout_with_its_evidence(
    tmp_path: Path, model_type: str, config: dict[str, Any], gate: str, evidence: str
) -> None:
    directory = written(tmp_path / "m", model_type, **config)
    assert inspect(directory).gate == gate
    said = describe(Model(label="m", path=str(directory)))
    assert evidence in said


def test_check_says_what_vllm_cannot_do_here(tmp_path: Path) -> None:
    hybrid = written(tmp_path / "hybrid", "qwen3_5_text")
    said = describe(Model(label="m", path=str(hybrid)))
    assert "linear-attention layers run in bfloat16 only" in said
    assert ("imports torchvision" in said) is (importlib.util.find_spec("torchvision") is None)
    experts = written(tmp_path / "laguna", "laguna", **MOE, shared_expert_intermediate_size=32)
    assert "does not load the router's e_score_correction_bias" in describe(Model(label="m", path=str(experts)))
    plain = written(tmp_path / "llama", "llama")
    assert "vLLM's limits" not in describe(Model(label="m", path=str(plain)))


def test_a_separate_gate_per_head() -> None:
    """Step 3.5's layout, by its shapes: one row per head in g_proj."""
    from harness.models.headers import Tensor

    def of(rows: int) -> dict[str, Tensor]:
        at = "model.layers.0.self_attn."
        shapes = {"o_proj": (64, 128), "q_proj": (128, 64), "g_proj": (rows, 64)}
        return {f"{at}{name}.weight": Tensor(shape=shape, dtype="float32") for name, shape in shapes.items()}

    config = {"model_type": "step3p5", "head_dim": 32}
    found = find_other_gate(Path("m"), config, of(4))
    assert found is not None
    assert found.kind == "headwise"
    assert found.evidence.endswith("g_proj.weight has 4 rows = 128 / 32); sigmoid")
    with pytest.raises(GatedevalError, match="neither one per head nor one per column"):
        find_other_gate(Path("m"), config, of(5))


def test_a_flag_alone_names_no_layout(tmp_path: Path) -> None:
    """The paper's flag in another family, as people add it to their own code: vLLM's class would ignore it."""
    directory = written(tmp_path / "m", "llama")
    flagged = altered(directory, tmp_path / "flagged", elementwise_attn_output_gate=True)
    with pytest.raises(GatedevalError, match="elementwise_attn_output_gate is set, and the model type is 'llama'"):
        inspect(flagged)
    wrapper = odd.wrapped(altered(flagged, tmp_path / "qwen", model_type="qwen3"), tmp_path / "wrapper")
    with pytest.raises(GatedevalError, match="elementwise_attn_output_gate is set, inside a multimodal wrapper"):
        inspect(wrapper)


def test_gate_rows_that_vllm_would_drop_are_refused(tmp_path: Path) -> None:
    """vLLM narrows q_proj to the rows that it expects and reports no error."""
    import torch

    directory = written(tmp_path / "m", "qwen3_moe", **MOE)
    name = "model.layers.2.self_attn.q_proj.weight"
    odd.with_tensors(directory, lambda t: t.update({name: torch.cat([t[name], t[name][:4]])}))
    with pytest.raises(GatedevalError, match=r"layers\.2\.self_attn\.q_proj\.weight has 132 rows.*128 columns"):
        inspect(directory)


def test_the_family_s_own_flag_must_agree_with_the_shapes(tmp_path: Path) -> None:
    directory = written(tmp_path / "m", "qwen3_5_text")
    with pytest.raises(GatedevalError, match="attn_output_gate is False, but"):
        inspect(altered(directory, tmp_path / "n", attn_output_gate=False))
