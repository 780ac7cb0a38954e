"""Which benchmarks there are: every module of the package `harness.benchmarks` is imported, which registers its own.

The package is imported by its name when the first config is read, not at the top of this module: it lies above the
config (it reads data, tokenizes, knows the engine's requests), and the config must stay importable without it. One new
file there is a new benchmark.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from harness.config.vocabulary import BenchmarkEntry

_PACKAGE = "harness.benchmarks"


def benchmark_types() -> dict[str, type[BenchmarkEntry]]:
    """The key that names a benchmark in a config -> its class, in the order in which messages list them."""
    _import_all()
    # Backwards by module: RULER comes first, and lm_eval, which takes any name, last.
    return dict(sorted(BenchmarkEntry.registered.items(), key=lambda item: item[1].__module__, reverse=True))


@functools.cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__):
        importlib.import_module(f"{_PACKAGE}.{module.name}")


def entry_name(entry: object) -> str:
    """What a list entry is called on the command line and in messages: its label, or its benchmark."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        return ""
    types = {} if "label" in entry else benchmark_types()
    key = next((k for k in entry if k in types), None)
    return str(entry.get("label") or "") if key is None else types[key].entry_name(entry)
