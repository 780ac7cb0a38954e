"""Command-line values (`--set key=value`) that replace values of a config file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from harness.config.discovery import entry_name
from harness.config.yaml_text import Loc, Source, plain, read_value
from harness.types import did_you_mean

Options = Mapping[str, Any] | Iterable[str | tuple[str, Any]]


def apply_overrides(source: Source, options: Options) -> None:
    """Replace values of the file by command-line values: a mapping, (key, value) pairs, or `key=value` texts (YAML).

    A key is a dotted path. List entries are named by index, by label, or by benchmark: `seed=1`,
    `engine.max_num_seqs=4`, `contexts.YaRN.max_length=65536`, `benchmarks.ruler.samples=5`; `*` means every entry.
    """
    items = options.items() if isinstance(options, Mapping) else options
    for item in items:
        key, value = _split(item, source) if isinstance(item, str) else (item[0], plain(item[1]))
        if key:
            _set(source, source.data, (), key.split("."), value, f"option {key}")


def _split(option: str, source: Source) -> tuple[str, Any]:
    key, equals, text = option.partition("=")
    if not equals or not key.strip():
        source.problems.append(f"option {option!r}: not of the form key=value, e.g. seed=1 or engine.max_num_seqs=4")
        return "", None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        source.problems.append(f"option {key}: {text!r} is not a valid value (a number, text, or [a, list])")
        return "", None
    return key.strip(), None if root is None else read_value(root, (), Source(f"option {key}"))


def _set(source: Source, node: Any, loc: Loc, keys: list[str], value: Any, place: str) -> None:
    """Set one value below `node`, the part of the data at `loc`; a name that matches nothing is a problem."""
    if isinstance(node, list):
        indices, rest = _matching(source, node, loc, keys, place)
        for i in indices:
            if rest:
                _set(source, node[i], (*loc, i), rest, value, place)
            else:
                node[i] = value
                _mark(source, (*loc, i), place)
        return
    if not isinstance(node, dict):
        source.problems.append(f"{place}: {'.'.join(map(str, loc)) or 'the config'} has no keys to set")
        return
    key, rest = keys[0], keys[1:]
    if loc[:1] == ("benchmarks",) and len(loc) == 2:  # {mmlu: {shots: 5}} is {mmlu: all, shots: 5}
        name = entry_name(node)
        if name in node and isinstance(node[name], dict) and key != name:
            node, loc = node[name], (*loc, name)
    if rest:
        if node.get(key) is None:
            node[key] = {}
        _set(source, node[key], (*loc, key), rest, value, place)
    else:
        node[key] = value
        _mark(source, (*loc, key), place)


def _matching(source: Source, entries: list[Any], loc: Loc, keys: list[str], place: str) -> tuple[list[int], list[str]]:
    """The indices of the entries that the first of `keys` names, and the keys that are left."""
    names = [entry_name(entry) for entry in entries]
    key, rest = keys[0], keys[1:]
    for n in range(len(keys), 0, -1):  # a label may contain dots: the longest one that matches is meant
        if ".".join(keys[:n]) in names:
            key, rest = ".".join(keys[:n]), keys[n:]
            break
    indices = [i for i, name in enumerate(names) if key in ("*", str(i), name)]
    if not indices:
        known = [name for name in names if name]
        source.problems.append(f"{place}: {loc[-1]} has no entry {key!r}{did_you_mean(key, known)}; there are {known}")
    return indices, rest


def _mark(source: Source, loc: Loc, place: str) -> None:
    """Record that everything at and below `loc` comes from the command line."""
    for known in [k for k in source.places if k[: len(loc)] == loc]:
        del source.places[known]
    source.places[loc] = source.places[(*loc, "\0key")] = place
