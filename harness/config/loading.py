"""A config file -> `Config`: defaults, then the file, then the command line.

`load` reports everything that is wrong with a file at once, each with file and line (or the command-line option) and
what to do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.config import yaml_text
from harness.config.checks import (
    arms_fit,
    distinct_cells,
    distinct_labels,
    known_contexts,
    lengths_fit,
    sampling_rules,
    table_names,
)
from harness.config.entries import (
    benchmark,
    context,
    entries,
    find,
    looked,
    model,
    shown,
    validate,
    with_files,
    with_text,
)
from harness.config.fields import Entry
from harness.config.overrides import Options, apply_overrides
from harness.config.vocabulary import BenchmarkEntry, Config, ContextSetting, EngineOptions, Model
from harness.config.yaml_text import Source
from harness.types import GatedevalError


def load(
    path: str | os.PathLike[str],
    overrides: Options = (),
    *,
    check_paths: bool = True,
) -> Config:
    """Read, complete and check a config file.

    `overrides`: command-line values: `key=value` texts, (key, value) pairs or a mapping (`harness.config.overrides`).
    `check_paths=False` leaves models and data that are not there yet to a later moment.
    Raises one GatedevalError that lists all that is wrong.
    """
    text = yaml_text.read(Path(path))
    return _build(text, overrides, Path(path).parent, check_paths)


def from_dict(
    data: Mapping[str, Any],
    overrides: Options = (),
    *,
    name: str = "config",
    check_paths: bool = False,
) -> Config:
    """A config from plain data, such as the resolved config in a run's manifest."""
    return _build(Source(name, yaml_text.plain(data)), overrides, Path.cwd(), check_paths)


def to_dict(config: Config) -> dict[str, Any]:
    """The resolved config as JSON-able data in the file's own form: `from_dict(to_dict(c)) == c`."""
    data = config.model_dump(mode="json")
    data["benchmarks"] = [b.to_dict() for b in config.benchmarks]  # the dump has the fields of BenchmarkEntry alone
    for setting in data["contexts"]:
        _drop_unset(setting, ("ntk", "llama3", "longrope"))
        _drop_unset(setting.get("yarn") or {}, ("mscale", "mscale_all_dim"))
    if not config.benchmarks:  # a config of probes alone
        del data["benchmarks"]
    for key in ("decide", "probe", "cluster"):
        if data[key] is None:
            del data[key]
    for entry in data["models"]:
        if entry["gate_layout"] is None:
            del entry["gate_layout"]
    return data


def _drop_unset(entry: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Drop keys that older versions do not have where they are not set: the data of their configs stays the same."""
    for key in keys:
        if key in entry and entry[key] is None:
            del entry[key]


def _build(s: Source, overrides: Options, base: Path, check_paths: bool) -> Config:
    if not isinstance(s.data, dict):
        raise GatedevalError(f"{s.place(())}: a config is a mapping (name:, models:, ...), not {shown(s.data)}")
    apply_overrides(s, overrides)
    top = _top_level(s)
    engine = validate(s, EngineOptions, s.data.get("engine") or {}, ("engine",)) or EngineOptions()
    models = entries(s, "models", lambda v, loc: model(s, v, loc, base, check_paths, engine.dtype))
    contexts = entries(s, "contexts", lambda v, loc: context(s, v, loc))
    benchmarks = entries(s, "benchmarks", lambda v, loc: with_files(s, benchmark(s, v, loc), loc, base, check_paths))
    if "contexts" not in s.data:
        contexts = [((), ContextSetting(label="native"))]
    for key in ("models", "contexts"):
        distinct_labels(s, key)
    known_contexts(s, [*models, *benchmarks], contexts)
    distinct_cells(s, benchmarks)
    arms_fit(s, models, top.table if top else None)
    if top is not None:
        probed = top.probe.lengths if top.probe is not None else ()
        table_names(s, top.table, models, contexts, benchmarks, probed)
        sampling_rules(s, top.decide, models, benchmarks)
    lengths_fit(s, [c for _, c in contexts], len(s.data.get("contexts") or [1]), benchmarks)
    if s.data.get("thinking") is True and not s.data.get("chat_template"):
        s.problem(("thinking",), "thinking needs a chat template; add chat_template: true", key=True)
    if s.data.get("thinking_tokens") is not None and not s.data.get("thinking"):
        s.problem(("thinking_tokens",), "thinking_tokens without thinking; add thinking: true, or drop it", key=True)
    probe = with_text(s, top.probe if top else None, base, check_paths)
    data = top.data if top else None
    if data is not None:
        written = str(s.data["data"])
        found = find(written, base)
        if found is None and check_paths:
            s.problem(("data",), f"no directory {written!r}{looked(written, base)}")
        data = found or data
    s.raise_problems()
    assert top is not None
    return top.model_copy(
        update={
            "models": tuple(m for _, m in models),
            "contexts": tuple(c for _, c in contexts),
            "benchmarks": tuple(b for _, b in benchmarks),
            "data": data,
            "probe": probe,
            "results": top.results.expanduser(),
            "engine": engine,
        }
    )


def _top_level(s: Source) -> Config | None:
    """The keys of the top level alone: entries and engine, which are checked one by one, are replaced by blank ones."""
    blank: dict[str, type[Entry]] = {"models": Model, "contexts": ContextSetting, "benchmarks": BenchmarkEntry}
    values = dict(s.data)
    for key, cls in blank.items():
        if isinstance(values.get(key), list):
            values[key] = [cls.model_construct() for _ in values[key]]
    if values.get("probe") is not None and not values.get("benchmarks"):
        values["benchmarks"] = [BenchmarkEntry.model_construct()]  # probes need no benchmark
    if isinstance(values.get("engine", {}), dict | None):
        values["engine"] = EngineOptions()
    return validate(s, Config, values, ())
