"""A run's numbers in lm-eval's own results JSON, so that its tools (tables, comparisons, dashboards) read ours."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

import numpy as np

from harness.store import Store
from harness.tables.aggregates import usable
from harness.tables.frames import labels, ordered_cells
from harness.types import Cell, GatedevalError
from tasks.ruler.protocol import TASKS as RULER_TASKS

_RULER_NAMES = {
    "vt": "ruler_vt",
    "cwe": "ruler_cwe",
    "fwe": "ruler_fwe",
    "qa_1": "ruler_qa_squad",
    "qa_2": "ruler_qa_hotpot",
}
_LOWER = ("perplexity", "ppl", "bits_per_byte", "brier")


def lm_eval_results(store: Store, model: str | None = None, context: str | None = None) -> str:
    """lm-eval 0.4's results object for one model under one context setting, as JSON.

    lm-eval's files are about one model; a run with several needs `model` and `context`. Names are lm-eval's: RULER's
    metrics are lengths ("4096,none"), MMLU's subjects are mmlu_<subject> in the group mmlu. Scores are 0..1, stderr
    is the sample standard deviation over sqrt(n), "N/A" for one sample. Cells without scores are left out, never
    zero.
    """
    model = _one(model, labels(store, "models"), "model")
    context = _one(context, labels(store, "contexts"), "context")
    results: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    subtasks: dict[str, list[str]] = {}
    higher: dict[str, dict[str, bool]] = {}
    samples: dict[str, dict[str, int]] = {}
    pooled: dict[str, dict[str, list[np.ndarray]]] = {}
    for cell in ordered_cells(store):
        if (cell.model, cell.context) != (model, context) or not usable(store, cell):
            continue
        name, group = _name(cell)
        entry = results.setdefault(name, {"alias": name})
        for metric, values in store.scores(cell).metrics.items():
            key = f"{cell.length},none" if cell.benchmark == "ruler" else metric if "," in metric else f"{metric},none"
            _put(entry, key, values)
            higher.setdefault(name, {})[key.partition(",")[0]] = not any(w in metric for w in _LOWER)
            if group:
                pooled.setdefault(group, {}).setdefault(key, []).append(values)
        n = len(store.scores(cell).ids)
        samples[name] = {
            "original": max(n, samples.get(name, {}).get("original", 0)),
            "effective": max(n, samples.get(name, {}).get("effective", 0)),
        }
        if group:
            subtasks.setdefault(group, [])
            if name not in subtasks[group]:
                subtasks[group].append(name)
        else:
            subtasks.setdefault(name, [])
    for group, metrics in pooled.items():
        entry = groups.setdefault(group, {"alias": group})
        for key, columns in metrics.items():
            if group == "mmlu":
                _put(entry, key, np.concatenate(columns))
            elif len(columns) == len(RULER_TASKS):  # a missing task blocks RULER's average
                entry[key] = float(np.mean([c.mean() for c in columns]))
                error = math.sqrt(sum(c.var(ddof=1) / c.size for c in columns if c.size > 1)) / len(columns)
                entry[_stderr(key)] = error if all(c.size > 1 for c in columns) else "N/A"
    return (
        json.dumps(
            {
                "results": {**{g: groups[g] for g in groups}, **results},
                "groups": groups,
                "group_subtasks": subtasks,
                "configs": {name: {"task": name} for name in results},
                "versions": {},
                "n-shot": _shots(store, results),
                "higher_is_better": higher,
                "n-samples": samples,
                **_facts(store, model, context),
            },
            indent=2,
            ensure_ascii=False,
            default=str,
        )
        + "\n"
    )


def _one(given: str | None, known: list[str], what: str) -> str:
    if given is not None and given not in known:
        raise GatedevalError(f"no {what} {given!r} in this run; it has {', '.join(map(repr, known))}")
    if given is None and len(known) != 1:
        raise GatedevalError(
            f"lm-eval's results are about one model under one setting: choose a {what}, one of "
            f"{', '.join(map(repr, known))}"
        )
    return given if given is not None else known[0]


def _name(cell: Cell) -> tuple[str, str | None]:
    """lm-eval's task name of a cell, and its group."""
    if cell.benchmark == "ruler":
        return _RULER_NAMES.get(cell.task, cell.task), "ruler"
    if cell.benchmark == "mmlu":
        return f"mmlu_{cell.task.removeprefix('mmlu_')}", "mmlu"
    return cell.task, None


def _stderr(key: str) -> str:
    metric, _, extraction = key.partition(",")
    return f"{metric}_stderr,{extraction}"


def _put(entry: dict[str, Any], key: str, values: np.ndarray) -> None:
    entry[key] = float(values.mean())
    entry[_stderr(key)] = float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else "N/A"


def _shots(store: Store, results: dict[str, Any]) -> dict[str, int]:
    shots: dict[str, int] = {}
    for entry in store.manifest.get("config", {}).get("benchmarks") or []:
        for kind in ("mmlu", "gsm8k"):
            if isinstance(entry.get(kind), dict) and entry[kind].get("shots") is not None:
                shots.update({name: entry[kind]["shots"] for name in results if name.split("_")[0] == kind})
        if "lm_eval" in entry and entry.get("shots") is not None:
            shots[entry["lm_eval"]] = entry["shots"]
        if "ruler" in entry:
            shots.update({_RULER_NAMES.get(t, t): 0 for t in entry["ruler"] if _RULER_NAMES.get(t, t) in results})
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
