"""RoPE base x YaRN factor as one config: what `gatedeval sweep` runs. Its run is a run like any other.

Every pair of a base and a factor is a context setting of its own, so plan, runner, store and tables know nothing of
sweeps, and all settings of a model share its one engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.config import Config, ContextSetting, Model, Options, Yarn, from_dict
from harness.models.checkpoint import inspect
from harness.models.hub import resolve
from harness.rope import context
from harness.types import GatedevalError

NATIVE = "native"


def parse_list(text: str, option: str, read: Callable[[str], Any]) -> list[Any]:
    """A comma-separated list of numbers, sorted. Raises GatedevalError for an empty one, a repeat, or no number."""
    values = []
    for part in (p.strip() for p in text.split(",")):
        if not part:
            raise GatedevalError(f"{option} {text!r}: an empty entry; write numbers with single commas, e.g. 1,2,4")
        try:
            value = read(part)
        except ValueError as error:
            raise GatedevalError(f"{option} {text!r}: {part!r} {error}") from None
        if value in values:
            raise GatedevalError(f"{option} {text!r}: {part} stands there twice; keep one")
        values.append(value)
    return sorted(values)


def a_base(text: str) -> float:
    """A RoPE base: a finite number above 1. Raises ValueError with what it should be."""
    return _number(text, lambda v: v > 1, "should be a RoPE base, a number above 1 such as 1e6")


def a_factor(text: str) -> float:
    """A YaRN factor: a finite number of at least 1. Raises ValueError with what it should be."""
    return _number(text, lambda v: v >= 1, "should be a YaRN factor, a number of at least 1 (1: the base alone)")


def _number(text: str, allowed: Callable[[float], bool], message: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not allowed(value):
        raise ValueError(message)
    return value


def number_text(value: float) -> str:
    """A base or factor as people write it, and exactly: 1e6, 5e4, 123456, 1.5."""
    if value != int(value):
        return repr(value)
    digits = str(int(value))
    mantissa = digits.rstrip("0")
    zeros = len(digits) - len(mantissa)
    return f"{mantissa}e{zeros}" if zeros >= 3 and len(mantissa) == 1 else digits


def context_label(base: float | None, factor: float) -> str:
    """What a setting is called in tables: `base 1e6 YaRN 4`; a base that is not changed is `own base`."""
    label = "own base" if base is None else f"base {number_text(base)}"
    return label if factor == 1 else f"{label} YaRN {number_text(factor)}"


def contexts(
    bases: Sequence[float | None], factors: Sequence[float], lengths: Sequence[int], original: int | None, native: bool
) -> list[dict[str, Any]]:
    """The context settings of a sweep, as entries of a config; with `native`, the checkpoint's own setting first.

    `original`: tokens that the model was trained on, which YaRN stretches. A base alone has no limit of its own and is
    evaluated at every length; YaRN reaches factor x original. No setting is given more than the longest length needs,
    which keeps the engine's rotary tables and KV cache small.

    Raises:
        GatedevalError: a factor without an original length; a length that no setting reaches; nothing to compare.
    """
    if any(f > 1 for f in factors) and original is None:
        raise GatedevalError(
            "--yarn-factor needs --original N, the length in tokens that the model was trained on before any extension"
            " (it is not guessed: Qwen3's is 32768 while its max_position_embeddings says 40960)"
        )
    settings: list[dict[str, Any]] = [{"label": NATIVE}] if native else []
    longest, reached = max(lengths), 0
    for base in bases:
        for factor in factors:
            if base is None and factor == 1:
                if not native:  # the same thing under its own name
                    settings.append({"label": NATIVE})
                continue
            entry: dict[str, Any] = {"label": context_label(base, factor), "max_length": longest}
            if base is not None:
                entry["rope_theta"] = base
            if factor > 1 and original is not None:
                yarn = Yarn(factor=factor, original_max_position_embeddings=original)
                entry["yarn"] = yarn.model_dump(include={"factor", "original_max_position_embeddings"})
                entry["max_length"] = min(longest, yarn.reach)
            reached = max(reached, entry["max_length"])
            settings.append(entry)
    if not reached:
        raise GatedevalError("nothing to sweep: give --rope-theta, or --yarn-factor with a factor above 1")
    if reached < longest:
        raise GatedevalError(
            f"no setting reaches {longest} tokens: YaRN {number_text(max(factors))} x original {original} = {reached};"
            f" add a --yarn-factor of {number_text(math.ceil(longest / (original or 1)))} or leave the length out"
        )
    return settings


def models(arguments: Sequence[str], dtype: str) -> list[dict[str, Any]]:
    """`PATH` or `LABEL=PATH` per model, as entries of a config; the label is else the last part of the path."""
    entries = []
    for argument in arguments:
        label, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():
            label, path = Path(argument).name or argument, argument
        if not label or not path:
            raise GatedevalError(f"model {argument!r}: write PATH, or LABEL=PATH")
        entries.append({"label": label, "path": path, "dtype": dtype})
    labels = [e["label"] for e in entries]
    if twice := next((x for x in labels if labels.count(x) > 1), None):
        raise GatedevalError(f"two models are called {twice!r}; tell them apart: LABEL=PATH")
    return entries


def build(
    paths: Sequence[str],
    *,
    bases: Sequence[float | None],
    factors: Sequence[float],
    lengths: Sequence[int],
    tasks: Sequence[str],
    samples: int,
    original: int | None = None,
    native: bool = True,
    dtype: str = "auto",
    seed: int = 42,
    name: str | None = None,
    overrides: Options = (),
) -> Config:
    """The config of a sweep; `overrides` as `gatedeval run` takes them, e.g. `engine.enforce_eager=true`.

    Raises:
        GatedevalError: whatever `contexts` and `models` refuse, and everything that a config file would be refused for.
    """
    entries = models(paths, dtype)
    stem = "-".join(re.sub(r"[^A-Za-z0-9._-]", "_", str(e["label"])) for e in entries)
    settings = contexts(bases, factors, lengths, original, native)
    ruler: Any = "all" if "all" in tasks else list(tasks)
    data = {
        "name": name or f"sweep-{stem}",
        "models": entries,
        "contexts": settings,
        "benchmarks": [{"ruler": ruler, "lengths": list(lengths), "samples": samples}],
        "seed": seed,
    }
    config = from_dict(data, overrides, name="gatedeval sweep", check_paths=True)
    # Only now, because it reads the checkpoints, which may be on the hub: a mistyped task is found before.
    if own := next((c for c in settings if c["label"] == NATIVE), None):
        own["max_length"] = _native_length([e["path"] for e in entries], max(lengths))
        config = from_dict(data, overrides, name="gatedeval sweep", check_paths=True)
    return config


def _native_length(paths: Sequence[str], longest: int) -> int | None:
    """`longest` if every model reaches it without extension, else None. An engine then starts for 2K, not for 128K."""
    try:
        for path in paths:
            checkpoint = inspect(resolve(Model(label=path, path=path)))
            if context.max_length(ContextSetting(label=NATIVE), checkpoint.config) < longest:
                return None
    except GatedevalError:
        return None  # the plan reports what is wrong with the model
    return longest
