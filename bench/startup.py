"""How long commands take to start: `gatedeval --help`, and `gatedeval plan` on configs with RULER, MMLU and GSM8k.

Wall time and CPU time of whole processes: the fastest of several, after one run that is not counted (it may compile
bytecode). If the machine does other work at the same time, read the CPU time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import CACHE, ROOT, data_folder, emit, note

RULER = """
name: startup
models: [{label: model, path: %s}]
contexts: [{label: native}]
benchmarks: [{ruler: [niah_single_1, fwe], lengths: [1024, 2048], samples: 20}]
"""
MORE = "  - {mmlu: [anatomy], shots: 2, samples: 20}\n  - {gsm8k: {shots: 2, samples: 20}}\n"


def seconds(command: list[str], repeats: int) -> tuple[float, float]:
    """(wall, CPU) seconds: each the smallest of `repeats` runs, after one run that is not counted."""
    walls, used = [], []
    for _ in range(repeats + 1):
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        walls.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    note(f"{' '.join(command[2:])}: " + ", ".join(f"{w:.2f} s ({c:.2f} CPU)" for w, c in zip(walls, used, strict=True)))
    return min(walls[1:]), min(used[1:])


def heavy_imports(command: list[str]) -> list[str]:
    """The slow packages that a command imports."""
    done = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    return sorted(names & {"torch", "vllm", "transformers", "lm_eval", "datasets", "pandas", "scipy", "matplotlib"})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    from harness.models.tiny import make_tiny

    make_tiny(CACHE / "tiny")
    cli = [sys.executable, "cli.py"]
    data = data_folder()
    with tempfile.TemporaryDirectory() as folder:
        ruler, every = Path(folder) / "ruler.yaml", Path(folder) / "all.yaml"
        text = RULER % (CACHE / "tiny" / "baseline")
        ruler.write_text(text)
        commands = {"--help": [*cli, "--help"], "plan, RULER alone": [*cli, "plan", str(ruler)]}
        if data is not None:
            head, _, benchmark = text.partition("benchmarks: [")
            every.write_text(f"{head}benchmarks:\n  - {benchmark.strip().removesuffix(']')}\n{MORE}")
            commands["plan, RULER + MMLU + GSM8k"] = [*cli, "plan", str(every), "--data", str(data)]
        found = {name: seconds(command, args.repeats) for name, command in commands.items()}
        imports = {name: heavy_imports(command) for name, command in commands.items()}
    parts = [
        f"{name} {wall:.2f} s ({cpu:.2f} s of CPU; imports {', '.join(imports[name]) or 'nothing heavy'})"
        for name, (wall, cpu) in found.items()
    ]
    emit("startup", "; ".join(parts) + "; asked for: --help 0.3 s, plan 3 s", seconds=found, imports=imports)


if __name__ == "__main__":
    main()
