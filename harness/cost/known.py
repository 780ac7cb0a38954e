"""What earlier runs in a results folder, and `gatedeval plan --measure`, tell about a model's speed on this machine.

A record is plain data: `key` (what a speed depends on), `starts` and `switches` (seconds), and `observations`, each the
work of some samples of one task and the seconds that they took. A run has one per model in run.json, under `cost`;
`plan --measure` writes them into speeds.json of the results folder.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.cost.speed import Observation
from harness.cost.work import Work
from harness.store.files import explain, write_atomic

SPEEDS = "speeds.json"
_MOST_RUNS = 100  # run directories that are looked at, newest first
_OF_CALIBRATION = 0.3
"""Weight of a calibration's observation against one of a run, which has the real mixture of prompts."""


@dataclass(frozen=True)
class Known:
    """What is known of one model on one machine.

    `starts`, `switches`: seconds of engine starts, and of a change of setting with its self-check. `answers`:
    (benchmark, task) -> mean tokens of an answer. `sources`: for people, where it was found.
    """

    observations: tuple[Observation, ...] = ()
    starts: tuple[float, ...] = ()
    switches: tuple[float, ...] = ()
    answers: Mapping[tuple[str, str], float] = field(default_factory=dict)
    runs: int = 0
    measured: bool = False

    @property
    def start(self) -> float | None:
        """The usual time of an engine start: the median."""
        return statistics.median(self.starts) if self.starts else None

    @property
    def switch(self) -> float:
        """The usual time of a change of setting."""
        return statistics.median(self.switches) if self.switches else 0.0

    @property
    def source(self) -> str:
        """For people: where the speed is from."""
        runs = [f"{self.runs} earlier run{'s' * (self.runs != 1)}"] if self.runs else []
        return " and ".join(runs + (["a calibration"] if self.measured else []))


class Records:
    """The records of a results folder, read once; none where the folder is not there, or its files are damaged."""

    def __init__(self, results: Path) -> None:
        self._calibrations = [r for r in read_speeds(results) if isinstance(r, dict)]
        self._runs = list(_of_runs(results))

    def joined(self, other: Records) -> Records:
        """These records and those of another folder."""
        self._calibrations += other._calibrations
        self._runs += other._runs
        return self

    def of(self, key: Mapping[str, Any]) -> Known:
        """What is known of `key`."""
        plain = json.loads(json.dumps(key))
        calibrations = [r for r in self._calibrations if r.get("key") == plain]
        runs = [records for found in self._runs if (records := [r for r in found if r.get("key") == plain])]
        flat = [record for records in runs for record in records]
        counted: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for record in flat or calibrations:
            for o in _list(record, "observations"):
                if isinstance(o.get("answer"), int | float) and o.get("samples"):
                    name = (str(o.get("benchmark")), str(o.get("task")))
                    counted.setdefault(name, []).append((float(o["samples"]), float(o["answer"])))
        return Known(
            observations=(
                *_observations(_whole_settings(flat), 1.0),
                *_observations(calibrations, _OF_CALIBRATION if flat else 1.0),
            ),
            starts=tuple(_numbers(flat, "starts") or _numbers(calibrations, "starts")),
            switches=tuple(_numbers(flat, "switches") or _numbers(calibrations, "switches")),
            answers={k: sum(n * a for n, a in v) / sum(n for n, _ in v) for k, v in counted.items()},
            runs=len(runs),
            measured=bool(calibrations),
        )


def read_speeds(results: Path) -> list[Any]:
    """The records of `plan --measure`; empty where there are none, or where the file is no JSON list."""
    try:
        data = json.loads((results / SPEEDS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return data if isinstance(data, list) else []


def write_speeds(results: Path, record: Mapping[str, Any]) -> None:
    """Add a record to speeds.json, in place of an older one with the same key.

    Raises:
        GatedevalError: the folder cannot be written.
    """
    plain = json.loads(json.dumps(record))
    kept = [r for r in read_speeds(results) if isinstance(r, dict) and r.get("key") != plain["key"]]
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, "create", results) from error
    write_atomic(results / SPEEDS, json.dumps([*kept, plain], indent=1) + "\n")


def _of_runs(results: Path) -> Iterator[list[dict[str, Any]]]:
    """The records of each run in a results folder, newest first. What is damaged is left out."""
    try:
        files = sorted(results.glob("*/run.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:
        return
    for file in files[:_MOST_RUNS]:
        try:
            cost = json.loads(file.read_text(encoding="utf-8")).get("cost")
        except (OSError, ValueError, AttributeError):
            continue
        models = cost.get("models") if isinstance(cost, dict) else None
        if isinstance(models, dict):
            yield [record for record in models.values() if isinstance(record, dict)]


def _observations(records: list[dict[str, Any]], weight: float) -> list[Observation]:
    return [
        Observation(work=Work.from_plain(o.get("work")), seconds=float(o["seconds"]), weight=weight)
        for record in records
        for o in _list(record, "observations")
        if isinstance(o.get("seconds"), int | float)
    ]


def _whole_settings(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records with one observation per session and context setting.

    An engine works on prompts of several cells at once, so that the seconds of a single cell, which are those between
    its answers and the ones before, may be another cell's work.
    """
    found = []
    for record in records:
        sums: dict[tuple[str, str], tuple[Work, float]] = {}
        for o in _list(record, "observations"):
            if isinstance(o.get("seconds"), int | float):
                key = (str(o.get("session")), str(o.get("context")))
                work, seconds = sums.get(key, (Work(), 0.0))
                sums[key] = (work + Work.from_plain(o.get("work")), seconds + float(o["seconds"]))
        found.append({"observations": [{"work": w.to_plain(), "seconds": s} for w, s in sums.values()]})
    return found


def _list(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = record.get(name)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _numbers(records: list[dict[str, Any]], name: str) -> list[float]:
    found = []
    for record in records:
        values = record.get(name)
        found += [float(v) for v in values if isinstance(v, int | float)] if isinstance(values, list) else []
    return found
