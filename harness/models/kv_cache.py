"""How many bytes of keys and values a checkpoint stores per token, and how many vLLM reserves for a prompt. Pure.

vLLM divides the KV cache into blocks of `block_size` tokens. A layer with full attention keeps the blocks of all
tokens. A layer with a sliding window keeps those of its window and of the tokens that are being computed; blocks that
fall out of the window are given back. Layers of several kinds are put into groups of equally many layers, which share
one pool of blocks (vLLM's hybrid KV cache manager, vllm/v1/core/kv_cache_utils.py). Multi-head latent attention (MLA:
DeepSeek-V2, arXiv 2405.04434, section 2.1) stores one vector per token and layer, on every tensor-parallel rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.models.checkpoint import Checkpoint

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}
_MLA_TYPES = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2", "kimi_linear",
    "longcat_flash", "pangu_ultra_moe", "axk1", "bailing_hybrid",
)  # fmt: skip
"""Model types whose latent attention vLLM stores as latent vectors. Others with `kv_lora_rank` store full heads."""


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Layers that store the same: how many there are, and what each stores per token.

    `heads`: vectors per token over all tensor-parallel ranks. `width`: elements of a key and its value together.
    `window`: the tokens that a layer attends to; None: all. `shared`: every rank stores the same vectors (MLA).
    """

    layers: int
    heads: int
    width: int
    window: int | None = None
    shared: bool = False

    def per_rank(self, ranks: int) -> int:
        """Elements per token, layer and tensor-parallel rank. With fewer heads than ranks, heads are copied."""
        return self.width * (self.heads if self.shared else max(1, self.heads // ranks))


@dataclass(frozen=True, kw_only=True)
class KvLayers:
    """The layers of a model that have a KV cache. `stateful`: layers with a state of fixed size (linear attention)."""

    groups: tuple[LayerGroup, ...]
    stateful: int = 0

    @property
    def window(self) -> int | None:
        """The window of the model's sliding layers; None where there are none."""
        return next((g.window for g in self.groups if g.window is not None), None)

    @property
    def kind(self) -> str:
        """For people: what the layers attend to."""
        parts = []
        for group in self.groups:
            words = "latent (MLA)" if group.shared else "full"
            parts.append(f"{group.layers} {words if group.window is None else f'window {group.window:,}'}")
        parts += [f"{self.stateful} without a KV cache"] if self.stateful else []
        return " + ".join(parts)

    def positions(self, tokens: int, group: LayerGroup) -> int:
        """Positions that a layer of `group` attends to at the end of a text of `tokens`."""
        return tokens if group.window is None else min(tokens, group.window)

    def attended(self, tokens: float, cached: float = 0.0) -> float:
        """Pairs of query and key of one head, as a mean over layers: the queries are tokens cached .. tokens - 1."""
        total = sum(g.layers for g in self.groups)
        return sum(g.layers * (_pairs(tokens, g.window) - _pairs(cached, g.window)) for g in self.groups) / max(
            total, 1
        )


def _pairs(tokens: float, window: int | None) -> float:
    """Sum of the keys that each of the first `tokens` queries attends to."""
    if window is None or tokens <= window:
        return tokens * (tokens + 1) / 2
    return window * (window + 1) / 2 + (tokens - window) * window


def kv_layers(checkpoint: Checkpoint) -> KvLayers | None:
    """What a checkpoint's layers store, from its config.json; None where that does not say it."""
    return layers_of(checkpoint.config)


def layers_of(config: Mapping[str, Any]) -> KvLayers | None:
    """`kv_layers` of the entries of a config.json (of a multimodal wrapper: of its `text_config`)."""
    count = config.get("num_hidden_layers")
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    if not isinstance(count, int) or not isinstance(heads, int):
        return None
    kinds = _kinds(config, count)
    stateful = sum(kind == "none" for kind in kinds)
    if is_latent(config):
        width = int(config["kv_lora_rank"]) + int(config.get("qk_rope_head_dim") or 0)
        return KvLayers(
            groups=(LayerGroup(layers=count - stateful, heads=1, width=width, shared=True),), stateful=stateful
        )
    head_dim = config.get("head_dim") or _head_dim(config)
    if not isinstance(head_dim, int):
        return None
    groups = []
    for window in dict.fromkeys(kind for kind in kinds if kind != "none"):
        at = "global_head_dim" if window is None and isinstance(config.get("global_head_dim"), int) else ""
        dim = int(config[at]) if at else head_dim
        of_group = config.get("num_global_key_value_heads") if window is None else None
        value_dim = config.get("v_head_dim") if isinstance(config.get("v_head_dim"), int) else dim
        groups.append(
            LayerGroup(
                layers=sum(kind == window for kind in kinds),
                heads=of_group if isinstance(of_group, int) else heads,
                width=dim + int(value_dim or dim),
                window=window if isinstance(window, int) else None,
            )
        )
    return KvLayers(groups=tuple(groups), stateful=stateful)


def is_latent(config: Mapping[str, Any]) -> bool:
    """Whether vLLM stores the model's keys and values as latent vectors."""
    return isinstance(config.get("kv_lora_rank"), int) and config.get("model_type") in _MLA_TYPES


def _head_dim(config: Mapping[str, Any]) -> int | None:
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) else None


def _kinds(config: Mapping[str, Any], count: int) -> list[int | str | None]:
    """For every layer that stores keys of its own: its window, None (all tokens), or "none" (no KV cache)."""
    window = config.get("sliding_window") or None
    if config.get("use_sliding_window") is False:
        window = None
    kinds: list[int | str | None] = []
    types = config.get("layer_types")
    if not isinstance(types, list) or len(types) != count:
        types = _default_types(config, count)
    for name in types:
        if name in ("linear_attention", "mamba", "mamba2", "conv", "recurrent"):
            kinds.append("none")
        elif name == "sliding_attention":
            kinds.append(window)
        elif name == "chunked_attention":
            kinds.append(config.get("attention_chunk_size") or window)
        else:
            kinds.append(None)
    shared = config.get("num_kv_shared_layers")  # Gemma 3n: the last layers read the keys of earlier ones
    return kinds[: count - shared] if isinstance(shared, int) and 0 < shared < count else kinds


def _default_types(config: Mapping[str, Any], count: int) -> list[str]:
    """The layer types where config.json names none, as transformers' config class of the family fills them."""
    kind = str(config.get("model_type"))
    if not config.get("sliding_window"):
        return ["full_attention"] * count
    if kind.startswith("gemma3") or kind in ("cohere2", "gemma2", "gpt_oss"):
        pattern = int(config.get("sliding_window_pattern") or {"gemma2": 2, "gpt_oss": 2, "cohere2": 4}.get(kind, 6))
        return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(count)]
    if kind.startswith(("qwen2", "qwen3")):  # only layers from `max_window_layers` on, and only if switched on
        first = int(config.get("max_window_layers") or 0)
        on = bool(config.get("use_sliding_window"))
        return ["sliding_attention" if on and i >= first else "full_attention" for i in range(count)]
    return ["sliding_attention"] * count  # Mistral, Phi-3, StarCoder 2: every layer


# ------------------------------------------------------------------------------------------------- bytes


def element_bytes(kv_cache_dtype: str | None, dtype: str) -> float | None:
    """Bytes of one stored element. `kv_cache_dtype`: the engine option; `dtype`: the model's running dtype.

    None where the type is one that this module does not know.
    """
    name = dtype if kv_cache_dtype in (None, "auto") else str(kv_cache_dtype)
    if name.startswith(("fp8", "int8")):
        return 1.0
    if name.startswith("nvfp4"):
        return 9 / 16  # four bits, and a scale of eight bits for sixteen of them
    return DTYPE_BYTES.get(name)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How a model is spread over devices, and how vLLM schedules it.

    `in_flight`: tokens that are being computed at once, by which a sliding window's cache is longer.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    block_size: int = 16
    in_flight: int = 16384

    def layers_on_one(self, layers: int) -> int:
        """Layers of so many on the pipeline stage that has most of them."""
        return math.ceil(layers / self.pipeline_parallel)


def bytes_per_token(kv: KvLayers, element: float, sharding: Sharding) -> float:
    """Bytes that one token adds to a short prompt, on the device with most layers."""
    return element * sum(sharding.layers_on_one(g.layers) * g.per_rank(sharding.tensor_parallel) for g in kv.groups)


def reserved_bytes(kv: KvLayers, element: float, sharding: Sharding, tokens: int) -> float:
    """Bytes that vLLM reserves on a device for one prompt and answer of `tokens` together.

    Whole blocks, of the window alone in sliding layers, and with the layers that vLLM adds to make groups equal.
    """
    blocks, block = _blocks(kv, element, sharding, tokens)
    return blocks * block


def block_bytes(kv: KvLayers, element: float, sharding: Sharding) -> float:
    """Bytes of one block of the pool. vLLM keeps one block for itself."""
    return _blocks(kv, element, sharding, 1)[1]


def _blocks(kv: KvLayers, element: float, sharding: Sharding, tokens: int) -> tuple[int, float]:
    """(blocks of the pool that one prompt takes, bytes of a block of the pool)."""
    size = sharding.block_size
    pages = [size * element * g.per_rank(sharding.tensor_parallel) for g in kv.groups]
    needed = [_group_blocks(g.window, sharding, tokens) for g in kv.groups]
    if len(kv.groups) == 1:
        return needed[0], sharding.layers_on_one(kv.groups[0].layers) * pages[0]
    # Pages of unequal size: vLLM makes the blocks of the smaller ones longer, so that pages are equal.
    largest = max(pages)
    needed = [math.ceil(n * page / largest) for n, page in zip(needed, pages, strict=True)]
    counts = [g.layers for g in kv.groups]
    together = group_size(counts)
    blocks = sum(math.ceil(count / together) * n for count, n in zip(counts, needed, strict=True))
    return blocks, sharding.layers_on_one(together) * largest


def group_size(layers: Sequence[int]) -> int:
    """Layers per group where a model has several kinds: the smallest kind's, or the largest's if that is little more.

    vLLM's rule in `_get_kv_cache_groups_uniform_page_size`: the largest below 1.5 times the smallest.
    """
    return max(layers) if max(layers) < 1.5 * min(layers) else min(layers)


def _group_blocks(window: int | None, sharding: Sharding, tokens: int) -> int:
    if window is None:
        return math.ceil(tokens / sharding.block_size)
    return math.ceil(min(window - 1 + sharding.in_flight, tokens) / sharding.block_size) + 1
