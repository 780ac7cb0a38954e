"""One entry of a config at a time: checked keys -> the vocabulary of `harness.types`.

Everything wrong with an entry goes to its source as a problem with a place; the entry is then None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from harness.config.names import did_you_mean
from harness.config.schema import KINDS, ContextKeys, Dtype, Keys, ModelKeys, complaints
from harness.config.vocabulary import Benchmark, ContextSetting, Model, Yarn
from harness.config.yaml_text import Loc, Source, entry_name

T = TypeVar("T")
K = TypeVar("K", bound=Keys)


def validate(s: Source, keys: type[K], value: Any, loc: Loc, at: Callable[[Loc], Loc] | None = None) -> K | None:
    """One mapping checked against its class; complaints go to the source. `at`: where a key of it really stands."""
    try:
        return keys.model_validate(value)
    except ValidationError as error:
        for below, message, about_key in complaints(error, keys):
            full = at(below) if at else (*loc, *below)
            # A missing key has no place of its own: the mapping that lacks it has.
            about = subject(s, full[:-1] if about_key else full)
            s.problem(full, f"{about}: {message}" if about else message, key=about_key)
        return None


def subject(s: Source, loc: Loc) -> str:
    """`contexts 'YaRN', yarn.factor`: what a complaint is about, in the user's own labels."""
    if len(loc) < 2 or not isinstance(loc[1], int):
        return ".".join(map(str, loc))
    entry = s.data[loc[0]][loc[1]]
    name = entry_name(entry)
    head = f"{loc[0]} {name!r}" if name else f"{loc[0]}[{loc[1]}]"
    tail = ".".join(str(k) for k in loc[2:] if k != name)
    return f"{head}, {tail}" if tail else head


def entries(s: Source, key: str, make: Callable[[Any, Loc], T | None]) -> list[tuple[Loc, T]]:
    """The entries of a list, each with its place; what could not be made is left out (and has been reported)."""
    value = s.data.get(key)
    if not isinstance(value, list):
        return []  # the top level has complained
    made = [((key, i), make(entry, (key, i))) for i, entry in enumerate(value)]
    return [(loc, entry) for loc, entry in made if entry is not None]


def model(s: Source, value: Any, loc: Loc, base: Path, check_paths: bool, dtype: Dtype) -> Model | None:
    """An entry of `models`, its paths found (absolute) or taken for hub ids."""
    keys = validate(s, ModelKeys, value, loc)
    if keys is None:
        return None
    resolved = {"path": keys.path, "tokenizer": keys.tokenizer}
    for what, path in resolved.items():
        if path is None:
            continue
        found = find(path, base)
        if found is not None and not found.is_dir():
            s.problem((*loc, what), f"{subject(s, loc)}: {what} {path!r} is a file; a directory is needed")
        elif found is not None:
            resolved[what] = str(found)
        elif check_paths and not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path):
            s.problem((*loc, what), f"{subject(s, loc)}: no directory {path!r}{looked(path, base)}, nor is it a "
                      f"hub id of the form org/name")  # fmt: skip
    local = Path(str(resolved["path"]))
    if keys.subfolder and local.is_dir() and not (local / keys.subfolder).is_dir():
        there = [p.name for p in local.iterdir() if p.is_dir()]
        hint = did_you_mean(keys.subfolder, there)
        s.problem((*loc, "subfolder"), f"{subject(s, loc)}: {local} has no folder {keys.subfolder!r}{hint}")
    return Model(
        label=keys.label,
        path=str(resolved["path"]),
        subfolder=keys.subfolder,
        revision=keys.revision,
        tokenizer=resolved["tokenizer"],
        dtype=keys.dtype if keys.dtype is not None else dtype,
        contexts=tuple(keys.contexts) if keys.contexts is not None else None,
    )


def find(path: str, base: Path) -> Path | None:
    """An existing local path, absolute: from the current directory first, then from the config's."""
    for candidate in (Path(path).expanduser(), base / path):
        if candidate.exists():
            return Path(os.path.abspath(candidate))
    return None


def looked(path: str, base: Path) -> str:
    """Where `find` looked, for an error."""
    if Path(path).expanduser().is_absolute():
        return ""
    return f" (looked in the current directory and in {base})"


def context(s: Source, value: Any, loc: Loc) -> ContextSetting | None:
    """An entry of `contexts`."""
    keys = validate(s, ContextKeys, value, loc)
    if keys is None:
        return None
    plain = keys.model_dump()
    return ContextSetting(**{**plain, "yarn": Yarn(**plain["yarn"]) if plain["yarn"] else None})


def benchmark(s: Source, value: Any, loc: Loc) -> Benchmark | None:
    """An entry of `benchmarks`, in any of its forms."""
    if isinstance(value, str):
        value = {value: None}
    if not isinstance(value, dict):
        s.problem(loc, f"benchmarks[{loc[1]}]: should be a mapping such as {{ruler: all, ...}}, is {shown(value)}")
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
        return _from_keys(kind, validate(s, KINDS[kind], value, loc))
    # {mmlu: {shots: 5}}, {mmlu: [anatomy]} and {mmlu: all, shots: 5} are all understood.
    inner = value[kind]
    if isinstance(inner, str | list) and kind == "mmlu":
        inner = {"subjects": inner}
    if inner is not None and not isinstance(inner, dict):
        s.problem((*loc, kind), f"{subject(s, loc)}: should be a mapping such as {{shots: 5}}, is {shown(inner)}")
        return None
    inner, outer = inner or {}, {k: v for k, v in value.items() if k != kind}
    for twice in inner.keys() & outer.keys():
        s.problem((*loc, twice), f"{subject(s, loc)}: {twice!r} is given twice, inside {kind} and beside it", key=True)

    def at(below: Loc) -> Loc:
        return (*loc, *below) if below[:1] and below[0] in outer else (*loc, kind, *below)

    return _from_keys(kind, validate(s, KINDS[kind], {**inner, **outer}, loc, at))


def _from_keys(kind: str, keys: Keys | None) -> Benchmark | None:
    if keys is None:
        return None
    v = keys.model_dump()
    if kind == "ruler":
        options: tuple[tuple[str, Any], ...] = (("profile", v["profile"]), ("answer_prefix", v["answer_prefix"]))
        if v["answer_tokens"] is not None:  # only where given: what was resolved before this option stays the same
            options = (*options, ("answer_tokens", v["answer_tokens"]))
        return Benchmark(
            kind="ruler", tasks=tuple(v["ruler"]), lengths=tuple(v["lengths"]), samples=v["samples"], options=options
        )
    if kind == "mmlu":
        return Benchmark(kind="mmlu", tasks=tuple(v["subjects"]), samples=v["samples"], shots=v["shots"])
    if kind == "gsm8k":
        return Benchmark(kind="gsm8k", tasks=("gsm8k",), samples=v["samples"], shots=v["shots"])
    return Benchmark(kind="lm_eval", tasks=(v["lm_eval"],), samples=v["samples"], shots=v["shots"])


def shown(value: Any) -> str:
    """A value as it is put into an error."""
    return "empty" if value is None else f"{value!r}" if not isinstance(value, list | dict) else type(value).__name__
