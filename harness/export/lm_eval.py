"""A run's numbers in lm-eval's own results JSON, so that its tools (tables, comparisons, dashboards) read ours."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.presentation import Presentation, lower_is_better, presentation_of, shots_of
from harness.store import Store
from harness.store.scores import CellScores
from harness.tables.aggregates import usable
from harness.tables.caption import config_entries
from harness.tables.frames import check_label, labels, ordered_cells
from harness.types import Cell, GatedevalError


def lm_eval_results(store: Store, model: str | None = None, context: str | None = None) -> str:
    """lm-eval 0.4's results object for one model under one context setting, as JSON.

    lm-eval's files are about one model; a run with several needs `model` and `context`. Names are lm-eval's: RULER's
    metrics are lengths ("4096,none"), MMLU's subjects are mmlu_<subject> in the group mmlu. Scores are 0..1, stderr
    is the sample standard deviation over sqrt(n), "N/A" for one sample. Cells without scores are left out, never
    zero.
    """
    model = _one(store, "models", model)
    context = _one(store, "contexts", context)
    results = _Results()
    for cell in ordered_cells(store):
        if (cell.model, cell.context) == (model, context) and usable(store, cell):
            results.add(cell, store.scores(cell), _population(store, cell))
    content = {**results.as_dict(_shots(store, results)), **_facts(store, model, context)}
    return json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n"


def _one(store: Store, what: Literal["models", "contexts"], given: str | None) -> str:
    """The label that is meant: the given one, or the only one."""
    check_label(store, what, given)
    known = labels(store, what)
    if given is None and len(known) != 1:
        raise GatedevalError(
            f"lm-eval's results are about one model under one setting: choose a {what.removesuffix('s')}, one of "
            f"{', '.join(map(repr, known))}"
        )
    return given if given is not None else known[0]


class _Task:
    """The numbers of one lm-eval task: scores by key, its samples, the benchmark it belongs to."""

    def __init__(self, name: str, benchmark: str) -> None:
        self.benchmark = benchmark
        self.scores: dict[str, Any] = {"alias": name}
        self.higher_is_better: dict[str, bool] = {}
        self.samples = 0
        self.population: int | None = None  # questions that the samples were drawn from at random


class _Group:
    """The tasks of one lm-eval group, and the per-sample scores that its own scores are computed from."""

    def __init__(self, shown: Presentation) -> None:
        self.shown = shown
        self.tasks: dict[str, None] = {}  # an ordered set
        self.columns: dict[str, list[NDArray[np.float64]]] = {}
        self.populations: dict[str, list[int | None]] = {}  # of every column: questions that it was drawn from

    def scores(self, name: str) -> dict[str, Any]:
        """The group's scores: pooled over questions, or the mean over tasks, which a missing task blocks."""
        scores: dict[str, Any] = {"alias": name}
        for key, columns in self.columns.items():
            drawn = [n for n in self.populations[key] if n is not None]
            if self.shown.pooling != "tasks" and len(drawn) == len(columns):
                _put_drawn(scores, key, columns, drawn)
            elif self.shown.pooling != "tasks":
                _put(scores, key, np.concatenate(columns))
            elif len(columns) == len(self.shown.all_tasks or self.tasks):
                scores[key] = float(np.mean([c.mean() for c in columns]))
                error = math.sqrt(sum(c.var(ddof=1) / c.size for c in columns if c.size > 1)) / len(columns)
                scores[_stderr(key)] = error if all(c.size > 1 for c in columns) else "N/A"
        return scores


class _Results:
    """Collects cells into the parts of lm-eval's results object."""

    def __init__(self) -> None:
        self.tasks: dict[str, _Task] = {}
        self.groups: dict[str, _Group] = {}
        self.subtasks: dict[str, list[str]] = {}  # a group or a task without a group -> the tasks below it

    def add(self, cell: Cell, columns: CellScores, population: int | None = None) -> None:
        """Add one cell's scores. `population`: the questions that they were drawn from, where they are fewer."""
        metrics = columns.metrics
        shown = presentation_of(cell.benchmark)
        name, group = shown.lm_eval_task(cell.task), shown.lm_eval_group
        task = self.tasks.setdefault(name, _Task(name, cell.benchmark))
        within = None if group is None else self.groups.setdefault(group, _Group(shown))
        for metric, values in metrics.items():
            if np.isnan(values).any():  # samples of an older version lack a metric that later ones have
                continue
            key = shown.lm_eval_metric(metric, cell.length)
            _put(task.scores, key, values)
            if metric in columns.weights:  # over all texts together; lm-eval has an error of it from a bootstrap alone
                task.scores |= {key: columns.mean(metric), _stderr(key): "N/A"}
            task.higher_is_better[key.partition(",")[0]] = not lower_is_better(metric)
            if within is not None:
                within.columns.setdefault(key, []).append(values)
                within.populations.setdefault(key, []).append(population)
        task.samples = max(task.samples, *(values.size for values in metrics.values()))
        task.population = population
        if within is not None:
            within.tasks.setdefault(name)

    def as_dict(self, shots: dict[str, int]) -> dict[str, Any]:
        """The part of lm-eval's results object that is about scores. `shots`: task -> examples in its prompts."""
        groups = {name: group.scores(name) for name, group in self.groups.items()}
        alone: dict[str, list[str]] = {
            name: [] for name, task in self.tasks.items() if presentation_of(task.benchmark).lm_eval_group is None
        }
        return {
            "results": {**groups, **{name: task.scores for name, task in self.tasks.items()}},
            "groups": groups,
            "group_subtasks": {**{name: list(group.tasks) for name, group in self.groups.items()}, **alone},
            "configs": {name: {"task": name} for name in self.tasks},
            "versions": {},
            "n-shot": shots,
            "higher_is_better": {name: task.higher_is_better for name, task in self.tasks.items()},
            "n-samples": {
                name: {"original": task.population or task.samples, "effective": task.samples}
                for name, task in self.tasks.items()
            },
        }


def _stderr(key: str) -> str:
    metric, _, extraction = key.partition(",")
    return f"{metric}_stderr,{extraction}"


def _put(scores: dict[str, Any], key: str, values: NDArray[np.float64]) -> None:
    scores[key] = float(values.mean())
    scores[_stderr(key)] = float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else "N/A"


def _put_drawn(scores: dict[str, Any], key: str, columns: list[NDArray[np.float64]], populations: list[int]) -> None:
    """The mean over questions of subjects of which some questions were drawn: each counts by all its questions."""
    weights = np.array(populations) / sum(populations)
    scores[key] = float(sum(w * c.mean() for w, c in zip(weights, columns, strict=True)))
    if all(c.size > 1 for c in columns):
        parts = (
            w * w * c.var(ddof=1) / c.size * (1 - c.size / n)
            for w, c, n in zip(weights, columns, populations, strict=True)
        )
        scores[_stderr(key)] = math.sqrt(sum(parts))
    else:
        scores[_stderr(key)] = "N/A"


def _population(store: Store, cell: Cell) -> int | None:
    """Questions that the cell's samples were drawn from; None where they are a plain count, or generated."""
    entry = store.rounds(cell)
    if entry is None or entry.population is None:
        return None
    return entry.population[entry.tasks.index(cell.task)]


def _shots(store: Store, results: _Results) -> dict[str, int]:
    """Task -> examples in its prompts, where the config or the benchmark says how many."""
    shots: dict[str, int] = {}
    entries = config_entries(store)
    for name, task in results.tasks.items():
        n = shots_of(task.benchmark, entries.get(task.benchmark))
        n = presentation_of(task.benchmark).lm_eval_shots if n is None else n
        if n is not None:
            shots[name] = n
    return shots


def _facts(store: Store, model: str, context: str) -> dict[str, Any]:
    """Where the numbers come from, under lm-eval's keys."""
    facts = store.manifest
    config = facts.get("config") or {}
    path = next((m.get("path") for m in config.get("models") or [] if m["label"] == model), model)
    start = facts.get("start")
    versions = facts.get("versions") or {}
    return {
        "config": {
            "model": "gatedeval",
            "model_args": {"path": path, "label": model, "context": context},
            "random_seed": facts.get("seed"),
            "gatedeval": facts.get("gatedeval"),
            "run": facts.get("name"),
        },
        "git_hash": facts.get("git"),
        "date": datetime.fromisoformat(start).timestamp() if start else None,
        "model_name": model,
        "model_name_sanitized": model.replace("/", "__"),
        "lm_eval_version": versions.get("lm_eval") or versions.get("lm-eval"),
        "transformers_version": versions.get("transformers"),
    }
