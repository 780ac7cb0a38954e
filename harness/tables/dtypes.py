"""In which dtype a model's answers were computed: one for all of them, or another one for some benchmarks.

What counts is what computed the answers that a run counts (`arithmetic` of a sample); of answers that do not say it,
what the model's engine reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from harness.benchmarks.presentation import presentation_of
from harness.store import Store
from harness.types import Cell


def facts_of(store: Store, model: str) -> Mapping[str, Any]:
    """What run.json says about a model: gate, parameters, rope, and what its engine reported (`engine`)."""
    return (store.manifest.get("models") or {}).get(model) or {}


def dtype_of(facts: Mapping[str, Any]) -> str:
    """The dtype that an engine computed in, from what it reported; nothing where it reported none."""
    return _name((facts.get("arithmetic") or {}).get("dtype") or facts.get("dtype"))


def engines_of(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a model's engines reported: its own one first, then those of benchmarks in other dtypes."""
    found = [facts.get("engine") or {}, *(facts.get("other_engines") or {}).values()]
    return [engine for engine in found if engine]


def cells_by_dtype(store: Store, cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """dtype -> the cells whose answers, or most of them, were computed in it. Cells without answers are left out."""
    known = store.manifest.get("arithmetic") or {}
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        counts: Counter[str] = Counter()
        for key, n in store.scores(cell).arithmetic.items():
            counts[_name((known.get(key) or {}).get("dtype"))] += n
        if counts:
            name = counts.most_common(1)[0][0] or dtype_of(facts_of(store, cell.model).get("engine") or {})
            found.setdefault(name, []).append(cell)
    found.pop("", None)
    return found


def dtype_parts(store: Store, model: str) -> list[str]:
    """["bfloat16", "MMLU in float32"]: the dtype of a model's answers, then the benchmarks that have another one."""
    own = dtype_of(facts_of(store, model).get("engine") or {})
    cells = [cell for cell in store.cells if cell.model == model]
    found = cells_by_dtype(store, cells)
    if len(found) < 2:
        return [name for name in (next(iter(found), own),) if name]
    main = own if own in found else max(found, key=lambda name: len(found[name]))
    answered = [cell for of_dtype in found.values() for cell in of_dtype]
    return [main, *(f"{_what(found[name], answered)} in {name}" for name in found if name != main)]


def in_16_bits(store: Store) -> bool:
    """Whether any answer of the run was computed in bfloat16 or float16, or any engine ran in one of them."""
    models = (store.manifest.get("models") or {}).values()
    reported = {str(m.get("dtype") or "") for m in models} | {dtype_of(e) for m in models for e in engines_of(m)}
    return bool((reported | cells_by_dtype(store, store.cells).keys()) & {"bfloat16", "float16"})


def _what(cells: list[Cell], every: list[Cell]) -> str:
    """ "MMLU and RULER at 4096 and 8192": the benchmarks of `cells`; where others of `every` are of one, which part."""
    names = dict.fromkeys(cell.benchmark for cell in cells)
    return _listed([_part(name, _of(name, cells), _of(name, every)) for name in names])


def _of(benchmark: str, cells: list[Cell]) -> dict[tuple[str, int], None]:
    """The (task, length) pairs of one benchmark."""
    return dict.fromkeys((cell.task, cell.length) for cell in cells if cell.benchmark == benchmark)


def _part(benchmark: str, mine: Mapping[tuple[str, int], None], every: Mapping[tuple[str, int], None]) -> str:
    shown = presentation_of(benchmark)
    if len(mine) == len(every):
        return shown.title
    lengths = sorted({length for _, length in mine if length})
    at = f" at {_listed(map(str, lengths))}" if lengths else ""
    if all(pair in mine for pair in every if pair[1] in lengths or not lengths):
        return shown.title + at
    return f"{shown.title} ({', '.join(dict.fromkeys(task for task, _ in mine))}){at}"


def _listed(names: Iterable[str]) -> str:
    """ "a, b and c"."""
    *first, last = list(names)
    return f"{', '.join(first)} and {last}" if first else last


def _name(value: Any) -> str:
    return str(value or "").removeprefix("torch.")
