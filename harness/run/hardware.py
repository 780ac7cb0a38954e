"""The machine that a run is made on, for its manifest: processor, cores, memory, GPUs. Imports no torch."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_GPU_TIMEOUT = 20.0  # seconds; nvidia-smi takes one, and several where no driver process keeps the GPUs awake


def hardware() -> dict[str, Any]:
    """machine, system, python, cpu (its model name), cores (that this process may use), memory_gib, gpus (names).

    What the system does not tell is null; `gpus` is empty where there are none.
    """
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": memory_gib(),
        "gpus": gpu_names(),
    }


def cpu_name(proc: Path = _PROC) -> str | None:
    """The processor's model name; on ARM, where Linux gives none, its implementer and part numbers."""
    text = _read(proc / "cpuinfo")
    for key in ("model name", "Model", "Hardware"):
        if found := re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE):
            return found[1].strip()
    numbers = [re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE) for key in ("CPU implementer", "CPU part")]
    if all(numbers):
        return f"{platform.machine()}, implementer {numbers[0][1]}, part {numbers[1][1]}"  # type: ignore[index]
    return platform.processor() or None


def memory_gib(proc: Path = _PROC) -> float | None:
    """The machine's memory in GiB, one decimal."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    return round(int(found[1]) / 2**20, 1) if found else None


def gpu_names(command: tuple[str, ...] = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")) -> list[str]:
    """The names of the machine's NVIDIA GPUs, in the driver's order; empty without a driver."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
