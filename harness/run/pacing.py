"""How long a decision's rounds are, where its two models' engines take turns: starting them should cost under 5 %.

What a start and a sample take is what run.json has recorded of them under `cost` (`harness.run.cost_log`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from harness.types import Cell

ANSWERING = 19.0
"""Seconds of answering for each second of starting engines: then these are 5 % of both."""


class Pace:
    """The times of a run's models. `cost`: of run.json; what it does not tell counts as no time."""

    def __init__(self, cost: Mapping[str, Any] | None) -> None:
        models = cost.get("models") if isinstance(cost, Mapping) else None
        self._models: Mapping[str, Any] = models if isinstance(models, Mapping) else {}

    def start(self, model: str) -> float:
        """Seconds that an engine of the model usually takes to start: the median; 0 where none is recorded."""
        starts = self._of(model).get("starts")
        return float(statistics.median(starts)) if starts else 0.0

    def sample(self, cell: Cell) -> float:
        """Seconds of answering one sample of a cell, its model's mean where the cell has none recorded."""
        every = self._of(cell.model).get("observations") or []
        wanted = (cell.context, cell.benchmark, cell.task, cell.length)
        own = [o for o in every if tuple(o[key] for key in ("context", "benchmark", "task", "length")) == wanted]
        found = own or every
        samples = sum(o["samples"] for o in found)
        return float(sum(o["seconds"] for o in found) / samples) if samples else 0.0

    def is_long(self, more: Mapping[Cell, int], starts: Mapping[str, int]) -> bool:
        """Whether a round of so many `more` samples is long beside the `starts` of engines, per model, that it needs.

        Also where nothing is recorded of a start, or of an answer: then nothing can be said.
        """
        changing = sum(n * self.start(model) for model, n in starts.items())
        answering = sum(n * self.sample(cell) for cell, n in more.items())
        return answering >= ANSWERING * changing or answering == 0.0

    def _of(self, model: str) -> Mapping[str, Any]:
        found = self._models.get(model)
        return found if isinstance(found, Mapping) else {}
