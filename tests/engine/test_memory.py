"""The predicted KV cache of tiny checkpoints, against the blocks and tokens that vLLM reports."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.config import ContextSetting, EngineOptions, Model
from harness.cost.devices import here
from harness.cost.memory import Memory, memory_of, refusals
from harness.engine.requests import EngineError
from harness.models.bpe import save_tokenizer, train_bpe
from harness.models.checkpoint import inspect
from harness.models.kv_cache import block_bytes
from tests.checkpoints import families
from tests.support.in_process import shared_engine

pytestmark = pytest.mark.engine

LENGTH = 1024
SETTING = ContextSetting(label="base", rope_theta=1e6, max_length=LENGTH)
FAMILIES = [
    pytest.param("gemma3", {"max_num_batched_tokens": 256}),
    pytest.param("llama", {}, marks=pytest.mark.slow),
    pytest.param("gemma2", {"max_num_batched_tokens": 128}, marks=pytest.mark.slow),
    pytest.param("olmo3", {"max_num_batched_tokens": 128, "block_size": 64}, marks=pytest.mark.slow),
]


def written(family: str, directory: Path) -> Model:
    words = (f"w {i}" for i in range(300))
    families.write(family, directory, lambda d: save_tokenizer(train_bpe(words, 400), d))
    return Model(label=family, path=str(directory), dtype="float32")


def predicted(model: Model, options: EngineOptions) -> Memory:
    devices = here(gpu=False)
    assert devices is not None
    return memory_of(model, inspect(model.path), options, devices, LENGTH)


@pytest.mark.parametrize(("family", "more"), FAMILIES)
def test_blocks_and_tokens_of_the_cache_are_vllms(tmp_path: Path, family: str, more: dict[str, object]) -> None:
    model = written(family, tmp_path / family)
    options = EngineOptions(enforce_eager=True, kv_cache_gib=0.0625, **more)  # type: ignore[arg-type]
    engine = shared_engine.get(model, SETTING, options=options)
    cache = engine.vllm.vllm_config.cache_config
    memory = predicted(model, options)
    assert memory.kv
    assert memory.element
    assert memory.pool
    assert memory.longest
    block = block_bytes(memory.kv, memory.element, memory.split)
    assert memory.split.block_size == cache.block_size
    assert memory.split.in_flight == engine.vllm.vllm_config.max_in_flight_tokens
    assert memory.seqs == engine.vllm.vllm_config.scheduler_config.max_num_seqs
    assert int(memory.pool // block) == cache.num_gpu_blocks
    assert int(memory.pool // block) / (memory.longest / block) == pytest.approx(cache.kv_cache_max_concurrency)


@pytest.mark.extended
def test_what_the_plan_refuses_vllm_does_not_start_and_what_just_fits_it_does(tmp_path: Path) -> None:
    """The limit is the same to a block: one block less than the longest prompt needs, and vLLM refuses too."""
    model = written("llama", tmp_path / "llama")
    memory = predicted(model, EngineOptions())
    assert memory.kv
    assert memory.element
    assert memory.longest
    block = block_bytes(memory.kv, memory.element, memory.split)
    for blocks, fits in ((1, True), (0, False)):  # vLLM keeps one block for itself
        options = EngineOptions(enforce_eager=True, kv_cache_gib=(memory.longest + blocks * block) / 2**30)
        told = refusals(predicted(model, options), options, "m", "base", 4)
        assert bool(told) is not fits
        shared_engine.close()
        if fits:
            shared_engine.get(model, SETTING, options=options)
        else:
            assert "engine.kv_cache_gib" in told[0]
            with pytest.raises(EngineError, match="KV cache"):
                shared_engine.get(model, SETTING, options=options)


def test_a_memory_is_plain_data(tmp_path: Path) -> None:
    memory = predicted(written("llama", tmp_path / "llama"), EngineOptions())
    assert dataclasses.replace(memory, pool=None).usable is None
