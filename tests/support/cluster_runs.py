"""Runs whose engines are a cluster's, without vLLM: a plan, the engine of its nodes, and what a run says."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.cluster.connection import Cluster
from harness.config import ContextSetting, Model, from_dict
from harness.engine.requests import Answer, EngineError, Prompt, Question
from harness.run.plan import Plan, build
from harness.run.progress import Progress
from harness.run.runner import run
from harness.run.session import Tally
from harness.store import Store
from tests.support.fake_engine import FakeEngine

ENGINE = "tests.support.cluster_runs:NodeEngine"


class NodeEngine(FakeEngine):
    """`FakeEngine`, told by files beside the checkpoint's folder, which every process sees.

    `poison`: labels of requests that end the engine, one a line. `pace`: seconds that every answer takes.
    """

    def __init__(self, model: Model, contexts: Sequence[ContextSetting], options: Any) -> None:
        super().__init__(model, contexts, options)
        self.facts = {**self.facts, "arithmetic": {"device": f"core of {model.label}"}}
        self.folder = Path(model.path).parent

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Answer]:
        poison = _lines(self.folder / "poison")
        pace = float((_lines(self.folder / "pace") or ["0"])[0])

        def watched() -> Iterator[Prompt | Question | None]:
            for request in requests:
                if request is not None and str(request.key) in poison:
                    raise EngineError("the engine died: signal 11")
                yield request

        for answer in super().answer(watched()):
            time.sleep(pace)
            yield answer


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


NAMES = ("baseline", "headwise")


def plan(folder: Path, *, samples: int = 12, models: int = 2) -> Plan:
    """One or two models under two settings, tasks that share beginnings and tasks that do not.

    `folder`: of tiny checkpoints.
    """
    return build(
        from_dict(
            {
                "name": "grid",
                "models": [{"label": name, "path": str(folder / name)} for name in NAMES[:models]],
                "contexts": [
                    {"label": "native", "max_length": 768},
                    {"label": "raised", "rope_theta": 5e5, "max_length": 1024},
                ],
                "benchmarks": [{"ruler": ["niah_single_1", "fwe"], "lengths": [512, 1024], "samples": samples}],
                "engine": {"dtype": "float32"},
            }
        )
    )


def run_here(made: Plan, path: Path) -> tuple[str, Tally]:
    """Run with one engine in this process, as without a cluster."""
    return run(made, path, progress=Progress(made, quiet=True), engine_factory=NodeEngine)


def run_on(cluster: Cluster, made: Plan, path: Path) -> tuple[str, Tally]:
    """Run with the engines of a cluster."""
    return run(made, path, progress=Progress(made, quiet=True), cluster=cluster)


def models_of(made: Plan) -> list[Any]:
    """What `Cluster` takes as `models`."""
    return [(planned.model, planned.checkpoint) for planned in made.models.values()]


def content(path: Path) -> dict[str, Any]:
    """Every sample of a run without its times: hash, answer, scores, arithmetic; failures; the derived table."""
    store = Store.read(path)
    found: dict[str, Any] = {"failures": dict(store.failures), "table": (path / "cells.csv").read_text()}
    for cell in store.cells:
        for s in store.samples(cell):
            found[f"{cell.key} {s.id}"] = (s.hash, s.response, s.response_tokens, s.scores, s.extra, s.arithmetic)
    return found


def lines(path: Path) -> list[str]:
    """Every line of every sample file."""
    return [line for file in (path / "samples").glob("*.jsonl") for line in file.read_text().splitlines()]
