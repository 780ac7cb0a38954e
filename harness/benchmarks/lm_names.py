"""The names of lm-eval's tasks, groups and tags, read from its YAML files as text, so that a config is checked fast.

lm-eval's own index of its 14,000 files takes 10 to 20 seconds, because it parses each as YAML. Here only the lines that
name something are read, in less than a second. The set may have more words than lm-eval has names, never fewer: a name
that is not in it is none of lm-eval's.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
from pathlib import Path

# The value of a key `task`, `group` or `tag`, over as many lines as are indented below it.
_NAMING = re.compile(rb"^[ \t-]*[\"']?(?:task|group|tag)[\"']?[ \t]*:((?:.|\n(?=[ \t\-\]\"'\n]))*)", re.MULTILINE)
OUR_TASKS = Path(__file__).resolve().parents[2] / "tasks" / "demo"
"""The folder of the demo's tasks, which a config can name like lm-eval's own."""
_NAME = re.compile(rb"[^\s,\[\]{}\"'#]+")


def names_in(folder: Path) -> frozenset[str]:
    """Every word in a place where the YAML files in and below a folder name a task, group or tag."""
    found: set[bytes] = set()
    for file in folder.rglob("*"):
        if file.suffix not in ("", ".yaml", ".yml") or not file.is_file():  # a file that others include has no ending
            continue
        for value in _NAMING.findall(file.read_bytes().replace(b"\r", b"")):
            found.update(_NAME.findall(value))
    return frozenset(name.decode(errors="replace") for name in found)


@functools.cache
def lm_eval_names() -> frozenset[str]:
    """`names_in` of the tasks that come with lm-eval. lm-eval is not imported. Empty where it is not installed."""
    folder = _tasks_folder()
    return frozenset() if folder is None else names_in(folder)


def check(name: str) -> None:
    """Raise ValueError, with the most similar names, where neither lm-eval nor the demo has a task of this name."""
    if is_known(name) or name in names_in(OUR_TASKS):
        return
    known = sorted(lm_eval_names() | names_in(OUR_TASKS))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; `lm-eval ls tasks` lists its tasks"
    raise ValueError(f"lm-eval has no task {name!r}{hint}")


def is_known(name: str) -> bool:
    """Whether lm-eval may have a task, group or tag of this name. One in a folder called like it is found at once."""
    folder = _tasks_folder()
    if folder is None:
        return True  # then loading the task says what is missing
    for near in dict.fromkeys((folder / name, folder / name.split("_")[0])):
        if near.is_dir() and name in names_in(near):
            return True
    return name in lm_eval_names()


def _tasks_folder() -> Path | None:
    spec = importlib.util.find_spec("lm_eval")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) / "tasks" if places else None
