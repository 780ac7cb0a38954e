"""Whether the engines of several models can run at once: for `decide`, whose models answer in turn, round by round.

What `harness.cost.memory` refuses is certain; here it is the reverse: engines are kept beside each other only where
there is room left for what is not known before a start (activations, CUDA's context, the processes themselves).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.config import EngineOptions
from harness.cost.devices import GIB, UTILIZATION
from harness.cost.memory import Memory

_CPU_SHARE = 0.8
"""The part of a machine's memory that CPU engines beside each other may take."""
_CPU_PROCESS = 2 * GIB
"""What a process of a CPU engine takes beside weights, keys and values: libraries, activations."""
_GPU_ROOM = (4 * GIB, 0.05)
"""What a rank of a GPU engine takes beside them: so much, or this part of the GPU, whichever is more."""
_PROMPTS = 2
"""Longest prompts that the pool of a GPU engine has to hold: with one, every prompt would wait for the one before."""


def options_beside(memories: Sequence[Memory], options: EngineOptions) -> EngineOptions | None:
    """The engine options with which an engine for each of `memories` runs at once; None: they do not fit, or may not.

    `memories`: of each engine, under its longest context setting; all on the same devices.

    vLLM takes the share `gpu_memory_utilization` of a GPU for one engine, and refuses to start where so much is not
    free. So every engine gets its part of vLLM's default. A share that the config sets stays as it is: engines fit
    where it does so many times.
    """
    if len(memories) < 2:
        return options
    if memories[0].devices.kind == "cpu":
        return options if _fit_cpu(memories) else None
    most = UTILIZATION / len(memories)
    share = options.gpu_memory_utilization or most
    if share > most or not all(_fits_gpu(memory, options, share) for memory in memories):
        return None
    return options.model_copy(update={"gpu_memory_utilization": share})


def _fit_cpu(memories: Sequence[Memory]) -> bool:
    """All ranks of all CPU engines are in the same memory."""
    needed = 0.0
    for memory in memories:
        if memory.pool is None:
            return False
        ranks = memory.split.tensor_parallel * memory.split.pipeline_parallel
        needed += ranks * (memory.weights + memory.pool + _CPU_PROCESS)
    return needed <= _CPU_SHARE * memories[0].devices.memory


def _fits_gpu(memory: Memory, options: EngineOptions, share: float) -> bool:
    """Whether one engine has room in its share of each GPU."""
    if memory.longest is None:
        return False
    pool = _PROMPTS * memory.longest if options.kv_cache_gib is None else options.kv_cache_gib * GIB
    least, part = _GPU_ROOM
    room = max(least, part * memory.devices.memory)
    return memory.weights + pool + room <= share * memory.devices.memory
