"""Predicted time over real time of three kinds of runs, each measured by `plan --measure` and then run at once.

`needles`: a demo model on RULER from 512 to 8192 tokens (long prompts, shared prefixes, the generator matters).
`choices`: the same model on multiple choice and word problems (many short requests, decoding).
`language`: SmolLM2-135M on RULER at 1024 tokens (a real model, where reading prompts is nearly all).

With --again, a second run of each is predicted from the first one. Bar: within 25 % on a machine that does nothing
else; while other work runs, the load changes between the measurement and the run, so look at the median over repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from common import CACHE, ROOT, data_folder, emit, note

DEMO = ROOT / "tasks" / "demo"
LONG = {"rope_theta": 1_000_000, "yarn": {"factor": 4, "original_max_position_embeddings": 2048}, "max_length": 8192}


def configs() -> dict[str, dict[str, Any]]:
    """Name -> config; those whose files are here."""
    demo = {
        "models": [{"label": "headwise", "path": str(DEMO / "models/headwise/long")}],
        "data": str(DEMO / "data"),
        "engine": {"dtype": "float32"},
    }
    needles = ["niah_single_2", "niah_multikey_1", "niah_multikey_2"]
    short = {"ruler": needles, "lengths": [512, 1024, 2048], "samples": 48, "profile": "fair", "answer_tokens": 16}
    found: dict[str, dict[str, Any]] = {
        "needles": {
            **demo,
            "contexts": [{"label": "YaRN", **LONG}],
            "benchmarks": [short, {**short, "ruler": needles[:2], "lengths": [4096, 8192], "samples": 12}],
        },
        "choices": {
            **demo,
            "contexts": [{"label": "base 1M", "rope_theta": 1_000_000, "max_length": 2048}],
            "benchmarks": [{"lm_eval": "demo_choice", "shots": 3}, {"lm_eval": "demo_words", "shots": 3}],
        },
    }
    smollm2 = Path(os.environ.get("SMOLLM2", ROOT / ".cache" / "smollm2")) / "baseline"
    if smollm2.is_dir() and (data := data_folder()) is not None:
        found["language"] = {
            "models": [{"label": "SmolLM2-135M", "path": str(smollm2)}],
            "contexts": [{"label": "native", "max_length": 2048}],
            "benchmarks": [{"ruler": ["niah_single_1", "vt"], "lengths": [1024], "samples": 12}],
            "data": str(data),
            "engine": {"dtype": "float32"},
        }
    return found


def gatedeval(*arguments: str) -> None:
    """Run a command; its errors end the benchmark."""
    done = subprocess.run([sys.executable, "cli.py", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"gatedeval {' '.join(arguments)}: {done.stderr[-2000:]}")


def measured(name: str, config: dict[str, Any], folder: Path, runs: int) -> list[dict[str, float]]:
    """Predicted and real seconds of `runs` runs: from the calibration, then from the runs before as well."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"name": name, "results": str(folder / "results"), **config}))
    gatedeval("plan", str(file), "--measure")
    found = []
    for number in range(1, runs + 1):
        run = folder / "results" / f"run{number}"
        gatedeval("run", str(file), "-o", str(run), "--quiet")
        cost = json.loads((run / "run.json").read_text())["cost"]
        [session] = cost["sessions"]
        observations = [o for model in cost["models"].values() for o in model["observations"]]
        found.append(
            {
                "predicted": session["predicted_seconds"],
                "real": session["seconds"],
                "ratio": session["predicted_seconds"] / session["seconds"],
                "answering": sum(o["predicted_seconds"] for o in observations)
                / sum(o["seconds"] for o in observations),
                "load": os.getloadavg()[0],
            }
        )
        note(f"{name}, run {number}: " + ", ".join(f"{key} {value:.2f}" for key, value in found[-1].items()))
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--again", action="store_true", help="run each twice")
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    wanted = {k: v for k, v in configs().items() if not args.only or k in args.only.split(",")}
    results = {
        name: [measured(name, config, CACHE / "costs" / name, 1 + args.again) for _ in range(args.repeats)]
        for name, config in wanted.items()
    }
    parts = []
    for name, repeats in results.items():
        whole, answering = (statistics.median(runs[0][key] for runs in repeats) for key in ("ratio", "answering"))
        part = f"{name} {whole:.2f} ({answering:.2f} of answering) from a calibration"
        if args.again:
            whole, answering = (statistics.median(runs[1][key] for runs in repeats) for key in ("ratio", "answering"))
            part += f", {whole:.2f} ({answering:.2f}) with an earlier run"
        parts.append(part)
    emit("costs", "predicted / real wall time: " + "; ".join(parts) + "; asked for: 0.75 to 1.25", results=results)


if __name__ == "__main__":
    main()
