"""No model is evaluated with parameters that no tensor reached, whatever its family.

Families whose tensors gatedeval can list are refused before an engine starts (`tests/unit/test_odd_checkpoints.py`).
For the others, every worker reports what its weight files left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.config import EngineOptions, Model
from harness.engine.engine import Engine
from harness.engine.requests import EngineError, Prompt
from harness.models.bpe import save_tokenizer, train_bpe
from tests.checkpoints import families, odd
from tests.support.engines import EAGER, NATIVE, altered
from tests.support.in_process import shared_engine, vllm_in_this_process

pytestmark = pytest.mark.engine

ATTENTION = "model.layers.1.self_attn"
FAULTS = {
    # one part of a fused matrix: vLLM counts the matrix as loaded
    ("qwen3_moe", f"{ATTENTION}.k_proj.weight"): f"{ATTENTION}.qkv_proj.weight (rows 128-191 of 256; made of q_proj,",
    ("olmo2", "model.layers.0.mlp.up_proj.weight"): "model.layers.0.mlp.gate_up_proj.weight (rows 96-191 of 192;",
    # a whole linear layer: vLLM does not look at linear layers
    ("gemma2", "model.layers.2.mlp.down_proj.weight"): "model.layers.2.mlp.down_proj.weight",
    ("phi3", f"{ATTENTION}.qkv_proj.weight"): f"{ATTENTION}.qkv_proj.weight",
    # the output matrix of a model whose embeddings are not tied
    ("olmo2", "lm_head.weight"): "lm_head.weight",
    # one matrix of one expert
    ("qwen3_moe", "model.layers.0.mlp.experts.gate_up_proj[2]"): "experts.w13_weight (experts 2 of 4)",
    # a norm, whose initial value is 1: vLLM's own check would end the engine process
    ("olmo2", "model.norm.weight"): "model.norm.weight",
}
"""(family, the tensor that is missing) -> what the message says about it."""
EVERY_DAY = ("qwen3_moe", "olmo2")


def model_of(directory: Path) -> Model:
    return Model(label="m", path=str(directory), dtype="float32")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The sound checkpoint of a family, written once."""
    root = tmp_path_factory.mktemp("families")

    def of(family: str) -> Path:
        if not (root / family).exists():
            words = (f"w {i}" for i in range(300))
            families.write(family, root / family, lambda d: save_tokenizer(train_bpe(words, 400), d))
        return root / family

    return of


def without(source: Path, target: Path, name: str) -> Path:
    """A copy without one tensor; `name[2]`: without the matrix of expert 2, which files store one by one."""
    if not name.endswith("]"):
        return odd.without(source, target, name)
    base, number = name.removesuffix("]").split("[")
    expert = base.removesuffix("gate_up_proj") + number
    return odd.without(source, target, f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight")


@pytest.mark.parametrize(
    ("family", "missing"),
    [pytest.param(f, m, marks=[] if f in EVERY_DAY else [pytest.mark.slow]) for f, m in FAULTS],
)
def test_a_checkpoint_without_one_tensor_is_refused_by_name(
    sound: Any, tmp_path: Path, family: str, missing: str
) -> None:
    directory = without(sound(family), tmp_path / "m", missing)
    shared_engine.close()
    with vllm_in_this_process(), pytest.raises(EngineError) as refused:
        Engine(model_of(directory), [NATIVE], EAGER)
    said = str(refused.value)
    assert f"{directory}: no tensor in its weight files reached 1 parameter(s)" in said
    assert FAULTS[family, missing] in said
    assert "\n" not in said


@pytest.mark.slow
def test_the_refusal_reaches_the_user_from_processes_of_their_own_too(sound: Any, tmp_path: Path) -> None:
    """A norm that is missing: vLLM's own check would end the worker, and its message would stay in the worker's log."""
    directory = odd.without(sound("olmo2"), tmp_path / "m", "model.layers.0.self_attn.q_norm.weight")
    shared_engine.close()
    two = EngineOptions(enforce_eager=True, tensor_parallel_size=2)
    with pytest.raises(EngineError, match=r"reached 1 parameter\(s\).*model\.layers\.0\.self_attn\.q_norm\.weight"):
        Engine(model_of(directory), [NATIVE], two)


def test_padding_rows_of_the_vocabulary_count_as_loaded(sound: Any, tmp_path: Path) -> None:
    """vLLM pads the vocabulary to a multiple of 64. No file has these rows."""

    def cut(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        cut = {"model.embed_tokens.weight", "lm_head.weight"}
        return {name: t[:499].contiguous() if name in cut else t for name, t in tensors.items()}

    directory = altered(sound("olmo2"), tmp_path / "m", cut, vocab_size=499)
    engine = shared_engine.get(model_of(directory))
    [answer] = engine.generate([Prompt("p", [5, 6, 7], 2)])
    assert answer.tokens == 2
