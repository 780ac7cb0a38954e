"""What a checkpoint's weights take on a device, and how much arithmetic a token costs, from the tensors' headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.models.checkpoint import Checkpoint
from harness.models.headers import Tensor
from harness.models.kv_cache import DTYPE_BYTES, Sharding

_ONE_BYTE = ("float8", "F8", "int8", "uint8", "I8", "U8")
_MORE_BYTES = {"I64": 8, "I32": 4, "I16": 2, "int64": 8, "int32": 4, "int16": 2}
_EXPERTS = re.compile(r"\.experts\.")
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")


def weight_bytes(checkpoint: Checkpoint, dtype: str, sharding: Sharding, quantization: str | None = None) -> float:
    """Bytes of weights on the device that holds most of them. `dtype`: the one to run in.

    Weights of layers are spread over all devices; the embedding lies on the first pipeline stage, the output matrix on
    the last. `quantization`: of the weights while they are loaded; a matrix in a layer then takes a byte per element
    (fp8, int8) or half of one (4 bits). A checkpoint that is quantised already keeps its types.
    """
    stages, ranks = sharding.pipeline_parallel, sharding.tensor_parallel
    tied = bool(checkpoint.config.get("tie_word_embeddings"))
    per_layer: dict[int, float] = {}
    others: dict[str, float] = {}
    for name, tensor in checkpoint.tensors.items():
        found = _LAYER.search(name)
        matrix = found is not None and len(tensor.shape) > 1
        size = tensor.size * _element_bytes(tensor, dtype, checkpoint.quantisation, quantization if matrix else None)
        if found is not None:
            per_layer[int(found[1])] = per_layer.get(int(found[1]), 0.0) + size
        elif not (tied and name == "lm_head.weight"):
            others[name] = size
    stage = sum(sorted(per_layer.values(), reverse=True)[: sharding.layers_on_one(len(per_layer) or 1)])
    rest = sum(others.values()) if stages == 1 else max(others.values(), default=0.0)
    return (stage + rest) / ranks


def _element_bytes(tensor: Tensor, dtype: str, stored: str | None, quantization: str | None) -> float:
    own = _stored_bytes(tensor.dtype)
    if (stored is not None and own < 2) or tensor.dtype in _MORE_BYTES:
        return own  # quantised by the checkpoint's author
    if quantization is not None:
        return 0.5 if re.search(r"4|nf4|mxfp4|nvfp4", quantization) else 1.0
    return float(DTYPE_BYTES.get(dtype, own))


def _stored_bytes(dtype: str) -> float:
    if dtype.startswith(_ONE_BYTE):
        return 1.0
    return float(DTYPE_BYTES.get(dtype) or _MORE_BYTES.get(dtype) or 2)


def active_parameters(checkpoint: Checkpoint) -> int:
    """Parameters that one token of a prompt is multiplied with: without embeddings, and of experts the chosen ones."""
    config = checkpoint.config
    chosen = _number(config, "num_experts_per_tok", "num_experts_per_token", "top_k_experts")
    there = _number(config, "num_experts", "n_routed_experts", "num_local_experts")
    share = chosen / there if chosen and there else 1.0
    total = 0.0
    for name, tensor in checkpoint.tensors.items():
        if len(tensor.shape) > 1 and not name.endswith((*_EMBEDDINGS, "lm_head.weight")):
            total += tensor.size * (share if _EXPERTS.search(name) else 1.0)
    return round(total)


def output_parameters(checkpoint: Checkpoint) -> int:
    """Parameters of the output matrix, which a generated token is multiplied with besides."""
    config = checkpoint.config
    return int(config.get("vocab_size") or 0) * int(config.get("hidden_size") or 0)


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    return next((value for name in names if isinstance(value := config.get(name), int) and value > 0), None)
