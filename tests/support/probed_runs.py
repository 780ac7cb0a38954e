"""Runs on disk with probes, written through the store, with invented numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.store import Store
from harness.store.probes import Probes
from harness.types import Cell
from tests.support.sample_runs import config, write_run

LAYERS, HEADS = 4, 2
FIRST = {"baseline": 0.4, "gated": 0.05}
"""F-Attn of each model under every context setting."""


def record(**changes: Any) -> dict[str, Any]:
    """The record of one probe, as `harness.run.probing` stores it."""
    made = {
        "model": "m", "context": "native", "length": 512, "tokens": 511, "hash": "h", "text": "essays", "gate": "none",
        "first_query": False, "rows": 511, "exact": True, "first_token_attention": 0.3, "sink_rate": 0.5,
        "first_token_attention_error": 0.0, "largest_activation": 1000.0, "gate_mean": None, "gate_low": None,
        "perplexity": 20.0, "small_before": [0.01, 0.0], "small_after": None, "small_scaled": None,
    }  # fmt: skip
    return made | changes


def arrays(first: float, *, gated: bool, maps: Iterable[tuple[int, int]] = ()) -> dict[str, Any]:
    """Arrays of one probe whose mean F-Attn over layers is `first`."""
    by_layer = first * np.linspace(0.5, 1.5, LAYERS)
    weights = np.tril(np.ones((16, 16)))
    weights /= weights.sum(axis=1, keepdims=True)
    found = {
        "first": np.repeat(by_layer[:, None], HEADS, axis=1),
        "first_layer": by_layer,
        "hidden": np.array([[10.0 * (i + 1), 3, 7] for i in range(LAYERS)]),
        "final": np.array([12.0, 0, 1]),
        "gate_histogram": np.full((LAYERS, 50), 2.0) if gated else np.zeros((0, 50)),
    }
    return found | {f"map_{layer}_{head}": weights.astype(np.float32) for layer, head in maps}


def write_probes(path: Path, lengths: Iterable[int] = (4096, 8192), contexts: Iterable[str] = ("8k", "YaRN")) -> None:
    """Store the probes of `FIRST`'s models, planned in run.json."""
    store, planned = Probes(path), []
    for model, first in FIRST.items():
        gated = model != "baseline"
        more: Mapping[str, Any] = (
            {"gate": "headwise", "gate_mean": 0.31, "gate_low": 0.1, "small_after": [0.2, 0.05],
             "small_scaled": [0.1, 0.01]}
            if gated else {}
        )  # fmt: skip
        for context in contexts:
            for length in lengths:
                key = {"model": model, "context": context, "length": length, "hash": f"{model}-{context}-{length}"}
                made = record(**key, first_token_attention=first, text="essays", **more)
                store.add(made, arrays(first, gated=gated, maps=[(0, 0), (3, 1)]))
                planned.append(key)
    with Store.open(path, Store.read(path).manifest, cells=Store.read(path).cells) as run:
        run.update_manifest(probes=planned)
        run.finish()


def probed_run(path: Path, **settings: Any) -> Path:
    """Two models with scores and probes. Under YaRN the baseline answers nothing right, the gated model all."""

    def skill(cell: Cell) -> float:
        return 1.0 if cell.context == "8k" or cell.model == "gated" else 0.0

    write_run(
        path,
        config(tasks=["niah_single_1"], **settings),
        n=2,
        skill=skill,
        models={m: {"fingerprint": m} for m in FIRST},
    )
    write_probes(path)
    return path


def probes_alone(path: Path, **settings: Any) -> Path:
    """A run of probes without a benchmark."""
    settings = {k: v for k, v in config(**settings).items() if k != "benchmarks"}
    with Store.open(path, {"config": settings, "name": "alone", "models": {}}, cells={}) as run:
        run.finish()
    write_probes(path)
    return path
