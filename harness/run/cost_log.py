"""What a session of a run really took, beside what was predicted: recorded in run.json under `cost`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.cost.work import Work, work_of
from harness.engine.requests import Answer, Completion, SampleRequest
from harness.run.costs import Costs
from harness.store.manifest import now
from harness.types import Cell

_MOST_OBSERVATIONS = 500  # per model; a run that was resumed many times forgets its oldest


@dataclass
class _Cell:
    """Answers of one cell in this session."""

    samples: int = 0
    seconds: float = 0.0
    answers: float = 0.0  # tokens
    completions: int = 0
    work: Work = field(default_factory=Work)


class CostLog:
    """Counts the work and the seconds of a session, per engine and cell. `clock`: seconds from any fixed point.

    The time between two answers belongs to the cell of the later one. Prompts of two cells are in the engine at once
    only while one cell ends and the next begins.

    A session on a cluster predicts nothing and records no speeds: they would be taken for those of one engine.
    """

    def __init__(self, costs: Costs, clock: Callable[[], float] = time.monotonic) -> None:
        self.costs, self._clock = costs, clock
        self._one_engine = costs.plan.config.cluster is None
        self._began, self._when = clock(), now()
        self._last = self._began
        self._cells: dict[Cell, _Cell] = {}
        self._starts: dict[str, list[float]] = {}
        self._switches: dict[str, list[float]] = {}
        self._predicted: float | None = None
        self._pending: dict[Cell, int] = {}

    def begin(self, pending: Mapping[Cell, int]) -> float | None:
        """The session starts, with so many samples to answer. Returns the predicted seconds; None: nothing is known."""
        self._began, self._pending = self._clock(), {cell: n for cell, n in pending.items() if n > 0}
        if self._pending and self.costs.measured and self._one_engine:
            self._predicted = self.costs.total(self._pending)
        return self._predicted

    def started(self, label: str, seconds: float) -> None:
        """An engine took so long to start."""
        self._starts.setdefault(label, []).append(round(seconds, 3))

    def switched(self, label: str, seconds: float) -> None:
        """A setting was put in force and checked."""
        self._switches.setdefault(label, []).append(round(seconds, 3))

    def waits(self) -> None:
        """The first requests of a setting are sent now."""
        self._last = self._clock()

    def answered(self, sample: SampleRequest, answer: Answer) -> None:
        """One sample was answered."""
        assert sample.cell is not None
        found, at = self._cells.setdefault(sample.cell, _Cell()), self._clock()
        found.samples += 1
        found.seconds += at - self._last
        self._last = at
        tokens = 1
        if isinstance(answer, Completion):
            found.completions, found.answers = found.completions + 1, found.answers + answer.tokens
            tokens = answer.tokens
        memory = self.costs.memory(sample.cell)
        load = self.costs.plan.loads.get(sample.cell)
        found.work += work_of(
            memory.kv if memory else None,
            tokens=answer.sent_tokens,
            cached=answer.cached_tokens,
            answer=tokens,
            requests=load.requests if load else 1.0,
            together=self.costs.together(sample.cell, max(1, self._of_setting(sample.cell))) if load else 1.0,
            batch=self.costs.batch(),
        )

    def _of_setting(self, cell: Cell) -> int:
        key, engine = (self.costs.plan.engine(cell), cell.context), self.costs.plan.engine
        of_setting = sum(n for c, n in self._pending.items() if (engine(c), c.context) == key)
        return min(of_setting, 10 * self._pending.get(cell, 1))

    def record(self, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
        """`cost` of run.json: what `earlier` sessions recorded (not this one), and this one so far."""
        old = earlier if isinstance(earlier, Mapping) else {}
        before: Mapping[str, Any] = old["models"] if isinstance(old.get("models"), Mapping) else {}
        sessions = list(old.get("sessions") or [])
        answered = sum(found.samples for found in self._cells.values())
        session = {
            "start": self._when,
            "samples": answered,
            "planned": sum(self._pending.values()),
            "predicted_seconds": None if self._predicted is None else round(self._predicted, 3),
            "seconds": round(self._clock() - self._began, 3),
        }
        return {
            "sessions": [*sessions, session] if answered else sessions,
            "models": {**before, **{label: self._model(label, before.get(label)) for label in self._labels()}},
        }

    def _labels(self) -> list[str]:
        """The engines whose speeds this session tells."""
        found = [*self._starts, *map(self.costs.plan.engine, self._cells)] if self._one_engine else []
        return list(dict.fromkeys(found))

    def _model(self, label: str, earlier: Any) -> dict[str, Any]:
        """An engine's record (see `harness.cost.known`)."""
        key = dict(self.costs.models[label].key)
        old = earlier if isinstance(earlier, Mapping) and earlier.get("key") == key else {}
        cells = [(cell, found) for cell, found in self._cells.items() if self.costs.plan.engine(cell) == label]
        fresh = [self._observation(cell, found) for cell, found in cells]
        return {
            "key": key,
            "starts": [*(old.get("starts") or []), *self._starts.get(label, [])],
            "switches": [*(old.get("switches") or []), *self._switches.get(label, [])],
            "observations": [*(old.get("observations") or []), *fresh][-_MOST_OBSERVATIONS:],
        }

    def _observation(self, cell: Cell, found: _Cell) -> dict[str, Any]:
        predicted = None
        if self._predicted is not None and cell in self.costs.plan.cells:
            predicted = round(self.costs.seconds(cell, max(1, self._pending.get(cell, found.samples))), 3)
            predicted = round(predicted * found.samples / max(1, self._pending.get(cell, found.samples)), 3)
        return {
            "session": self._when,
            "context": cell.context,
            "benchmark": cell.benchmark,
            "task": cell.task,
            "length": cell.length,
            "samples": found.samples,
            "predicted_seconds": predicted,
            "seconds": round(found.seconds, 3),
            "answer": round(found.answers / found.completions, 2) if found.completions else None,
            "work": found.work.to_plain(),
        }
