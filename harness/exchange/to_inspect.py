"""Inspect's evaluation logs (`inspect view`): one log for every number of Table 5, with the samples behind it.

A log's task is the benchmark at one length. Scores are on Inspect's scale, 0..1. `mean` is the table's number (RULER:
tasks with equal weight); the metrics of the group `task` are the tasks' own means.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from harness.benchmarks.presentation import presentation_of
from harness.exchange.inspect_samples import sample_of
from harness.exchange.protocol import client, folder
from harness.exchange.results import Results, Row, Score, cell_facts, planned_samples
from harness.store.files import explain
from harness.tables.dtypes import cells_by_dtype
from harness.types import Cell


def send(results: Results, destination: str | None, project: str) -> list[str]:
    """Write one .eval file per (model, context, benchmark, length) into `destination`, by default RUN/inspect.

    See `harness.exchange.protocol.Send`. Files of an earlier export of the run are replaced.
    """
    log = client("inspect_ai.log", "inspect")
    target = folder(destination if destination is not None else results.store.path / "inspect")
    files = []
    for row in results.rows:
        for (benchmark, length), scores in groupby(row.scores, key=lambda s: (s.benchmark, s.length)):
            file = target / _file_name(results, row, benchmark, length)
            try:
                log.write_eval_log(_log(log, results, row, list(scores)), str(file), format="eval")
            except OSError as error:
                raise explain(error, "write", file) from error
            files.append(str(file))
    return files


def _file_name(results: Results, row: Row, benchmark: str, length: int | None) -> str:
    """Inspect's own pattern, TIME_TASK_ID.eval; the id is the same at every export of the run."""
    started = re.sub(r"[^0-9A-Za-z+-]", "-", _time(results.manifest.get("start")))
    task = re.sub(r"[^0-9A-Za-z.-]+", "-", _task_name(benchmark, length))
    return f"{started}_{task}_{results.identity(row.model, row.context, benchmark, str(length))[:22]}.eval"


def _task_name(benchmark: str, length: int | None) -> str:
    return f"{benchmark}_{length}" if length else benchmark


def _time(stated: Any) -> str:
    """A time of run.json as Inspect reads it; a run without one gets 1970, not the hour of the export."""
    return str(stated or "1970-01-01T00:00:00+00:00")


def _log(log: Any, results: Results, row: Row, scores: list[Score]) -> Any:
    """One evaluation. All `scores` are measures of the same cells."""
    first = scores[0]
    cells = list(dict.fromkeys(cell for score in scores for cell in score.cells))
    by_length = len({cell.length for cell in cells}) > 1
    samples = [
        sample_of(cell, s, row.model, by_length=by_length) for cell in cells for s in results.store.samples(cell)
    ]
    planned = planned_samples(results.store, cells)
    manifest, identity = results.manifest, results.identity(row.model, row.context, first.benchmark, str(first.length))
    errors = {key: error for cell in cells if (error := results.store.failures.get(key := cell.key))}
    complete = all(score.value is not None for score in scores) and planned in (None, len(samples))
    return log.EvalLog(
        status="error" if errors else "success" if complete else "cancelled",
        error=_error(errors) if errors else None,
        eval=log.EvalSpec(
            eval_id=identity[:22],
            run_id=results.identity()[:22],
            task_id=identity[:22],
            created=_time(manifest.get("start")),
            task=_task_name(first.benchmark, first.length),
            task_display_name=first.title,
            task_args={k: v for k, v in row.facts.items() if k.startswith("context.")},
            tags=["gatedeval", results.name, row.context],
            model=row.model,
            model_args={k: v for k, v in row.facts.items() if k.startswith("model.")} | _ran_in(results, row, cells),
            dataset=log.EvalDataset(
                name=presentation_of(first.benchmark).titles(cell.task for cell in cells)[0],
                samples=len(samples) if planned is None else planned,
                sample_ids=[sample.id for sample in samples],
            ),
            config=log.EvalConfig(limit=None, epochs=1),
            packages={"gatedeval": str(manifest.get("gatedeval")), **(manifest.get("versions") or {})},
            metadata={"run": results.name, **results.run_facts()},
        ),
        plan=log.EvalPlan(steps=[log.EvalPlanStep(solver="generate")]),
        results=log.EvalResults(
            total_samples=len(samples) if planned is None else planned,
            completed_samples=len(samples),
            scores=_scores(log, results, scores, len(samples)),
        ),
        stats=log.EvalStats(
            started_at=_time(manifest.get("start")), completed_at=_time(manifest.get("end") or manifest.get("start"))
        ),
        samples=samples,
    )


def _ran_in(results: Results, row: Row, cells: list[Cell]) -> dict[str, str]:
    """The dtype of the log's own answers, where the row's answers were computed in several."""
    return (
        {"model.ran_in": ", ".join(sorted(cells_by_dtype(results.store, cells)))} if "model.ran_in" in row.facts else {}
    )


def _error(errors: dict[str, str]) -> Any:
    message = "; ".join(f"{key}: {error}" for key, error in errors.items())
    return client("inspect_ai.log", "inspect").EvalError(message=message, traceback="", traceback_ansi="")


def _scores(log: Any, results: Results, scores: list[Score], samples: int) -> list[Any]:
    """One of Inspect's scores for every metric that samples have; the measures of one metric are joined."""
    found: dict[str, Any] = {}
    for score in scores:
        metric = results.metric_of(score)
        if metric is None or score.value is None:
            continue
        scale = score.scale
        name = "mean" if metric not in found else score.part
        numbers = {name: score.value / scale}
        if score.low is not None and score.high is not None:
            numbers |= {f"{name} low": score.low / scale, f"{name} high": score.high / scale}
        metrics = {key: log.EvalMetric(name=key, value=value) for key, value in numbers.items()}
        if metric in found:
            found[metric].metrics |= metrics
            continue
        if len(score.tasks) > 1:
            metrics |= {
                f"task {task}": log.EvalMetric(name=task, group="task", value=value / scale)
                for task, value in score.tasks.items()
            }
        found[metric] = log.EvalScore(
            name=metric,
            scorer=metric,
            scored_samples=score.samples,
            unscored_samples=max(0, samples - score.samples),
            metrics=metrics,
            metadata={"interval": "95%: the metrics low and high", "cells": [cell_facts(c) for c in score.cells]},
        )
    return list(found.values())
