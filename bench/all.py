"""`make bench`: run every benchmark in turn, each in its own process, and append a dated section to docs/benchmarks.md.

Takes about twenty minutes on two idle cores. A benchmark that is missing, cannot run here, or fails gets a line that
says why; a failure also makes the exit code 1. `--only gate,sweep` runs some of them; `--dry` appends nothing.
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
    "probe": ["--length", "32767"],
    "arms": ["--runs", "1000"],
    "precision": ["--runs", "2000", "--others", "300"],
    "rounds": [],
    "costs": [],
    "cluster": [],
    "engines": ["--pairs", "1"],
}
"""Name -> arguments with which it takes at most three minutes. Without arguments it measures more."""
DOCUMENT = ROOT / "docs" / "benchmarks.md"
LIMIT = 1200  # seconds; a benchmark that takes longer counts as failed


def run(name: str, arguments: list[str]) -> dict[str, Any]:
    """A benchmark's result: its JSON line, else its last line of text, else the reason why there is none."""
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
    result = next((json.loads(line) for line in reversed(lines) if line.startswith("{")), None)
    if result is None:
        result = {"line": lines[-1] if lines else "printed nothing", "load": os.getloadavg()[0]}
    return {**result, "bench": name}


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
