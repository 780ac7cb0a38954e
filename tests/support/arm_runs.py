"""Runs with arms: two recipes, several checkpoints of each, perhaps at several steps, with invented answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.types import Cell
from tests.support.sample_runs import config, write_run

TASKS = ("niah_single_1", "vt")


def entries(seeds: int = 3, steps: Sequence[int] = (), arms: Sequence[str] = ("base", "gate")) -> list[dict[str, Any]]:
    """Entries of `models`: base-s1, base-s2, ..., with steps base-s1-1000, ..."""
    found = []
    for arm in arms:
        for seed in range(1, seeds + 1):
            for step in steps or (None,):
                label = f"{arm}-s{seed}" + ("" if step is None else f"-{step}")
                found.append({"label": label, "path": label, "arm": arm, **({} if step is None else {"step": step})})
    return found


def skill_of(cell: Cell, gain: float = 0.0, spread: float = 0.08) -> float:
    """A checkpoint's skill: its seed's, better by `gain` for the arm `gate`, growing over steps."""
    arm, seed, *step = cell.model.split("-")
    skill = 0.55 + random.Random(f"{arm} {seed}").uniform(-spread, spread) + gain * (arm == "gate")
    return min(0.98, max(0.02, skill - (300 / int(step[0]) if step else 0)))


def write_arms(
    path: Path,
    own: list[dict[str, Any]] | None = None,
    *,
    n: int = 12,
    skill: Callable[[Cell], float] = skill_of,
    table: dict[str, Any] | None = None,
    **facts: Any,
) -> Path:
    """A finished run of the models `own` on two RULER tasks, MMLU and GSM8k; `table`: the config's section."""
    models = entries() if own is None else own
    settings = config(models=(), tasks=TASKS, **({} if table is None else {"table": table}))
    settings["models"] = models
    known = {
        m["label"]: {
            "gate": "headwise" if m["label"].startswith("gate") else "none",
            "parameters": 1000,
            "fingerprint": f"print of {m['label']}",
            "engine": {"dtype": "float32", "seconds": i},
        }
        for i, m in enumerate(models)
    }
    baselines = dict.fromkeys(("8k", "YaRN"), models[0]["label"])
    facts = {"models": known, "comparisons": {"baselines": baselines}, **facts}
    return write_run(path, settings, n=n, skill=skill, **facts)
