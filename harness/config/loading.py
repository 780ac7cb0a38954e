"""YAML -> validated, frozen config: defaults, then the file, then the command line.

`load` reports everything that is wrong with a file at once, each with file and line (or the command-line option) and
what to do. What a file may contain is in harness/config/schema.py and, in words, in docs/configuration.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.config import yaml_text as yaml_source
from harness.config.entries import benchmark, context, entries, find, looked, model, shown, subject, validate
from harness.config.names import did_you_mean
from harness.config.schema import Dtype, EngineKeys, TopKeys
from harness.config.vocabulary import Benchmark, ContextSetting, Model, Yarn
from harness.config.yaml_text import Loc, Options, Source
from harness.types import GatedevalError


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How vLLM is run. None: vLLM's own default. Only `dtype` can change a score; the others invalidate no sample."""

    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_gib: float | None = None
    block_size: int | None = None
    prefix_caching: bool = True
    dtype: Dtype = "auto"


@dataclass(frozen=True, kw_only=True)
class Config:
    """One evaluation: every model under every context setting on every benchmark. Models carry their resolved dtype."""

    name: str
    models: tuple[Model, ...]
    contexts: tuple[ContextSetting, ...]
    benchmarks: tuple[Benchmark, ...]
    seed: int = 42
    data: Path | None = None
    results: Path = Path("results")
    engine: Engine = field(default_factory=Engine)
    chat_template: bool = False
    thinking: bool = False
    caption: tuple[str, ...] = ()

    def contexts_of(self, model: Model) -> tuple[ContextSetting, ...]:
        """The context settings that a model is run under: its own list, or all of them."""
        return tuple(c for c in self.contexts if model.contexts is None or c.label in model.contexts)


def load(
    path: str | os.PathLike[str],
    overrides: Options = (),
    *,
    check_paths: bool = True,
) -> Config:
    """Read, complete and check a config file.

    `overrides`: command-line values: `key=value` texts, (key, value) pairs or a mapping (`harness.config.yaml_text`).
    `check_paths=False` leaves models and data that are not there yet to a later moment.
    Raises one GatedevalError that lists all that is wrong.
    """
    text = yaml_source.read(Path(path))
    return _build(text, overrides, Path(path).parent, check_paths)


def from_dict(
    data: Mapping[str, Any],
    overrides: Options = (),
    *,
    name: str = "config",
    check_paths: bool = False,
) -> Config:
    """A config from plain data, such as the resolved config in a run's manifest."""
    return _build(Source(name, yaml_source.plain(data)), overrides, Path.cwd(), check_paths)


def to_dict(config: Config) -> dict[str, Any]:
    """The resolved config as JSON-able data in the file's own form: `from_dict(to_dict(c)) == c`."""
    return {
        "name": config.name,
        "models": [{**asdict(m), "contexts": None if m.contexts is None else list(m.contexts)} for m in config.models],
        "contexts": [asdict(c) for c in config.contexts],
        "benchmarks": [_benchmark_dict(b) for b in config.benchmarks],
        "seed": config.seed,
        "data": None if config.data is None else str(config.data),
        "results": str(config.results),
        "engine": asdict(config.engine),
        "chat_template": config.chat_template,
        "thinking": config.thinking,
        "caption": list(config.caption),
    }


def _benchmark_dict(b: Benchmark) -> dict[str, Any]:
    if b.kind == "ruler":
        return {"ruler": list(b.tasks), "lengths": list(b.lengths), "samples": b.samples, **dict(b.options)}
    if b.kind == "mmlu":
        return {"mmlu": {"shots": b.shots, "subjects": list(b.tasks), "samples": b.samples}}
    if b.kind == "gsm8k":
        return {"gsm8k": {"shots": b.shots, "samples": b.samples}}
    return {"lm_eval": b.tasks[0], "shots": b.shots, "samples": b.samples}


def _build(s: Source, overrides: Options, base: Path, check_paths: bool) -> Config:
    if not isinstance(s.data, dict):
        raise GatedevalError(f"{s.place(())}: a config is a mapping (name:, models:, ...), not {shown(s.data)}")
    yaml_source.lay_over(s, overrides)
    top = validate(s, TopKeys, s.data, ())
    engine = validate(s, EngineKeys, s.data.get("engine") or {}, ("engine",))
    default = engine.dtype if engine else "auto"
    models = entries(s, "models", lambda v, loc: model(s, v, loc, base, check_paths, default))
    contexts = entries(s, "contexts", lambda v, loc: context(s, v, loc)) if "contexts" in s.data else []
    benchmarks = entries(s, "benchmarks", lambda v, loc: benchmark(s, v, loc))
    if "contexts" not in s.data:
        contexts = [((), ContextSetting(label="native"))]
    for key in ("models", "contexts"):
        _distinct_labels(s, key)
    _known_contexts(s, models, contexts)
    _distinct_cells(s, benchmarks)
    _lengths_fit(s, [c for _, c in contexts], len(s.data.get("contexts") or [1]), benchmarks)
    if s.data.get("thinking") is True and not s.data.get("chat_template"):
        s.problem(("thinking",), "thinking needs a chat template; add chat_template: true", key=True)
    data = None
    if top and top.data is not None:
        data = find(top.data, base)
        if data is None and check_paths:
            s.problem(("data",), f"no directory {top.data!r}{looked(top.data, base)}")
        data = data or Path(top.data)
    s.raise_problems()
    assert top is not None
    assert engine is not None
    return Config(
        name=top.name,
        models=tuple(m for _, m in models),
        contexts=tuple(c for _, c in contexts),
        benchmarks=tuple(b for _, b in benchmarks),
        seed=top.seed,
        data=data,
        results=Path(top.results).expanduser(),
        engine=Engine(**engine.model_dump()),
        chat_template=top.chat_template,
        thinking=top.thinking,
        caption=tuple(top.caption),
    )


# --------------------------------------------------------------------------------------------- checks across entries


def _distinct_labels(s: Source, key: str) -> None:
    """Labels name rows of tables. Read from the raw entries: one with another mistake still takes its label."""
    entries, first = s.data.get(key), dict[str, int]()
    for i, entry in enumerate(entries if isinstance(entries, list) else []):
        label = entry.get("label") if isinstance(entry, dict) else None
        if isinstance(label, str) and first.setdefault(label, i) != i:
            line = s.place((key, first[label], "label"))
            s.problem(
                (key, i, "label"), f"{key}: label {label!r} is already used at {line}; labels name rows of tables"
            )


def _known_contexts(s: Source, models: list[tuple[Loc, Model]], contexts: list[tuple[Loc, ContextSetting]]) -> None:
    """A model's own list of contexts names some that there are."""
    if len(contexts) < len(s.data.get("contexts") or [1]):
        return  # one of them is complained about already
    known = [c.label for _, c in contexts]
    for loc, m in models:
        for i, label in enumerate(m.contexts or ()):
            if label not in known:
                hint = did_you_mean(label, known) or f"; there are {', '.join(map(repr, known))}"
                s.problem((*loc, "contexts", i), f"{subject(s, (*loc, 'contexts'))}: no context {label!r}{hint}")


def _distinct_cells(s: Source, benchmarks: list[tuple[Loc, Benchmark]]) -> None:
    """No cell is asked for twice, and all of RULER in one table is of one kind (budgets may differ: they are told)."""
    seen: dict[tuple[str, str, int], Loc] = {}
    options: tuple[Any, Any] | None = None
    for loc, b in benchmarks:
        if b.kind == "ruler":
            kind = (b.option("profile"), b.option("answer_prefix"))
            if options is not None and kind != options:
                s.problem(
                    loc, "benchmarks: two RULER entries with different profile or answer_prefix; make two configs"
                )
            options = options or kind
        cells = [(b.name, task, length) for task in b.tasks for length in b.lengths or (0,)]
        twice = next((c for c in cells if c in seen), None)
        if twice:
            what = f"{twice[1]} at {twice[2]}" if twice[2] else twice[1]
            s.problem(
                loc, f"benchmarks: {twice[0]} {what} is asked for twice (also at {s.place(seen[twice])}); keep one"
            )
        seen.update(dict.fromkeys(cells, loc))


def _lengths_fit(
    s: Source, contexts: list[ContextSetting], expected: int, benchmarks: list[tuple[Loc, Benchmark]]
) -> None:
    """A length that no context can hold would give a column of dashes. Native limits are the plan's to check."""
    limits = {c.label: c.max_length or (_yarn_reach(c.yarn) if c.yarn else None) for c in contexts}
    if len(contexts) < expected or not limits or None in limits.values():
        return
    best = max(limits, key=lambda label: limits[label] or 0)
    for loc, b in benchmarks:
        over = [n for n in b.lengths if n > (limits[best] or 0)]
        if over:
            s.problem(
                (*loc, "lengths"),
                f"{subject(s, (*loc, 'lengths'))}: {', '.join(map(str, over))} is above max_length of every context "
                f"(the largest is {best!r}, {limits[best]}); raise max_length or drop the length",
            )


def _yarn_reach(yarn: Yarn) -> int:
    return int(yarn.factor * yarn.original_max_position_embeddings)
