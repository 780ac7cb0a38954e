"""Reserved bytes and bytes of a block, against vLLM's own functions on specs of the same layers, without an engine."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from harness.models.kv_cache import KvLayers, LayerGroup, Sharding, block_bytes, bytes_per_token, reserved_bytes

CASES = [
    # layers full, layers with a window, window, KV heads, head dimension
    (32, 0, 0, 8, 128),
    (0, 32, 4096, 8, 128),
    (10, 52, 1024, 16, 128),  # Gemma 3 27B: padded to groups of 10
    (21, 21, 4096, 8, 256),  # Gemma 2 9B
    (8, 24, 4096, 8, 128),  # OLMo 3
    (13, 12, 128, 8, 64),  # little more of one kind: groups of the larger
    (4, 1, 64, 2, 32),
]


def of_vllm(case: tuple[int, int, int, int, int], split: Sharding, tokens: int, bytes_: int) -> tuple[int, int]:
    """(bytes of a block of the pool, bytes of one request of `tokens`), from vllm/v1/core/kv_cache_utils.py."""
    import torch
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
    from vllm.v1.kv_cache_layout import KVCacheLayout

    full, sliding, window, heads, dim = case
    common: dict[str, Any] = {
        "block_size": split.block_size,
        "num_kv_heads": max(1, heads // split.tensor_parallel),
        "head_size": dim,
        "dtype": {1: torch.float8_e4m3fn, 2: torch.bfloat16, 4: torch.float32}[bytes_],
    }
    specs: dict[str, Any] = {f"full.{i}": FullAttentionSpec(**common) for i in range(full)}
    specs |= {f"window.{i}": SlidingWindowSpec(**common, sliding_window=window) for i in range(sliding)}
    layout = next(iter(KVCacheLayout))
    config: Any = SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        model_config=SimpleNamespace(max_model_len=tokens),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=1),
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: layout, block_size=split.block_size),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        max_in_flight_tokens=split.in_flight,
    )
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    return (
        kv_cache_utils._pool_bytes_per_block(config, groups),
        kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups),
    )


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_vllms(case: tuple[int, int, int, int, int]) -> None:
    full, sliding, window, heads, dim = case
    layers = [LayerGroup(layers=full, heads=heads, width=2 * dim)] * bool(full)
    layers += [LayerGroup(layers=sliding, heads=heads, width=2 * dim, window=window)] * bool(sliding)
    kv, chance = KvLayers(groups=tuple(layers)), random.Random(0)
    for _ in range(12):
        split = Sharding(
            tensor_parallel=chance.choice((1, 2, 4, 16)),
            block_size=chance.choice((16, 64, 128)),
            in_flight=chance.choice((512, 8192, 32768)),
        )
        tokens, bytes_ = chance.choice((100, 4096, 33_333, 131_072)), chance.choice((1, 2, 4))
        block, reserved = of_vllm(case, split, tokens, bytes_)
        assert block_bytes(kv, bytes_, split) == block, split
        assert reserved_bytes(kv, bytes_, split, tokens) == reserved, (split, tokens)


def test_latent_bytes_are_vllms() -> None:
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    spec = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    kv = KvLayers(groups=(LayerGroup(layers=61, heads=1, width=576, shared=True),))
    for ranks in (1, 8):
        split = Sharding(block_size=64, tensor_parallel=ranks)
        assert block_bytes(kv, 2, split) == 61 * spec.page_size_bytes
        assert bytes_per_token(kv, 2, split) == 61 * spec.page_size_bytes / 64
