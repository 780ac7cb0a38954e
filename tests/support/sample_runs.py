"""Runs on disk for the tests of store, tables and exports, written through the store, with invented answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.store import Store
from harness.types import Cell, Sample
from tasks.ruler.protocol import TASKS as RULER_TASKS

BINARY = {
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "qa_1",
    "qa_2",
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


def sample(
    id: str | int,
    scores: Mapping[str, float],
    *,
    prompt: str | None = None,
    hash: str = "h",
    finish_reason: str = "stop",
    **facts: Any,
) -> Sample:
    """A finished sample; its prompt is made from its id unless given."""
    prompt = f"prompt {id}" if prompt is None else prompt
    return Sample(
        id=str(id),
        hash=f"{hash}-{id}",
        prompt_tokens=100,
        references=["42"],
        response="the answer is 42",
        response_tokens=5,
        finish_reason=finish_reason,
        scores=dict(scores),
        seconds=0.5,
        extra={"prompt_hash": prompt, **facts},
    )


def config(
    models: Iterable[str] = ("baseline", "gated"),
    lengths: Iterable[int] = (4096, 8192),
    tasks: Iterable[str] = RULER_TASKS,
    **more: Any,
) -> dict[str, Any]:
    """A resolved config with a native context to 8K and a YaRN context to 32K."""
    return {
        "models": [{"label": m, "path": m} for m in models],
        "contexts": [
            {"label": "8k", "max_length": 8192, "rope_theta": 1e6, "yarn": None, "linear": None, "dynamic": None},
            {"label": "YaRN", "max_length": 32768, "rope_theta": 1e6, "yarn": YARN},
        ],
        "benchmarks": [
            {
                "ruler": list(tasks),
                "lengths": list(lengths),
                "samples": 20,
                "profile": "nvidia",
                "answer_prefix": "append",
            },
            {"mmlu": {"shots": 5, "subjects": ["anatomy", "virology"], "samples": None}},
            {"gsm8k": {"shots": 5, "samples": 20}},
        ],
        "seed": 42,
        **more,
    }


def table5_cells(settings: Mapping[str, Any], n: int = 20) -> dict[Cell, int | None]:
    """The plan of `config`: RULER where the context reaches, MMLU and GSM8k under both contexts."""
    cells: dict[Cell, int | None] = {}
    ruler = settings["benchmarks"][0]
    for model in settings["models"]:
        for context in settings["contexts"]:
            for length in ruler["lengths"]:
                if length <= context["max_length"]:
                    for task in ruler["ruler"]:
                        cells[Cell(model["label"], context["label"], "ruler", task, length)] = n
            for subject in settings["benchmarks"][1]["mmlu"]["subjects"]:
                cells[Cell(model["label"], context["label"], "mmlu", subject)] = n
            cells[Cell(model["label"], context["label"], "gsm8k", "gsm8k")] = n
    return cells


def answer(cell: Cell, i: int, skill: float) -> Sample:
    """A made-up answer: right with probability `skill`; deterministic per cell and id."""
    rng = random.Random(f"{cell.key} {i}")
    if cell.benchmark == "mmlu":
        scores = {"acc": float(rng.random() < skill)}
    elif cell.benchmark == "gsm8k":
        right = rng.random() < skill
        scores = {
            "exact_match,strict-match": float(right and rng.random() < 0.9),
            "exact_match,flexible-extract": float(right),
        }
    elif cell.task in BINARY:
        scores = {"score": float(rng.random() < skill)}
    else:
        parts = {"cwe": 10, "fwe": 3, "vt": 5}.get(cell.task, 4)
        scores = {"score": sum(rng.random() < skill for _ in range(parts)) / parts}
    capped = cell.task == "cwe" and rng.random() < 0.3
    return sample(
        i,
        scores,
        prompt=f"{cell.benchmark} {cell.task} {cell.length} {i}",
        hash=cell.key,
        finish_reason="length" if capped else "stop",
    )


def write_run(
    path: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    n: int = 20,
    skill: Callable[[Cell], float] = lambda cell: 0.5,
    finish: bool = True,
    **manifest: Any,
) -> Path:
    """A finished run with every planned sample."""
    settings = config() if settings is None else settings
    cells = table5_cells(settings, n)
    store = Store.open(path, {"config": settings, "seed": settings.get("seed"), **manifest}, cells=cells)
    for cell in cells:
        for i in range(n):
            store.append(cell, answer(cell, i, skill(cell)))
    if finish:
        store.finish()
    store.close()
    return path
