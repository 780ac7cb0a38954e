"""run.json on disk: reading and writing the manifest, and the list of cells in it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import __version__
from harness.store.files import explain, finite, write_atomic
from harness.types import Cell, GatedevalError

MANIFEST = "run.json"
_LONGEST_NAME = 240  # characters of a cell's file name; file systems allow 255 bytes


def now() -> str:
    """The time as a manifest has it: UTC, seconds, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def instant(time: Any) -> float:
    """A manifest's time as seconds since 1970, for comparisons: times may have any offset from UTC.

    Without an offset it is UTC. What is no time (a run that never started, an edited file) is before all others.
    """
    try:
        parsed = datetime.fromisoformat(str(time))
    except ValueError:
        return -math.inf
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def read_manifest(path: Path) -> dict[str, Any]:
    """run.json of the run directory `path`. Raises GatedevalError where there is none, or where it is damaged."""
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise GatedevalError(
            f"no run at {path}: it has no {MANIFEST}; give a directory that `gatedeval run` wrote"
        ) from None
    except OSError as error:
        raise explain(error, "read", file) from error
    except ValueError as error:
        raise GatedevalError(
            f"{file} is damaged ({error}); restore it from a copy, or remove it and run the config "
            "again: that goes on with the samples beside it"
        ) from error
    if not isinstance(manifest, dict) or "cells" not in manifest:
        raise GatedevalError(f"{file} is not a gatedeval run: it has no list of cells")
    return manifest


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write run.json atomically; NaN and infinity become null, unknown objects their text."""
    text = json.dumps(finite(manifest), indent=1, ensure_ascii=False, allow_nan=False, default=str)
    write_atomic(path / MANIFEST, text + "\n")


def start_session(path: Path, facts: Mapping[str, Any], cells: Mapping[Cell, int | None]) -> dict[str, Any]:
    """The manifest at the start of a session: `facts` and the plan.

    A resumed run keeps its first start, its earlier sessions, what is known of its models' engines and of the
    arithmetic of its answers, and the failures of cells that are still planned. `unverified`: cells whose stored
    answers may be those of another plan; `Store.expect` says which are not.
    """
    old = read_manifest(path) if (path / MANIFEST).exists() else {}
    session = {"start": now(), "pid": os.getpid(), "host": socket.gethostname()}
    keys = {cell.key for cell in cells}
    changed = bool(old) and _inputs(facts) != _inputs(old)
    return {
        "gatedeval": __version__,
        "name": path.name,
        **facts,
        "start": old.get("start") or facts.get("start") or session["start"],
        "end": None,
        "state": "running",
        "sessions": [*old.get("sessions", []), session],
        "failures": {key: error for key, error in old.get("failures", {}).items() if key in keys},
        **{what: kept for what, kept in _kept(facts, old).items() if kept},
        "unverified": sorted(keys if changed else keys & set(old.get("unverified", []))),
        "cells": planned_cells(cells),
    }


def planned_cells(cells: Mapping[Cell, int | None]) -> list[dict[str, Any]]:
    """The plan as a manifest has it: every cell with its number of samples."""
    return [{**dataclasses.asdict(cell), "planned": planned} for cell, planned in cells.items()]


_NO_INPUT = (
    "name", "results", "caption", "data", "cluster", "path", "subfolder", "revision", "tokenizer", "table", "arm",
    "step", "probe",
)  # fmt: skip
"""Entries of a config and of its models that no answer depends on, or that other facts of the manifest say better."""


def _inputs(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a session's answers depend on, as far as a manifest says. Where two differ, stored answers may be stale."""
    config = {k: v for k, v in (manifest.get("config") or {}).items() if k not in _NO_INPUT}
    models = [{k: v for k, v in entry.items() if k not in _NO_INPUT} for entry in config.get("models") or []]
    facts = manifest.get("models") or {}
    return {
        "config": finite({**config, "models": models}),
        "models": {label: [entry.get(k) for k in ("fingerprint", "tokenizer")] for label, entry in facts.items()},
        "data": {name: (entry or {}).get("sha256") for name, entry in (manifest.get("data") or {}).items()},
    }


def _kept(facts: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What later sessions add to, and never forget."""
    return {
        "models": _with_engines(facts.get("models") or {}, old.get("models") or {}),
        "decoding": _first_decoding(facts, old),
        "arithmetic": {**(facts.get("arithmetic") or {}), **(old.get("arithmetic") or {})},
        "cost": old.get("cost") or {},
    }


def _with_engines(models: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """`models`; each with the engine facts that an earlier session recorded of the same weights, where it has none."""
    found = {label: dict(entry) for label, entry in models.items()}
    for key in ("engine", "other_engines"):
        engines = {entry.get("fingerprint"): entry[key] for entry in old.values() if key in entry}
        for label, entry in old.items():  # two labels may have the same weights: one's own facts are the best
            if key in entry and (models.get(label) or {}).get("fingerprint") == entry.get("fingerprint"):
                engines[label] = entry[key]
        for label, entry in found.items():
            known = engines.get(label, engines.get(entry.get("fingerprint")))
            if known is not None:
                entry.setdefault(key, known)
    return found


def _first_decoding(facts: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, str]:
    """Fingerprint -> how the tokenizer decoded when the run's first answers of these weights were written.

    Content hashes name the decoding only where it differs from this, so that those of older runs stay valid. Of a run
    that has recorded none, the hash of all tokenizer files is known: if these are the same, the decoding is.
    """
    first: dict[str, str] = dict(old.get("decoding") or {})
    for entry in (old.get("models") or {}).values():
        if entry.get("fingerprint"):
            first.setdefault(entry["fingerprint"], f"files {entry.get('tokenizer')}")
    for entry in (facts.get("models") or {}).values():
        fingerprint = entry.get("fingerprint")
        if fingerprint and "decoding" in entry and first.get(fingerprint) in (None, f"files {entry.get('tokenizer')}"):
            first[fingerprint] = entry["decoding"]
    return first


def cells_of(manifest: Mapping[str, Any], path: Path) -> dict[Cell, int | None]:
    """The plan: cell -> number of samples (None: unknown). Raises GatedevalError where the list is damaged."""
    try:
        return {
            Cell(c["model"], c["context"], c["benchmark"], c["task"], int(c.get("length") or 0)): c.get("planned")
            for c in manifest["cells"]
        }
    except (KeyError, TypeError) as error:
        raise GatedevalError(
            f"{path / MANIFEST}: its list of cells is damaged ({error!r}): no gatedeval run, or edited by hand"
        ) from error


def check_file_names(cells: Mapping[Cell, int | None]) -> None:
    """Raise GatedevalError where two cells would share a file, or a file name would be too long.

    Two names that differ in case alone share a file: some file systems ignore case.
    """
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.key.lower(), cell)
        if other is not cell:
            raise GatedevalError(f"two cells would share the file {cell.key}.jsonl: {other} and {cell}; change a label")
        if len(cell.key) > _LONGEST_NAME:
            raise GatedevalError(
                f"a cell's file name would be {len(cell.key)} characters long ({cell.key[:60]}...); "
                f"use shorter labels for models and contexts (at most {_LONGEST_NAME} characters altogether)"
            )
