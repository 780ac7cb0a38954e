"""Runs on disk: list them, compute derived files again, and say how far an interrupted run came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.store.files import is_locked
from harness.store.manifest import MANIFEST, instant
from harness.store.probes import Probes
from harness.store.run import Store
from harness.text import counted
from harness.types import GatedevalError


def list_runs(root: Path | str) -> list[dict[str, Any]]:
    """Every run directly below `root`, newest start first: name, path, state, cells, samples, probes, models, start,
    end.

    state is complete, incomplete, running, interrupted (run.json says running, but no live process holds the lock), or
    damaged (with `error`). samples counts lines on disk. A root that does not exist has no runs.
    """
    root = Path(root)
    runs: list[dict[str, Any]] = []
    for manifest in sorted(root.glob(f"*/{MANIFEST}")):
        path = manifest.parent
        try:
            store = Store.read(path)
        except GatedevalError as error:
            runs.append({"name": path.name, "path": str(path), "state": "damaged", "error": str(error), "start": ""})
            continue
        facts = store.manifest
        running = is_locked(path / "lock")
        state = "running" if running else facts.get("state", "incomplete")
        runs.append(
            {
                "name": path.name,
                "path": str(path),
                "state": "interrupted" if state == "running" and not running else state,
                "cells": len(store.cells),
                "failures": len(store.failures),
                "samples": sum(file.read_bytes().count(b"\n") for file in (path / "samples").glob("*.jsonl")),
                "probes": len(probes := Probes(path).records(facts.get("probes"))),
                "models": list(dict.fromkeys([*(c.model for c in store.cells), *(p["model"] for p in probes)])),
                "start": facts.get("start") or "",
                "end": facts.get("end"),
            }
        )
    return sorted(runs, key=lambda run: instant(run["start"]), reverse=True)


def rebuild(path: Path | str) -> list[Path]:
    """Compute a run's derived files and its state again from its samples; returns the files written.

    Takes the lock: a run that is being written is refused.
    """
    path = Path(path)
    old = Store.read(path)
    with Store.open(path, old.manifest, cells=old.cells) as store:
        store.manifest["sessions"] = old.manifest.get("sessions", [])  # rebuilding is no session
        state = store.write_derived()
        store.update_manifest(state=state, end=old.manifest.get("end"))
    return [path / "cells.csv", path / MANIFEST]


def interruption_message(path: Path, why: str, again: str) -> str:
    """What is finished, where it is kept, and the command that resumes; `why` names the signal."""
    try:
        store = Store.read(path)
    except GatedevalError:
        return f"interrupted by {why}: nothing was begun in {path} yet. Go on with:\n  {again}"
    done, planned = store.finished()
    parts = [_of(done, planned, "sample")] if store.cells else []
    if probes := store.manifest.get("probes"):
        parts.append(_of(len(Probes(path).records(probes)), len(probes), "probe"))
    single = len(parts) == 1 and (planned if store.cells else len(probes or ())) == 1
    kept = f"{' and '.join(parts) or 'no sample'} {'is' if single else 'are'} finished and kept in {path}"
    return f"interrupted by {why}: {kept}. Go on with:\n  {again}"


def _of(done: int, planned: int, noun: str) -> str:
    return f"{done:,} of {counted(f'{planned:,}', noun)}"
