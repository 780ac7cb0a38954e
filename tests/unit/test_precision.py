"""Which engine options are part of an answer's hash, and in which precision logits are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.config import ContextSetting, EngineOptions
from harness.engine import precision
from harness.engine.encoding import Encoder
from harness.engine.precision import float32_logits, hashed_options
from harness.engine.requests import Prompt
from harness.models.checkpoint import Checkpoint, inspect

SETTING = ContextSetting(label="c", max_length=512)


@pytest.fixture(scope="module")
def checkpoint(tiny: Path) -> Checkpoint:
    """Stored in float32."""
    return inspect(tiny / "headwise")


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "gpu_is_used", lambda: False)


def digest(checkpoint: Checkpoint, options: EngineOptions) -> tuple[str, str]:
    """(sample hash, prompt hash) of one prompt."""
    given = hashed_options(options, checkpoint, "bfloat16")
    encoder = Encoder(None, checkpoint, SETTING, 512, "bfloat16", given)  # type: ignore[arg-type]
    return encoder.hashes(Prompt("p", [1, 2, 3], 4), "fingerprint")


def test_options_that_change_answers_are_in_the_hash_where_they_are_not_the_default(checkpoint: Checkpoint) -> None:
    plain = Encoder(None, checkpoint, SETTING, 512, "bfloat16")  # type: ignore[arg-type]
    default = digest(checkpoint, EngineOptions())
    assert default == plain.hashes(Prompt("p", [1, 2, 3], 4), "fingerprint"), "older runs keep their answers"
    others: list[dict[str, Any]] = [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}, {"float32_logits": True}]
    digests = [digest(checkpoint, EngineOptions(**option)) for option in others]
    assert len({default, *digests}) == 4
    assert len({prompt for _, prompt in (default, *digests)}) == 1, "the prompt is the same"


def test_options_that_decide_speed_alone_are_not_in_the_hash(checkpoint: Checkpoint) -> None:
    speed: list[dict[str, Any]] = [
        {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, {"enforce_eager": True}, {"max_num_seqs": 3},
        {"max_num_batched_tokens": 99}, {"gpu_memory_utilization": 0.5}, {"kv_cache_gib": 0.5}, {"block_size": 32},
        {"prefix_caching": False}, {"batch_invariant": True}, {"kv_cache_dtype": "auto"}, {"float32_logits": False},
    ]  # fmt: skip
    assert {digest(checkpoint, EngineOptions(**option)) for option in speed} == {digest(checkpoint, EngineOptions())}


def test_every_engine_option_is_either_in_the_hash_or_known_to_decide_speed_alone() -> None:
    """A new option has to be put into one of the two tests above."""
    hashed = {"dtype", "quantization", "kv_cache_dtype", "float32_logits"}
    speed = {
        "tensor_parallel_size", "pipeline_parallel_size", "enforce_eager", "max_num_seqs", "max_num_batched_tokens",
        "gpu_memory_utilization", "kv_cache_gib", "block_size", "prefix_caching", "batch_invariant",
    }  # fmt: skip
    assert set(EngineOptions.model_fields) == hashed | speed


def test_float32_logits_are_the_default_of_16_bits_on_a_gpu(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, options that differ by less than 0.125 are equal, and the first one is chosen."""
    auto = EngineOptions()
    assert float32_logits(auto, checkpoint, "bfloat16", on_gpu=True)
    assert float32_logits(auto, checkpoint, "float16", on_gpu=True)
    assert not float32_logits(auto, checkpoint, "float32", on_gpu=True), "they are float32 already"
    assert not float32_logits(auto, checkpoint, "bfloat16", on_gpu=False)
    assert not float32_logits(EngineOptions(float32_logits=False), checkpoint, "bfloat16", on_gpu=True)
    assert not float32_logits(EngineOptions(quantization="fp8"), checkpoint, "bfloat16", on_gpu=True)
    monkeypatch.setattr(precision, "gpu_is_used", lambda: True)
    assert hashed_options(auto, checkpoint, "bfloat16") == {"logits": "float32"}
    assert hashed_options(auto, checkpoint, "float32") == {}


def test_a_plan_refuses_what_vllm_does_not_have_on_a_cpu(tiny: Path) -> None:
    from harness.config import from_dict
    from harness.run.plan import build

    config = {
        "name": "p",
        "models": [{"label": "a", "path": str(tiny / "baseline")}],
        "benchmarks": [{"ruler": ["fwe"], "lengths": [512], "samples": 1}],
        "engine": {"batch_invariant": True},
    }
    [refusal] = build(from_dict(config)).refusals
    assert refusal.startswith("engine.batch_invariant: vLLM has batch-invariant kernels for GPUs only")
    assert build(from_dict({**config, "engine": {}})).refusals == []
