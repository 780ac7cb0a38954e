"""Wall time of a run that samples to a precision, against the run with equal counts that is as precise.

The demo's models on ten of RULER's tasks, which need no other data. The first run has a `precision`. The second gives
every task, length and model the same number of samples: the smallest with which, by the scores of the first run, the
interval of every reported number is as narrow as the precision. Both are whole commands, in turn, in folders of their
own: start of the engines, planning, rounds and table count. The half-widths that both tables really report are printed
beside.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from common import CACHE, ROOT, emit, note
from scipy import special

DEMO = ROOT / "tasks" / "demo"
TASKS = [
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
    "niah_multivalue", "niah_multiquery", "vt", "fwe",
]  # fmt: skip
FOLDER = CACHE / "rounds"


def config(samples: Any, lengths: list[int], models: list[str]) -> dict[str, Any]:
    """Models of the demo under the setting that they were trained with last."""
    return {
        "name": "rounds",
        "models": [{"label": model, "path": str(DEMO / "models" / model / "long")} for model in models],
        "contexts": [{"label": "base 1M", "rope_theta": 1_000_000, "max_length": 2048}],
        "benchmarks": [{"ruler": TASKS, "lengths": lengths, "samples": samples, "profile": "fair"}],
        "data": str(DEMO / "data"),
        "results": str(FOLDER / "results"),
        "engine": {"dtype": "float32"},
    }


def timed(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Run a config from nothing; what it took and what it reported."""
    file, run = FOLDER / f"{name}.yaml", FOLDER / "results" / name
    shutil.rmtree(run, ignore_errors=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(facts))
    since = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "cli.py", "run", str(file), "-o", str(run), "--quiet", "--format", "json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall = time.perf_counter() - since
    if done.returncode:
        raise SystemExit(f"gatedeval run {file}: {done.stderr[-2000:]}")
    manifest = json.loads((run / "run.json").read_text())
    models = manifest["cost"]["models"].values()
    observations = [o for model in models for o in model["observations"]]
    found = {
        "wall": wall,
        "start": sum(second for model in models for second in model["starts"]),
        "answering": sum(o["seconds"] for o in observations),
        "samples": sum(o["samples"] for o in observations),
        "computed": sum(o["work"]["computed"] for o in observations),
        "rounds": [len(entry["samples"]) for entry in manifest.get("rounds") or []],
        "halves": halves(run),
    }
    note(f"{name}: " + ", ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()))
    return found


def halves(run: Path) -> list[float]:
    """Half of every interval that the run's table reports, in points."""
    from harness.store import Store
    from harness.tables import table5

    intervals = [entry.interval for row in table5(Store.read(run)).rows for entry in row if entry.interval is not None]
    return [(high - low) / 2 for low, high in intervals]


def equal_count(run: Path, half: float) -> int:
    """Samples per task with which the interval of every reported mean is expected to be `half` points at each side."""
    from harness.store import Store

    store = Store.read(run)
    needed = 0.0
    for number in {(cell.model, cell.length) for cell in store.cells}:
        columns = [store.scores(cell).scores for cell in store.cells if (cell.model, cell.length) == number]
        variance = sum(float(np.var(c, ddof=1)) for c in columns) / len(columns) ** 2
        needed = max(needed, variance * (100 * float(special.ndtri(0.975)) / half) ** 2)
    return max(2, round(needed))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", type=float, default=1.0, help="half-width in points (default: 1.0)")
    parser.add_argument("--at-least", type=int, default=50, help="samples per task of the first round (default: 50)")
    parser.add_argument("--lengths", default="1024,2048", help="of prompts and answers (default: 1024,2048)")
    parser.add_argument("--models", default="baseline,headwise,elementwise", help="of the demo (default: all three)")
    parser.add_argument("--repeats", type=int, default=1, help="pairs of runs (default: 1)")
    args = parser.parse_args()
    lengths, models = [int(n) for n in args.lengths.split(",")], args.models.split(",")
    rule = {"precision": args.precision, "at_least": args.at_least, "at_most": 2000}
    pairs, count = [], 0
    for _ in range(args.repeats):
        goal = timed("precision", config(rule, lengths, models))
        count = count or equal_count(FOLDER / "results" / "precision", args.precision)
        pairs.append((goal, timed("equal", config(count, lengths, models))))
    ratio = statistics.median(a["wall"] / b["wall"] for a, b in pairs)
    answering = statistics.median(a["answering"] / b["answering"] for a, b in pairs)
    goal, equal = pairs[0]
    emit(
        "rounds",
        f"a run with precision {args.precision:g} takes {ratio:.2f} x the wall time of the run with {count} samples"
        f" per task, length and model (median of {len(pairs)}; at most 0.5 is asked for); answering {answering:.2f} x,"
        f" samples {goal['samples']:,} against {equal['samples']:,}; half-widths"
        f" {max(goal['halves']):.2f} against {max(equal['halves']):.2f} points at most",
        ratio=ratio, answering=answering, count=count, bar=0.5, pairs=pairs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
