"""What of a worker's device and libraries changes the low-order bits of its results."""

from __future__ import annotations

from typing import Any


def arithmetic(model: Any) -> dict[str, Any]:
    """One flat mapping of plain JSON values, by what a reader would look for. `model`: the worker's torch module.

    `vllm`, `torch`, `device` (its name), `capability` (of a GPU, "9.0"), `attention` (the backends of vLLM, joined by
    "+"), `batch_invariant`, `float32_matmul` (torch's precision of float32 products on a GPU: "ieee" or "tf32"; None on
    a CPU) and `float32_triton` (the same for Triton's kernels; None where vLLM runs none).

    The number of threads is no part of it.
    """
    import torch
    import vllm
    from vllm import envs
    from vllm.platforms import current_platform

    on_gpu = current_platform.is_cuda_alike()
    return {
        "vllm": str(vllm.__version__),
        "torch": str(torch.__version__),  # torch's own type of text; vLLM can send only plain ones
        "device": torch.cuda.get_device_name() if on_gpu else _cpu_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())) if on_gpu else None,
        "attention": "+".join(sorted(_backends(model))) or None,
        "batch_invariant": bool(getattr(envs, "VLLM_BATCH_INVARIANT", False)),
        "float32_matmul": _matmul_precision(torch) if on_gpu else None,
        "float32_triton": _triton_precision() if on_gpu else None,
    }


def _backends(model: Any) -> set[str]:
    """Names of the attention backends in `model`."""
    names = set()
    for module in model.modules():
        backend = getattr(module, "attn_backend", None)
        if backend is not None and hasattr(backend, "get_name"):
            names.add(str(backend.get_name()))
    return names


def _cpu_name() -> str:
    """The processor's model and the widest vector instructions that torch uses on it."""
    import platform

    import torch

    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def _matmul_precision(torch: Any) -> str:
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if precision in (None, "none"):
        return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return str(precision)


def _triton_precision() -> str:
    import os

    return os.environ.get("TRITON_F32_DEFAULT", "tf32")
