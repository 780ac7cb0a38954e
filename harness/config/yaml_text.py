"""YAML text -> plain values that remember the file and line they came from.

Scalars are read as YAML 1.2 has them, not as PyYAML's 1.1 does: `1e6` is a number (1.1: text), `1:30` is text (1.1: the
number 90), `010` is ten (1.1: eight), and only true and false are booleans (1.1: also on, off, yes, no).
`1_000_000` is a number as in 1.1. A key given twice is an error (PyYAML silently takes the second).

ruamel.yaml, which reads YAML 1.2 and keeps positions, was tried (0.19.1) in place of this. It would lose:
- all mistakes in one message: it raises at the first key that is given twice, so nothing after it is reported;
- the message for an alias that contains itself (`a: &x [*x]`), which it loads as `[None]`;
- text that stays text: a label such as 2024-01-01 becomes a date, `0x10` and `0o10` become 16 and 8, and a line
  `%YAML 1.1` brings back octal `010`;
- refusals: `<<` merges mappings, and numbers and lists can be keys.
Its scalars are classes of its own, which would have to be unwrapped, and it imports in 55 ms (PyYAML: 15 ms).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.text import well_formed
from harness.types import GatedevalError, did_you_mean

Loc = tuple[str | int, ...]
"""The way to a value from the top: keys and list indices."""

_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")
_SPECIAL = {"": None, "~": None, "null": None, "true": True, "false": False, ".inf": float("inf"), ".nan": float("nan")}
_DEPTH = 16  # a config is three levels deep; an alias that contains itself is endless


@dataclass
class Source:
    """A config's plain values, the place of each, and what was wrong with the text itself."""

    name: str
    data: Any = None
    places: dict[Loc, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def place(self, loc: Loc, *, key: bool = False) -> str:
        """`file:line` (or the command-line option) of a value, of its key, or of the nearest thing around it."""
        if key and (found := self.places.get((*loc, "\0key"))):
            return found
        while loc and loc not in self.places:
            loc = loc[:-1]
        return self.places.get(loc, self.name)

    def problem(self, loc: Loc, message: str, *, key: bool = False) -> None:
        """Note one thing that is wrong at `loc`."""
        self.problems.append(f"{self.place(loc, key=key)}: {message}")

    def raise_problems(self) -> None:
        """Raise everything noted as one GatedevalError; nothing noted, nothing raised."""
        unique = list(dict.fromkeys(self.problems))
        if len(unique) == 1:
            raise GatedevalError(unique[0])
        if unique:
            raise GatedevalError(f"{self.name}: {len(unique)} errors\n" + "\n".join(f"  {p}" for p in unique))


def read(path: Path) -> Source:
    """Read a YAML file. Raises GatedevalError for a file that is absent, unreadable, or no YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*.yaml")]) if path.parent.is_dir() else ""
        raise GatedevalError(f"{path}: no such config file{near}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise GatedevalError(f"{path}: cannot be read as a UTF-8 text file: {error}") from None
    source = Source(str(path))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        what = getattr(error, "problem", None) or str(error)
        hint = (
            "; use spaces, not tabs, to indent" if "\\t" in what else "; check indentation, brackets and quotes there"
        )
        raise GatedevalError(f"{where}: not valid YAML: {what}{hint}") from None
    if root is None:
        raise GatedevalError(f"{path}: the config is empty; see docs/configuration.md for what it needs")
    source.data = read_value(root, (), source)
    return source


def read_value(node: yaml.Node, loc: Loc, source: Source) -> Any:
    """A node as a plain value; notes its line, and duplicate keys as problems."""
    source.places[loc] = _line(node, source)
    if len(loc) > _DEPTH:
        raise GatedevalError(f"{source.place(loc)}: nested too deeply (does an alias contain itself?)")
    if isinstance(node, yaml.ScalarNode):
        if well_formed(node.value) != node.value:
            source.problem(loc, f"{node.value!a} has half a character (a lone surrogate); write the whole one")
        return scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [read_value(child, (*loc, i), source) for i, child in enumerate(node.value)]
    result: dict[str, Any] = {}
    assert isinstance(node, yaml.MappingNode)
    for key_node, child in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            source.problem(loc, "a key must be plain text")
            continue
        key = str(key_node.value)
        if key in result:
            first = source.place((*loc, key), key=True).rsplit(":", 1)[-1]
            source.problems.append(
                f"{_line(key_node, source)}: key {key!r} is given twice (first on line {first}); keep one"
            )
            continue
        source.places[(*loc, key, "\0key")] = _line(key_node, source)
        result[key] = read_value(child, (*loc, key), source)
    return result


def _line(node: yaml.Node, source: Source) -> str:
    return f"{source.name}:{node.start_mark.line + 1}"


def scalar(text: str) -> Any:
    """An unquoted scalar as a number, a boolean, None or text."""
    if text.lower() in _SPECIAL:
        return _SPECIAL[text.lower()]
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def plain(value: Any) -> Any:
    """A deep copy of JSON-able data: mappings as dicts, tuples as lists, paths as text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value
