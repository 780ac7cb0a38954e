"""How long a decision's rounds are, where its two models' engines take turns: starting them should cost under 5 %.

What a start and a sample take is what run.json has recorded of them under `cost` (`harness.run.cost_log`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from harness.types import Cell

ANSWERING = 19.0
"""Seconds of answering for each second of starting engines: then these are 5 % of both."""


class Pace:
    """The times of a run's engines. `cost`: of run.json; what it does not tell counts as no time.

    `engine_of`: the name of the engine that answers a cell; None: its model's label.
    """

    def __init__(self, cost: Mapping[str, Any] | None, engine_of: Callable[[Cell], str] | None = None) -> None:
        self._engine_of: Callable[[Cell], str] = engine_of or (lambda cell: cell.model)
        models = cost.get("models") if isinstance(cost, Mapping) else None
        self._models: Mapping[str, Any] = models if isinstance(models, Mapping) else {}

    def start(self, engine: str) -> float:
        """Seconds that an engine usually takes to start: the median; 0 where none is recorded."""
        starts = self._of(engine).get("starts")
        return float(statistics.median(starts)) if starts else 0.0

    def sample(self, cell: Cell) -> float:
        """Seconds of answering one sample of a cell, its engine's mean where the cell has none recorded."""
        every = self._of(self._engine_of(cell)).get("observations") or []
        wanted = (cell.context, cell.benchmark, cell.task, cell.length)
        own = [o for o in every if tuple(o[key] for key in ("context", "benchmark", "task", "length")) == wanted]
        found = own or every
        samples = sum(o["samples"] for o in found)
        return float(sum(o["seconds"] for o in found) / samples) if samples else 0.0

    def is_long(self, more: Mapping[Cell, int], starts: Mapping[str, int]) -> bool:
        """Whether a round of so many `more` samples is long beside the `starts`, per engine, that it needs.

        Also where nothing is recorded of a start, or of an answer: then nothing can be said.
        """
        changing = sum(n * self.start(engine) for engine, n in starts.items())
        answering = sum(n * self.sample(cell) for cell, n in more.items())
        return answering >= ANSWERING * changing or answering == 0.0

    def _of(self, engine: str) -> Mapping[str, Any]:
        found = self._models.get(engine)
        return found if isinstance(found, Mapping) else {}
