"""A run's numbers for other tools: rows, scores with names, facts, and files. Nothing here knows a tool."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import stats
from harness.benchmarks.presentation import presentation_of
from harness.store import Store
from harness.store.files import write_atomic
from harness.store.summary import scale_of
from harness.tables.aggregates import usable
from harness.tables.arms import arms_of
from harness.tables.arms_view import read_by_arm
from harness.tables.dtypes import dtype_parts
from harness.tables.frames import ordered_cells
from harness.tables.measures import Measure, measures_of
from harness.tables.recipe import with_checkpoints
from harness.types import Cell, GatedevalError

_NO_NAME = re.compile(r"[^A-Za-z0-9_\-. /]+")


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number of Table 5: a measure of one (model, context setting).

    `value`, `low` and `high` (95% interval, None where there is none): 0-100, or the metric's own scale. `tasks`:
    the mean of each task that went in, on the same scale. `scale`: what samples' scores were multiplied with for them,
    100 or 1. `missing`: in words, why `value` is None.
    """

    benchmark: str
    title: str  # as a table's header has it: "RULER 4K"
    part: str  # within the benchmark: "4096", "questions", "strict-match"
    length: int | None  # tokens, for a benchmark that is scored over length
    metric: str | None  # None: the headline metric
    value: float | None
    low: float | None
    high: float | None
    scale: float
    samples: int
    lower_is_better: bool
    cells: list[Cell]
    spread: float | None = None  # of an arm: standard deviation between its checkpoints, unit of the value
    tasks: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """benchmark/part, of the characters that every tool allows in the name of a metric."""
        return clean_name(f"{self.benchmark}/{self.part}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of Table 5: a model under a context setting, its scores, and what it was."""

    model: str
    context: str
    scores: list[Score]
    facts: dict[str, Any]  # flat: dotted name -> text, number or None

    @property
    def title(self) -> str:
        """The row's name in lists of runs."""
        return f"{self.model} / {self.context}"


def clean_name(text: str) -> str:
    """`text` with every run of characters that MLflow or Weights & Biases refuse in a metric's name as one "_"."""
    return _NO_NAME.sub("_", text)


class Results:
    """A run as other tools want it. Raises GatedevalError where it has no number yet.

    `rows`: every checkpoint is a model of its own. `arms`: the means of those arms that have several checkpoints, where
    the run's own tables are read by arm.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.name = str(store.manifest.get("name") or store.path.name)
        self.rows = [self._row(m, c) for m, c in dict.fromkeys((c.model, c.context) for c in ordered_cells(store))]
        if all(score.value is None for row in self.rows for score in row.scores):
            reasons = [line for row in self.rows for score in row.scores for line in score.missing]
            raise GatedevalError(
                f"{store.path} has no number to export yet ({reasons[0] if reasons else 'no cell is planned'}); "
                "run its config first"
            )
        self.arms = self._arm_rows()

    def _arm_rows(self) -> list[Row]:
        by_arm = read_by_arm(self.store)
        arms = arms_of(by_arm)
        if arms is None or by_arm is self.store:
            return []
        return [
            replace(row, facts={**row.facts, "model.checkpoints": ", ".join(labels)})
            for row in Results(by_arm).rows
            if len(labels := arms.rows.get(row.model, ())) > 1
        ]

    @property
    def manifest(self) -> Mapping[str, Any]:
        """run.json."""
        return self.store.manifest

    def identity(self, *parts: str) -> str:
        """32 hexadecimal digits, the same whenever this run is exported: tools know a row again by it."""
        of = [self.name, str(self.manifest.get("start") or ""), *parts]
        return hashlib.sha256("\0".join(of).encode()).hexdigest()[:32]

    def metric_of(self, score: Score) -> str | None:
        """The metric of the score by name; None where nothing was scored."""
        headlines = (self.store.scores(cell).headline for cell in score.cells)
        return score.metric or next((name for name in headlines if name is not None), None)

    def missing(self) -> list[str]:
        """Why numbers are missing, in words, each reason once."""
        return list(dict.fromkeys(line for row in self.rows for score in row.scores for line in score.missing))

    def run_facts(self) -> dict[str, Any]:
        """What holds for the whole run, flat."""
        manifest = self.manifest
        kept = {k: manifest.get(k) for k in ("gatedeval", "seed", "git", "state", "start", "end")}
        for group in ("versions", "hardware", "options"):
            kept[group] = manifest.get(group) or {}
        return flat(kept)

    def write_files(self, into: Path) -> list[Path]:
        """Write the tables, the report and the manifest into the folder `into`; returns the files."""
        from harness.export import render
        from harness.report import write_report
        from harness.tables import table5, tasks_table

        files = []
        for table in (table5(self.store), tasks_table(self.store)):
            for fmt, ending in (("md", "md"), ("csv", "csv"), ("json", "json"), ("latex", "tex")):
                file = into / f"{table.style}.{ending}"
                write_atomic(file, render(table, fmt))
                files.append(file)
        files.append(write_report(self.store.path, into / "report.html"))
        manifest = into / "run.json"
        write_atomic(manifest, (self.store.path / "run.json").read_text(encoding="utf-8"))
        return [*files, manifest]

    def _row(self, model: str, context: str) -> Row:
        measures = measures_of(self.store, False, None)
        scores = [s for measure in measures if (s := self._score(measure, model, context)) is not None]
        return Row(model=model, context=context, scores=scores, facts=self._facts(model, context))

    def _score(self, measure: Measure, model: str, context: str) -> Score | None:
        """None where the plan does not have the measure for this row."""
        cells = measure.cells(model, context)
        if not any(cell in self.store.cells for cell in cells):
            return None
        average = with_checkpoints(self.store, measure.average(cells), measure.metric, pooled=measure.pooled)
        there = not math.isnan(average.value)
        bounded = there and not math.isnan(average.interval.low)
        return Score(
            benchmark=measure.benchmark,
            title=measure.column.name,
            part=_part(measure),
            length=measure.length,
            metric=measure.metric,
            value=average.value if there else None,
            low=100 * average.interval.low if bounded else None,
            high=100 * average.interval.high if bounded else None,
            scale=scale_of(*self._columns(average.cells, measure.metric).values()),
            samples=average.samples,
            lower_is_better=measure.column.lower_is_better,
            cells=[cell for cell in cells if cell in self.store.cells],
            tasks=self._task_means(average.cells, measure.metric),
            missing=average.missing,
            spread=stats.spread(average.checkpoints) if len(average.checkpoints) > 1 else None,
        )

    def _columns(self, cells: list[Cell], metric: str | None) -> dict[Cell, NDArray[np.float64]]:
        """Cell -> its scores by the metric (None: its headline metric), (n,); only cells whose samples all have one."""
        found = {}
        for cell in cells:
            columns = self.store.scores(cell)
            values = columns.scores if metric is None else columns.metrics.get(metric)
            if usable(self.store, cell) and values is not None and values.size:
                found[cell] = values
        return found

    def _task_means(self, cells: list[Cell], metric: str | None) -> dict[str, float]:
        columns = self._columns(cells, metric)
        several, scale = len({cell.length for cell in columns}) > 1, scale_of(*columns.values())
        return {
            f"{cell.task} {cell.length}" if several else cell.task: scale * float(values.mean())
            for cell, values in columns.items()
        }

    def _facts(self, model: str, context: str) -> dict[str, Any]:
        config = self.manifest.get("config") or {}
        entry = _labelled(config.get("models"), model)
        facts = dict((self.manifest.get("models") or {}).get(model) or {})
        setting = _labelled(config.get("contexts"), context)
        longest = (facts.pop("max_lengths", None) or {}).get(context)
        kept = {
            k: v for k, v in entry.items() if k in ("label", "path", "revision", "subfolder", "dtype", "arm", "step")
        }
        parts = dtype_parts(self.store, model)
        ran_in = {"ran_in": "; ".join(parts)} if len(parts) > 1 else {}  # else `dtype` and the engine's facts say it
        of_context = {k: v for k, v in setting.items() if k != "max_length"}
        return flat(
            {
                "model": {"label": model, **kept, **facts, **ran_in},
                "context": {"label": context, **of_context, "max_length": longest or setting.get("max_length")},
            }
        )


def _labelled(entries: Any, label: str) -> Mapping[str, Any]:
    return next((entry for entry in entries or [] if entry.get("label") == label), {})


def _part(measure: Measure) -> str:
    """The measure's name within its benchmark."""
    if measure.length is not None:
        return str(measure.length) if measure.length else presentation_of(measure.benchmark).unknown_length
    return measure.column.title


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}. Lists become text; None and empty values are left out."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, name + ".")
        elif isinstance(value, list | tuple):
            if value:
                found[name] = ", ".join(map(str, value))
        elif value is not None:
            found[name] = value
    return found


def planned_samples(store: Store, cells: list[Cell]) -> int | None:
    """How many samples the plan asks of `cells` together; None where it does not say."""
    counts = [store.planned(cell) for cell in cells]
    return None if any(count is None for count in counts) else sum(count or 0 for count in counts)


def cell_facts(cell: Cell) -> dict[str, Any]:
    """A cell as a dict, without a length where its benchmark has none."""
    return {k: v for k, v in dataclasses.asdict(cell).items() if k != "length" or v}
