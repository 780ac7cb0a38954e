"""The devices that an engine will run on, and what vLLM takes as defaults there. Imports neither torch nor vLLM."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.config import EngineOptions
from harness.models.kv_cache import Sharding

GIB = 2**30
UTILIZATION = 0.92
"""vLLM 0.32's default of `gpu_memory_utilization`."""
_MLA_BLOCK = {"cpu": 16, "gpu": 64}
_BLOCK = {"cpu": 128, "gpu": 16}
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_TIMEOUT = 20.0  # seconds; nvidia-smi takes one, and several where no driver process keeps the GPUs awake


@dataclass(frozen=True, kw_only=True)
class Devices:
    """`kind`: cpu or gpu. `memory`: bytes of each device (of a CPU engine: of the machine). `count`: GPUs; 1 on a CPU.

    `cores`: that this process may use. `name`: for people.
    """

    kind: str
    memory: float
    count: int = 1
    cores: int = 1
    name: str = ""
    assumed: bool = False  # not this machine's

    @property
    def units(self) -> int:
        """Cores of a CPU engine, GPUs of another: what arithmetic is spread over."""
        return self.cores if self.kind == "cpu" else self.count


def here(*, gpu: bool) -> Devices | None:
    """This machine's devices. None: a GPU is used, and nvidia-smi does not tell its memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not gpu:
        return Devices(kind="cpu", memory=machine_memory(), cores=cores, name="this machine")
    try:
        done = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return gpus_of(done.stdout, cores) if done.returncode == 0 else None


def gpus_of(listing: str, cores: int) -> Devices | None:
    """GPUs from nvidia-smi's lines "name, MiB". The smallest counts: every rank takes the same share."""
    found = [line.rsplit(",", 1) for line in listing.splitlines() if re.search(r",\s*\d+\s*$", line)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        chosen = [int(index) for index in visible.split(",") if index.strip().isdigit()]
        found = [found[i] for i in chosen if i < len(found)] if chosen else found
    if not found:
        return None
    memory = min(int(size) for _, size in found) * 2**20
    return Devices(kind="gpu", memory=float(memory), count=len(found), cores=cores, name=found[0][0].strip())


def machine_memory(root: Path = Path("/")) -> float:
    """Bytes of the machine's memory, or of the container's limit where that is less."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = (root / file).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, float(text))
    return total


def batched_tokens(options: EngineOptions, devices: Devices) -> int:
    """Tokens of one step: the option, or vLLM's default for offline work (vllm/engine/arg_utils.py)."""
    if options.max_num_batched_tokens is not None:
        return options.max_num_batched_tokens
    ranks = options.tensor_parallel_size * options.pipeline_parallel_size
    return 4096 * ranks if devices.kind == "cpu" else (16384 if _is_large(devices) else 8192)


def sequences(options: EngineOptions, devices: Devices) -> int:
    """Prompts in flight: the option, or vLLM's default for offline work."""
    if options.max_num_seqs is not None:
        return options.max_num_seqs
    ranks = options.tensor_parallel_size * options.pipeline_parallel_size
    default = 256 * ranks if devices.kind == "cpu" else (1024 if _is_large(devices) else 256)
    return min(default, batched_tokens(options, devices))


def _is_large(devices: Devices) -> bool:
    return devices.memory >= 160 * GIB or (devices.memory >= 70 * GIB and "a100" not in devices.name.lower())


def sharding(options: EngineOptions, devices: Devices, *, latent: bool) -> Sharding:
    """How vLLM spreads a model and its cache over the devices. `latent`: it has multi-head latent attention."""
    block = options.block_size or (_MLA_BLOCK if latent else _BLOCK)[devices.kind]
    batches = options.pipeline_parallel_size
    if devices.kind == "gpu" and batches == 1:
        batches = 2  # asynchronous scheduling, which vLLM does not have on a CPU
    return Sharding(
        tensor_parallel=options.tensor_parallel_size,
        pipeline_parallel=options.pipeline_parallel_size,
        block_size=block,
        in_flight=batches * batched_tokens(options, devices),
    )
