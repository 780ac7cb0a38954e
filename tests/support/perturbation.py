"""A small world (config, checkpoint, tokenizer, data), and every single change of a value in it, found by walking it.

Nothing here lists keys, but `WITH`: a config is dumped with all fields of its models, files are walked as JSON or CSV.
A key that is added later is changed too.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import Config, from_dict, to_dict
from harness.types import GatedevalError

JsonPath = tuple[str | int, ...]

WITH: dict[JsonPath, dict[str, Any]] = {("thinking_tokens",): {"thinking": True}}
"""Keys of a config that mean something only beside another value of other keys: these are changed with them."""

GENERATION = {
    "eos_token_id": 0,
    "bos_token_id": 1,
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "repetition_penalty": 1.1,
    "max_new_tokens": 7,
    "transformers_version": "5.0.0",
}
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
    "{% if enable_thinking %}<think>{% endif %}"
)


def build_world(root: Path, checkpoint: Path) -> None:
    """Write a world into `root`: two models with the weights of `checkpoint`, data of three benchmarks."""
    for name in ("model", "second"):
        (root / name).mkdir(parents=True)
        for file in checkpoint.iterdir():
            shutil.copy(file, root / name / file.name)
        (root / name / "generation_config.json").write_text(json.dumps(GENERATION))
        settings = json.loads((root / name / "tokenizer_config.json").read_text())
        settings |= {"chat_template": TEMPLATE, "clean_up_tokenization_spaces": False}
        (root / name / "tokenizer_config.json").write_text(json.dumps(settings))
    config = json.loads((root / "second/config.json").read_text())
    (root / "second/config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    _write_data(root / "data")
    _write_data(root / "other_data", shift=7)


def _write_data(folder: Path, shift: int = 0) -> None:
    for split, count in (("dev", 5), ("test", 3)):
        rows = [
            [f"Which is number {n + shift} of {split}?", *(f"Bone {n}{letter}" for letter in "pqrs"), "ABCD"[n % 4]]
            for n in range(count)
        ]
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        for subject in ("anatomy", "virology"):
            file = folder / f"mmlu/{split}/{subject}_{split}.csv"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.getvalue())
    (folder / "gsm8k").mkdir()
    for split, count in (("train", 6), ("test", 3)):
        lines = [
            {"question": f"Tom has {n + 11 + shift} pens, buys 20. How many?", "answer": f"So.\n#### {n + 31 + shift}"}
            for n in range(count)
        ]
        (folder / f"gsm8k/{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    articles = []
    for n in range(6):
        name = ("Paris", "Rome", "Berlin", "Madrid", "Oslo", "Vienna")[n]
        question = {
            "question": f"Where does river {n + shift} end?",
            "id": f"q{n}",
            "is_impossible": False,
            "answers": [{"text": name, "answer_start": 0}, {"text": f"in {name}", "answer_start": 0}],
        }
        paragraph = {"context": f"{name} lies where river {n + shift} ends.", "qas": [question]}
        articles.append({"title": f"T{n}", "paragraphs": [paragraph]})
    (folder / "squad").mkdir()
    (folder / "squad/dev-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": articles}))


def _files(root: Path) -> dict[str, str]:
    return {"path": str(root / "model"), "tokenizer": str(root / "model")}


def config_of(root: Path, engine: dict[str, Any] | None = None) -> dict[str, Any]:
    """The world's config, complete: every key of every model is there, also those that are null."""
    return to_dict(
        from_dict(
            {
                "name": "world",
                "models": [{"label": "m", **_files(root), "arm": "recipe", "step": 100}],
                "contexts": [
                    {"label": "native", "max_length": 512},
                    {"label": "dynamic", "dynamic": 2, "max_length": 2304},
                    {
                        "label": "YaRN",
                        "rope_theta": 10000.0,
                        "yarn": {"factor": 2, "original_max_position_embeddings": 1024},
                        "max_length": 512,
                    },
                ],
                "benchmarks": [
                    {"ruler": ["niah_single_1", "qa_1"], "lengths": [512], "samples": 3, "profile": "fair"},
                    {"mmlu": {"subjects": ["anatomy"], "shots": 1, "samples": 3, "dtype": "float32"}},  # the engine's
                    {"gsm8k": {"shots": 1, "samples": 3}},
                ],
                "data": str(root / "data"),
                "chat_template": True,  # so that `thinking` can be changed alone
                "engine": engine or {"dtype": "float32"},
                "table": {"arms": "expanded", "steps": "all"},  # the defaults are not written
            }
        )
    )


@dataclass(frozen=True)
class Change:
    """One change of a world. `where`: file and key, for messages. `apply`: makes it in a copy; returns the config."""

    where: str
    apply: Callable[[Path], Config]


# ---------------------------------------------------------------------------------------------------------- walking


def leaves(value: Any, at: JsonPath = (), width: int = 1000) -> Iterator[tuple[JsonPath, Any]]:
    """(path, value) of every leaf of JSON data; of what is longer than `width`, of the first, middle and last entry."""
    if isinstance(value, dict | list) and value:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if len(keys) > width:
            keys = [keys[0], keys[len(keys) // 2], keys[-1]]
        for key in keys:
            yield from leaves(value[key], (*at, key), width)
    else:
        yield at, value


def replaced(data: Any, path: JsonPath, value: Any) -> Any:
    """A copy of JSON data with another value at `path`."""
    data = copy.deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return data


def others(value: Any) -> Iterator[Any]:
    """Other values of the same kind as `value`, for a key whose meaning is not known."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value * 2, value // 2, value + 0.5)
    elif isinstance(value, str):
        yield from (f"{value}x", "a")
    elif value is None:
        yield from (0, 1, 2, True, "x")
    elif isinstance(value, list):
        yield from ([0], ["x"], [1, 2])
    else:
        yield from ({"x": 1}, {"factor": 2})


# ---------------------------------------------------------------------------------------------------------- changes


def config_changes(root: Path) -> Iterator[tuple[str, list[Change]]]:
    """(key, changes of it, best first) of every key of the config. Which change is accepted, the config itself says."""
    base = config_of(root)
    known: list[Any] = [str(root / name) for name in ("other_data", "second")]
    known += list(dict.fromkeys(str(v) for _, v in leaves(base) if isinstance(v, str)))
    known += ["float32", "bfloat16", "auto", "append", "drop", "nvidia", "fair", "virology", "vt"]
    known += ["rows", "last", "short", ["ruler"], [512], {"m": "shown"}]
    for path, value in leaves(base):
        candidates = [*others(value), *known, {"factor": 2, "original_max_position_embeddings": 256}, 256, 4096.0]
        candidates += [False, True, [known[0]], None]
        changes = []
        for candidate in candidates:
            if candidate == value and type(candidate) is type(value):
                continue
            try:
                from_dict(replaced(base, path, candidate) | WITH.get(path, {}), check_paths=True)
            except (GatedevalError, TypeError):
                continue
            changes.append(Change(_name("config", path), _configured(path, candidate)))
        yield _name("config", path), changes[:3]


def _configured(path: JsonPath, value: Any) -> Callable[[Path], Config]:
    def apply(root: Path) -> Config:
        moved = str(value) if isinstance(value, str) else value
        return from_dict(replaced(config_of(root), path, moved) | WITH.get(path, {}))

    return apply


def file_changes(root: Path, name: str, width: int = 40) -> Iterator[tuple[str, list[Change]]]:
    """(key, changes) of every key of a JSON or JSON-lines file, or of every field of a CSV file."""
    data = _read(root / name)
    siblings: dict[tuple[Any, ...], list[Any]] = {}  # values of the same key in other rows
    for path, value in leaves(data):
        siblings.setdefault(_column(name, path), []).append(value)
    for path, value in leaves(data, width=width):
        candidates = list(others(value))[:2]
        candidates += [v for v in siblings.get(_column(name, path), []) if v != value][:1]
        yield _name(name, path), [Change(_name(name, path), _rewritten(name, path, c)) for c in candidates]


def _column(name: str, path: JsonPath) -> tuple[Any, ...]:
    """The path without the numbers of rows; a CSV field keeps that of its column."""
    return path[1:] if name.endswith(".csv") else tuple(key for key in path if not isinstance(key, int))


def removals(root: Path, name: str) -> Iterator[tuple[str, list[Change]]]:
    """(key, change) of leaving out every key at the top of a JSON file, and the file as a whole."""

    def without(key: str) -> Callable[[Path], Config]:
        def apply(root: Path) -> Config:
            data = {k: v for k, v in _read(root / name).items() if k != key}
            _write(root / name, data)
            return from_dict(config_of(root))

        return apply

    def gone(root: Path) -> Config:
        (root / name).unlink()
        return from_dict(config_of(root))

    for key in _read(root / name):
        yield f"{name} without {key}", [Change(f"{name} without {key}", without(key))]
    yield f"no {name}", [Change(f"no {name}", gone)]


def _rewritten(name: str, path: JsonPath, value: Any) -> Callable[[Path], Config]:
    def apply(root: Path) -> Config:
        _write(root / name, replaced(_read(root / name), path, value))
        return from_dict(config_of(root))

    return apply


def _read(file: Path) -> Any:
    text = file.read_text()
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.reader(io.StringIO(text))) if file.suffix == ".csv" else json.loads(text)


def _write(file: Path, data: Any) -> None:
    file.unlink()  # the copy of a world has hard links
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in data))
    elif file.suffix == ".csv":
        text = io.StringIO()
        csv.writer(text).writerows(data)
        file.write_text(text.getvalue())
    else:
        file.write_text(json.dumps(data))


def _name(where: str, path: JsonPath) -> str:
    return f"{where}: {'.'.join(map(str, path))}"


def linked_copy(source: Path, target: Path) -> None:
    """A copy of a world's folder. Inputs are hard links, which a change replaces by a new file; a run is copied."""
    shutil.copytree(source, target, copy_function=os.link, ignore=shutil.ignore_patterns("results"))
    shutil.copytree(source / "results", target / "results")
