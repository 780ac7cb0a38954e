"""YAML -> validated, frozen config: defaults, then the file, then the command line.

`load` reports everything that is wrong with a file at once, each with file and line (or the command-line option) and
what to do. What a file may contain is in harness/schema.py and, in words, in docs/configuration.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from harness import source as yaml_source
from harness.names import did_you_mean
from harness.schema import KINDS, ContextKeys, Dtype, EngineKeys, Keys, ModelKeys, TopKeys, complaints
from harness.source import Loc, Source
from harness.types import Benchmark, ContextSetting, GatedevalError, Model, Yarn

T = TypeVar("T")
K = TypeVar("K", bound=Keys)


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


def load(
    path: str | os.PathLike[str],
    overrides: Mapping[str, Any] | Iterable[str] = (),
    *,
    check_paths: bool = True,
) -> Config:
    """Read, complete and check a config file.

    `overrides`: command-line values, a mapping of dotted keys or `key=value` texts (see `harness.source.lay_over`).
    `check_paths=False` leaves models and data that are not there yet to a later moment.
    Raises one GatedevalError that lists all that is wrong.
    """
    text = yaml_source.read(Path(path))
    return _build(text, overrides, Path(path).parent, check_paths)


def from_dict(
    data: Mapping[str, Any],
    overrides: Mapping[str, Any] | Iterable[str] = (),
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
        "models": [asdict(m) for m in config.models],
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


def _build(s: Source, overrides: Mapping[str, Any] | Iterable[str], base: Path, check_paths: bool) -> Config:
    if not isinstance(s.data, dict):
        raise GatedevalError(f"{s.place(())}: a config is a mapping (name:, models:, ...), not {_kind(s.data)}")
    yaml_source.lay_over(s, overrides)
    top = _validate(s, TopKeys, s.data, ())
    engine = _validate(s, EngineKeys, s.data.get("engine") or {}, ("engine",))
    default = engine.dtype if engine else "auto"
    models = _entries(s, "models", lambda v, loc: _model(s, v, loc, base, check_paths, default))
    contexts = _entries(s, "contexts", lambda v, loc: _context(s, v, loc)) if "contexts" in s.data else []
    benchmarks = _entries(s, "benchmarks", lambda v, loc: _benchmark(s, v, loc))
    if "contexts" not in s.data:
        contexts = [((), ContextSetting(label="native"))]
    for key in ("models", "contexts"):
        _distinct_labels(s, key)
    _distinct_cells(s, benchmarks)
    _lengths_fit(s, [c for _, c in contexts], len(s.data.get("contexts") or [1]), benchmarks)
    if s.data.get("thinking") is True and not s.data.get("chat_template"):
        s.problem(("thinking",), "thinking needs a chat template; add chat_template: true", key=True)
    data = None
    if top and top.data is not None:
        data = _find(top.data, base)
        if data is None and check_paths:
            s.problem(("data",), f"no directory {top.data!r}{_looked(top.data, base)}")
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


# ------------------------------------------------------------------------------------------------ entry by entry


def _validate(s: Source, keys: type[K], value: Any, loc: Loc, at: Callable[[Loc], Loc] | None = None) -> K | None:
    """One mapping checked against its class; complaints go to the source. `at`: where a key of it really stands."""
    try:
        return keys.model_validate(value)
    except ValidationError as error:
        for below, message, about_key in complaints(error, keys):
            full = at(below) if at else (*loc, *below)
            # A missing key has no place of its own: the mapping that lacks it has.
            subject = _subject(s, full[:-1] if about_key else full)
            s.problem(full, f"{subject}: {message}" if subject else message, key=about_key)
        return None


def _subject(s: Source, loc: Loc) -> str:
    """`contexts 'YaRN', yarn.factor`: what a complaint is about, in the user's own labels."""
    if len(loc) < 2 or not isinstance(loc[1], int):
        return ".".join(map(str, loc))
    entry = s.data[loc[0]][loc[1]]
    name = yaml_source.entry_name(entry)
    head = f"{loc[0]} {name!r}" if name else f"{loc[0]}[{loc[1]}]"
    tail = ".".join(str(k) for k in loc[2:] if k != name)
    return f"{head}, {tail}" if tail else head


def _entries(s: Source, key: str, make: Callable[[Any, Loc], T | None]) -> list[tuple[Loc, T]]:
    value = s.data.get(key)
    if not isinstance(value, list):
        return []  # the top level has complained
    made = [((key, i), make(entry, (key, i))) for i, entry in enumerate(value)]
    return [(loc, entry) for loc, entry in made if entry is not None]


def _model(s: Source, value: Any, loc: Loc, base: Path, check_paths: bool, dtype: Dtype) -> Model | None:
    keys = _validate(s, ModelKeys, value, loc)
    if keys is None:
        return None
    resolved = {"path": keys.path, "tokenizer": keys.tokenizer}
    for what, path in resolved.items():
        if path is None:
            continue
        found = _find(path, base)
        if found is not None and not found.is_dir():
            s.problem((*loc, what), f"{_subject(s, loc)}: {what} {path!r} is a file; a directory is needed")
        elif found is not None:
            resolved[what] = str(found)
        elif check_paths and not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path):
            s.problem((*loc, what), f"{_subject(s, loc)}: no directory {path!r}{_looked(path, base)}, nor is it a "
                      f"hub id of the form org/name")  # fmt: skip
    local = Path(str(resolved["path"]))
    if keys.subfolder and local.is_dir() and not (local / keys.subfolder).is_dir():
        there = [p.name for p in local.iterdir() if p.is_dir()]
        hint = did_you_mean(keys.subfolder, there)
        s.problem((*loc, "subfolder"), f"{_subject(s, loc)}: {local} has no folder {keys.subfolder!r}{hint}")
    return Model(
        label=keys.label,
        path=str(resolved["path"]),
        subfolder=keys.subfolder,
        revision=keys.revision,
        tokenizer=resolved["tokenizer"],
        dtype=keys.dtype if keys.dtype is not None else dtype,
    )


def _find(path: str, base: Path) -> Path | None:
    """An existing local path, absolute: from the current directory first, then from the config's."""
    for candidate in (Path(path).expanduser(), base / path):
        if candidate.exists():
            return Path(os.path.abspath(candidate))
    return None


def _looked(path: str, base: Path) -> str:
    if Path(path).expanduser().is_absolute():
        return ""
    return f" (looked in the current directory and in {base})"


def _context(s: Source, value: Any, loc: Loc) -> ContextSetting | None:
    keys = _validate(s, ContextKeys, value, loc)
    if keys is None:
        return None
    plain = keys.model_dump()
    return ContextSetting(**{**plain, "yarn": Yarn(**plain["yarn"]) if plain["yarn"] else None})


def _benchmark(s: Source, value: Any, loc: Loc) -> Benchmark | None:
    if isinstance(value, str):
        value = {value: None}
    if not isinstance(value, dict):
        s.problem(loc, f"benchmarks[{loc[1]}]: should be a mapping such as {{ruler: all, ...}}, is {_kind(value)}")
        return None
    kinds = [k for k in value if k in KINDS]
    if len(kinds) != 1:
        known = ", ".join(KINDS)
        if kinds:
            message = f"{' and '.join(kinds)} in one entry; make them entries of their own"
        else:
            odd = next((k for k in value if k not in ("shots", "samples", "lengths")), "")
            hint = did_you_mean(odd, KINDS) or f"; for an lm-eval task write {{lm_eval: {odd or 'name'}}}"
            message = f"unknown benchmark {odd!r} (known: {known}){hint}"
        s.problem(loc, f"benchmarks[{loc[1]}]: {message}")
        return None
    kind = kinds[0]
    if kind in ("ruler", "lm_eval"):
        return _from_keys(kind, _validate(s, KINDS[kind], value, loc))
    # {mmlu: {shots: 5}}, {mmlu: [anatomy]} and {mmlu: all, shots: 5} are all understood.
    inner = value[kind]
    if isinstance(inner, str | list) and kind == "mmlu":
        inner = {"subjects": inner}
    if inner is not None and not isinstance(inner, dict):
        s.problem((*loc, kind), f"{_subject(s, loc)}: should be a mapping such as {{shots: 5}}, is {_kind(inner)}")
        return None
    inner, outer = inner or {}, {k: v for k, v in value.items() if k != kind}
    for twice in inner.keys() & outer.keys():
        s.problem((*loc, twice), f"{_subject(s, loc)}: {twice!r} is given twice, inside {kind} and beside it", key=True)

    def at(below: Loc) -> Loc:
        return (*loc, *below) if below[:1] and below[0] in outer else (*loc, kind, *below)

    return _from_keys(kind, _validate(s, KINDS[kind], {**inner, **outer}, loc, at))


def _from_keys(kind: str, keys: Keys | None) -> Benchmark | None:
    if keys is None:
        return None
    v = keys.model_dump()
    if kind == "ruler":
        options = (("profile", v["profile"]), ("answer_prefix", v["answer_prefix"]))
        return Benchmark(
            kind="ruler", tasks=tuple(v["ruler"]), lengths=tuple(v["lengths"]), samples=v["samples"], options=options
        )
    if kind == "mmlu":
        return Benchmark(kind="mmlu", tasks=tuple(v["subjects"]), samples=v["samples"], shots=v["shots"])
    if kind == "gsm8k":
        return Benchmark(kind="gsm8k", tasks=("gsm8k",), samples=v["samples"], shots=v["shots"])
    return Benchmark(kind="lm_eval", tasks=(v["lm_eval"],), samples=v["samples"], shots=v["shots"])


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


def _distinct_cells(s: Source, benchmarks: list[tuple[Loc, Benchmark]]) -> None:
    """No cell is asked for twice, and all of RULER in one table is of one kind."""
    seen: dict[tuple[str, str, int], Loc] = {}
    options: tuple[tuple[str, Any], ...] | None = None
    for loc, b in benchmarks:
        if b.kind == "ruler":
            if options is not None and b.options != options:
                s.problem(
                    loc, "benchmarks: two RULER entries with different profile or answer_prefix; make two configs"
                )
            options = options or b.options
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
                f"{_subject(s, (*loc, 'lengths'))}: {', '.join(map(str, over))} is above max_length of every context "
                f"(the largest is {best!r}, {limits[best]}); raise max_length or drop the length",
            )


def _yarn_reach(yarn: Yarn) -> int:
    return int(yarn.factor * yarn.original_max_position_embeddings)


def _kind(value: Any) -> str:
    return "empty" if value is None else f"{value!r}" if not isinstance(value, list | dict) else type(value).__name__
