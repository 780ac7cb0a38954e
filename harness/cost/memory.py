"""What a model under a context setting takes on each device, and why it cannot fit.

What is refused is certain: weights and keys and values alone are too much. What a model's activations take is not in
it, because vLLM measures that itself when it starts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from harness.config import EngineOptions, Model
from harness.cost.devices import GIB, UTILIZATION, Devices, sequences, sharding
from harness.engine.precision import running_dtype
from harness.engine.start import kv_cache_bytes
from harness.models.checkpoint import Checkpoint
from harness.models.kv_cache import (
    KvLayers,
    Sharding,
    block_bytes,
    bytes_per_token,
    element_bytes,
    kv_layers,
    reserved_bytes,
)
from harness.models.weights import weight_bytes

_CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on each device. None: config.json, or the KV cache's type, does not say it.

    `weights`; `pool`: for keys and values; `longest`: of one prompt and answer of `max_length` tokens; `token`: of one
    token; `block`: of one block of the pool. `kv`: what the layers store; `element`: bytes of a stored element.
    """

    devices: Devices
    split: Sharding
    weights: float
    max_length: int
    seqs: int
    kv: KvLayers | None
    element: float | None
    pool: float | None

    @property
    def token(self) -> float | None:
        """Bytes of one token of a short prompt."""
        return bytes_per_token(self.kv, self.element, self.split) if self.kv and self.element else None

    @property
    def longest(self) -> float | None:
        """Bytes that vLLM reserves for one prompt and answer of `max_length` tokens."""
        return self.of(self.max_length)

    def of(self, tokens: int) -> float | None:
        """Bytes that vLLM reserves for one prompt and answer of so many tokens."""
        return reserved_bytes(self.kv, self.element, self.split, tokens) if self.kv and self.element else None

    @property
    def usable(self) -> float | None:
        """The pool without the block that vLLM keeps for itself."""
        if self.pool is None or self.kv is None or self.element is None:
            return self.pool
        return self.pool - block_bytes(self.kv, self.element, self.split)

    def together(self, tokens: float, samples: int) -> int:
        """How many of `samples` prompts of that length vLLM works on at once: at least 1."""
        size = self.of(max(1, round(tokens)))
        room = self.seqs if not size or self.usable is None else int(self.usable // size)
        return max(1, min(self.seqs, room, samples))


def memory_of(
    model: Model, checkpoint: Checkpoint, options: EngineOptions, devices: Devices, max_length: int
) -> Memory:
    """What `model` takes under a setting of `max_length` tokens."""
    kv = kv_layers(checkpoint)
    latent = bool(kv and any(g.shared for g in kv.groups))
    split = sharding(options, devices, latent=latent)
    dtype = running_dtype(model.dtype, checkpoint.dtype)
    stored = dtype if dtype != "auto" else "bfloat16"
    weights = weight_bytes(checkpoint, stored, split, options.quantization)
    return Memory(
        devices=devices,
        split=split,
        weights=weights,
        max_length=max_length,
        seqs=sequences(options, devices),
        kv=kv,
        element=element_bytes(options.kv_cache_dtype, stored),
        pool=_pool(checkpoint, options, devices, weights, max_length),
    )


def _pool(
    checkpoint: Checkpoint, options: EngineOptions, devices: Devices, weights: float, max_length: int
) -> float | None:
    """Bytes for keys and values on each device: as configured; else what vLLM finds, activations not taken off."""
    if devices.kind == "cpu":
        given = os.environ.get(_CPU_SPACE, "")
        try:
            return float(given) * GIB if given else float(kv_cache_bytes(checkpoint, options, max_length))
        except ValueError:
            return None  # vLLM refuses it by itself
    if options.kv_cache_gib is not None:
        return options.kv_cache_gib * GIB
    return devices.memory * (options.gpu_memory_utilization or UTILIZATION) - weights


def refusals(
    memory: Memory, options: EngineOptions, label: str, context: str, heads: int | None, dtype_key: str = "engine.dtype"
) -> list[str]:
    """Why a model cannot run under a setting on these devices, each with the option to change; empty: nothing known.

    `label`, `context`: of the model and the setting, `heads`: its attention heads. `dtype_key`: the key of the config
    that sets its dtype.
    """
    devices, ranks = memory.devices, options.tensor_parallel_size
    wanted = ranks * options.pipeline_parallel_size
    if devices.kind == "gpu" and wanted > devices.count:
        return [
            f"engine: tensor_parallel_size {ranks} x pipeline_parallel_size {options.pipeline_parallel_size} ask for"
            f" {wanted} GPUs, and there are {devices.count}; lower one of them"
        ]
    if heads and heads % ranks:
        fits = [n for n in range(1, min(heads, 16) + 1) if heads % n == 0]
        return [
            f"engine.tensor_parallel_size {ranks} does not divide the {heads} attention heads of model {label!r}; use"
            f" one of {', '.join(map(str, fits))}"
        ]
    problem = _weights_refusal(memory, options, label, dtype_key)
    problem = problem or _cache_refusal(memory, options, label, context, dtype_key)
    return [problem] if problem else []


def _weights_refusal(memory: Memory, options: EngineOptions, label: str, dtype_key: str) -> str | None:
    devices = memory.devices
    if devices.kind == "cpu":
        # all ranks of a CPU engine are in the same memory
        ranks = memory.split.tensor_parallel * memory.split.pipeline_parallel
        pool = memory.pool or 0.0
        if (needed := ranks * (memory.weights + pool)) <= devices.memory:
            return None
        return (
            f"model {label!r}: weights of {gib(ranks * memory.weights)} and a KV cache of {gib(ranks * pool)} are more"
            f" than this machine's {gib(devices.memory)}: lower"
            + (" engine.kv_cache_gib," if needed - ranks * pool < devices.memory else "")
            + f" the context's max_length, or choose a dtype of fewer bytes ({dtype_key}, engine.quantization)"
        )
    share = options.gpu_memory_utilization or UTILIZATION
    if options.kv_cache_gib is not None:
        fits = memory.weights + options.kv_cache_gib * GIB <= devices.memory
        have, also = gib(devices.memory), f" and the {options.kv_cache_gib:g} GiB of engine.kv_cache_gib"
    else:
        fits = memory.weights < devices.memory * share
        have, also = f"{gib(devices.memory * share)} ({share:g} of {gib(devices.memory)})", ""
    if fits:
        return None
    return (
        f"model {label!r}: its weights take {gib(memory.weights)} on each GPU{also}, and vLLM may use {have}: raise"
        " engine.tensor_parallel_size (or pipeline_parallel_size)"
        + (", lower engine.kv_cache_gib" if also else ", raise engine.gpu_memory_utilization")
        + f", or choose a dtype of fewer bytes ({dtype_key}, engine.quantization)"
    )


def _cache_refusal(memory: Memory, options: EngineOptions, label: str, context: str, dtype_key: str) -> str | None:
    longest, usable = memory.longest, memory.usable
    if longest is None or usable is None or longest <= usable:
        return None
    on_cpu = memory.devices.kind == "cpu"
    if on_cpu and os.environ.get(_CPU_SPACE):
        whence, knob = f"{_CPU_SPACE} gives", f"raise {_CPU_SPACE}"
    elif options.kv_cache_gib is not None:
        whence, knob = f"engine.kv_cache_gib {options.kv_cache_gib:g} gives", "raise engine.kv_cache_gib"
    elif on_cpu:
        whence, knob = "a quarter of this machine's memory is", "set engine.kv_cache_gib"
    else:
        whence, knob = "the weights leave", "raise engine.gpu_memory_utilization or engine.tensor_parallel_size"
    return (
        f"model {label!r}, context {context!r}: the keys and values of one longest prompt and answer"
        f" ({memory.max_length:,} tokens) take {gib(longest)} on each device, and {whence} {gib(max(usable, 0.0))}:"
        f" {knob}, lower the context's max_length, or store fewer bytes (engine.kv_cache_dtype, {dtype_key})"
    )


def gib(size: float) -> str:
    """Bytes in words: "3.2 GiB", "12 MiB", "0.5 KiB"."""
    for unit, bytes_ in (("GiB", GIB), ("MiB", 2**20)):
        if size >= 0.1 * bytes_:
            number = size / bytes_
            return f"{number:,.1f} {unit}" if number < 100 else f"{number:,.0f} {unit}"
    return f"{size / 2**10:,.1f} KiB"
