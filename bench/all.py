"""`make bench`: every benchmark in turn, each in a process of its own; appends a dated section to docs/benchmarks.md.

Takes about twenty minutes on two idle cores. What is not there, or cannot run here, is a line that says so; one that
fails is too, and makes the exit code 1. `--only gate,sweep` runs some; `--dry` appends nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, note, section

BENCHES = {
    "ruler": ["--lengths", "4096,32768"],
    "choose": [],
    "sweep": [],
    "gate": [],
    "overhead": ["--pairs", "1"],
    "prefix": [],
    "fewshot": [],
    "startup": [],
}
"""Name -> arguments that keep it under three minutes; without them each measures more."""
DOCUMENT = ROOT / "docs" / "benchmarks.md"
LIMIT = 1200  # seconds a benchmark may take before it counts as hanging


def run(name: str, arguments: list[str]) -> dict[str, Any]:
    """One benchmark's JSON line; or its last line, where it prints none; or why there is nothing."""
    script = Path(__file__).parent / f"{name}.py"
    if not script.exists():
        return {"bench": name, "skipped": "not there yet"}
    note(f"--- {name}")
    try:
        done = subprocess.run(
            [sys.executable, str(script), *arguments], stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"bench": name, "failed": True, "line": f"failed: not done after {LIMIT} s"}
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    for line in lines:
        note(line if not line.startswith("{") else "")
    if done.returncode:
        return {"bench": name, "failed": True, "line": f"failed with exit code {done.returncode}: see stderr"}
    found = next((json.loads(line) for line in reversed(lines) if line.startswith("{")), None)
    if found is None:
        found = {"line": lines[-1] if lines else "printed nothing", "load": os.getloadavg()[0]}
    return {**found, "bench": name}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda s: s.split(","), default=list(BENCHES), metavar="NAME,NAME")
    parser.add_argument("--dry", action="store_true", help="print the section, append nothing")
    args = parser.parse_args()
    if unknown := [name for name in args.only if name not in BENCHES]:
        parser.error(f"unknown benchmark {unknown[0]!r}; there are {', '.join(BENCHES)}")
    results = [run(name, BENCHES[name]) for name in args.only]
    text = section(results)
    print(text)
    if not args.dry:
        with DOCUMENT.open("a", encoding="utf-8") as document:
            document.write("\n" + text)
        note(f"appended to {DOCUMENT.relative_to(ROOT)}")
    sys.exit(1 if any(r.get("failed") for r in results) else 0)


if __name__ == "__main__":
    main()
