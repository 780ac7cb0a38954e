"""One entry of a config at a time: plain values -> the models of `harness.config.vocabulary`.

Everything wrong with an entry goes to the source as a problem with its place; the result is then None, so that one bad
entry does not hide the mistakes in the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from harness.config.discovery import benchmark_types, entry_name
from harness.config.fields import Dtype, Entry
from harness.config.messages import complaints
from harness.config.probing import ESSAYS, RULER_TEXT, TEXTS, ProbeOptions
from harness.config.vocabulary import BenchmarkEntry, ContextSetting, Model
from harness.config.yaml_text import Loc, Source
from harness.types import did_you_mean

T = TypeVar("T")
K = TypeVar("K", bound=Entry)


def validate(s: Source, cls: type[K], value: Any, loc: Loc, at: Callable[[Loc], Loc] | None = None) -> K | None:
    """One mapping checked against its class; complaints go to the source. `at`: where a key of it really stands."""
    try:
        return cls.model_validate(value)
    except ValidationError as error:
        for below, message, about_key in complaints(error, cls):
            full = at(below) if at else (*loc, *below)
            # A missing key has no place of its own: the mapping that lacks it has.
            about = subject(s, full[:-1] if about_key else full)
            s.problem(full, f"{about}: {message}" if about else message, key=about_key)
        return None


def subject(s: Source, loc: Loc) -> str:
    """`contexts 'YaRN', yarn.factor`: what a complaint is about, in the user's own labels."""
    if len(loc) < 2 or not isinstance(loc[1], int):
        return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in loc).removeprefix(".")
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
    """An entry of `models`, its paths found (absolute) or taken for hub ids. `dtype`: the engine's, for one without."""
    if isinstance(value, dict) and value.get("dtype") is None:
        value = {**value, "dtype": dtype}
    made = validate(s, Model, value, loc)
    if made is None:
        return None
    resolved = {"path": made.path, "tokenizer": made.tokenizer}
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
    made = made.model_copy(update=resolved)
    local = Path(made.path)
    if made.subfolder and local.is_dir() and not (local / made.subfolder).is_dir():
        there = [p.name for p in local.iterdir() if p.is_dir()]
        hint = did_you_mean(made.subfolder, there)
        s.problem((*loc, "subfolder"), f"{subject(s, loc)}: {local} has no folder {made.subfolder!r}{hint}")
    return made


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
    made = validate(s, ContextSetting, value, loc)
    if made is None or made.max_length is None or made.declared_reach is None or made.max_length <= made.declared_reach:
        return made
    kind, own = ("yarn", made.yarn) if made.yarn else ("longrope", made.longrope)
    assert own is not None
    factor, original = own.factor, own.original_max_position_embeddings
    s.problem(
        loc,
        f"{subject(s, loc)}: {kind} reaches factor {factor:g} x original {original} = {own.reach} tokens, less than "
        f"max_length {made.max_length}; use a factor of at least {made.max_length / original:g}, "
        f"or max_length: {own.reach}",
    )
    return None


def benchmark(s: Source, value: Any, loc: Loc) -> BenchmarkEntry | None:
    """An entry of `benchmarks`, in any of its forms: a name alone, flat, or nested below its key."""
    if isinstance(value, str):
        value = {value: None}
    if not isinstance(value, dict):
        s.problem(loc, f"benchmarks[{loc[1]}]: should be a mapping such as {{ruler: all, ...}}, is {shown(value)}")
        return None
    types = benchmark_types()
    keys = [k for k in value if k in types]
    if len(keys) != 1:
        if keys:
            message = f"{' and '.join(keys)} in one entry; make them entries of their own"
        else:
            odd = next((k for k in value if k not in ("shots", "samples", "lengths")), "")
            hint = did_you_mean(odd, types) or f"; for an lm-eval task write {{lm_eval: {odd or 'name'}}}"
            message = f"unknown benchmark {odd!r} (known: {', '.join(types)}){hint}"
        s.problem(loc, f"benchmarks[{loc[1]}]: {message}")
        return None
    key = keys[0]
    cls = types[key]
    if cls.flat():
        return validate(s, cls, value, loc)
    # {mmlu: {shots: 5}}, {mmlu: [anatomy]} and {mmlu: all, shots: 5} are all understood.
    inner = value[key]
    if isinstance(inner, str | list) and cls.LIST_MEANS:
        inner = {cls.LIST_MEANS: inner}
    if inner is not None and not isinstance(inner, dict):
        s.problem((*loc, key), f"{subject(s, loc)}: should be a mapping such as {{shots: 5}}, is {shown(inner)}")
        return None
    inner, outer = inner or {}, {k: v for k, v in value.items() if k != key}
    for twice in inner.keys() & outer.keys():
        s.problem((*loc, twice), f"{subject(s, loc)}: {twice!r} is given twice, inside {key} and beside it", key=True)

    def at(below: Loc) -> Loc:
        return (*loc, *below) if below[:1] and below[0] in outer else (*loc, key, *below)

    return validate(s, cls, {**inner, **outer}, loc, at)


def with_files(
    s: Source, entry: BenchmarkEntry | None, loc: Loc, base: Path, check_paths: bool
) -> BenchmarkEntry | None:
    """`entry` with the files that it names found (absolute); what is there as a folder or not at all is a problem.

    A name without a dot or a slash is a word of the entry's own, such as `combined`.
    """
    if entry is None:
        return None
    for name in type(entry).FILES:
        value = getattr(entry, name)
        if not isinstance(value, str) or not ("." in value or "/" in value):
            continue
        found = find(value, base)
        if found is not None and found.is_file():
            entry = entry.model_copy(update={name: str(found)})
        elif check_paths:
            s.problem((*loc, name), f"{subject(s, loc)}: {name}: no file {value!r}{looked(value, base)}")
    return entry


def with_text(s: Source, options: ProbeOptions | None, base: Path, check_paths: bool) -> ProbeOptions | None:
    """The `probe` section with its text file found; what is there as a folder or not at all is a problem.

    A file is searched as `find` does. Its path stays as short as it was written, because tables show it.
    """
    if options is None or options.text == ESSAYS or options.text.startswith(RULER_TEXT):
        return options
    candidates = (options.text, str(Path(options.text).expanduser()), str(base / options.text))
    if (text := next((c for c in candidates if Path(c).is_file()), None)) is not None:
        return options.model_copy(update={"text": text})
    if check_paths:
        there = "is a folder" if find(options.text, base) else f"is no file{looked(options.text, base)}"
        remedy = did_you_mean(options.text, (ESSAYS,)) or f"; give {TEXTS}"
        s.problem(("probe", "text"), f"probe.text: {options.text!r} {there}{remedy}")
    return options


def shown(value: Any) -> str:
    """A value as it is put into an error."""
    return "empty" if value is None else f"{value!r}" if not isinstance(value, list | dict) else type(value).__name__
