"""The schema files from the types: pydantic models where there are some, the dataclass `Sample` for samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from harness.config.discovery import benchmark_types
from harness.config.vocabulary import BenchmarkEntry, Config
from harness.formats import NAMES
from harness.formats.documents import Run, TableDocument
from harness.types import Sample

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SAMPLE = {
    "id": "Unique in the cell.",
    "hash": "Of everything that can change the answer.",
    "prompt_tokens": "As sent, special tokens included; 0 where it is not known.",
    "references": "The right answers; of a choice, the option's number.",
    "response": "The answer's text; of a choice, the option's number.",
    "response_tokens": "Tokens of the answer; 0 for a choice.",
    "finish_reason": "stop, length (its token budget cut it), choose (options were compared) or scored (a text's"
    " log-likelihood).",
    "scores": "Metric -> 0..1 (perplexities: their own scale); null where there is no score. The first one is shown.",
    "seconds": "From admission to the finished answer.",
    "extra": "`prompt_hash` (the same for every model that had this prompt), needle positions, log-likelihoods, ...",
    "arithmetic": "What computed the answer: a key of `arithmetic` in run.json; empty where it is not recorded.",
}


def generate() -> dict[str, str]:
    """Name -> text of its schema file."""
    made = {"run": _run(), "sample": _sample(), "table": TableDocument.model_json_schema()}
    assert tuple(made) == NAMES
    return {
        name: json.dumps({"$schema": DRAFT, **_open(content)}, indent=1, ensure_ascii=False) + "\n"
        for name, content in made.items()
    }


def write(folder: Path) -> list[Path]:
    """Write the schema files into `folder`."""
    files = []
    for name, text in generate().items():
        file = folder / f"{name}.schema.json"
        file.write_text(text, encoding="utf-8")
        files.append(file)
    return files


def _run() -> dict[str, Any]:
    """run.json with the config's own definitions; the benchmarks are those that are installed."""
    schema = Run.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    config = _with_definitions(Config, definitions)
    entries = []
    for key, entry in benchmark_types().items():
        definitions[entry.__name__] = _with_definitions(entry, definitions)
        entries.append(_entry(key, entry))
    definitions.pop("BenchmarkEntry", None)
    config["properties"]["benchmarks"] = {"type": "array", "items": {"anyOf": entries}}
    config["required"] = []  # a merged or imported run has models, contexts and benchmarks alone
    definitions["Config"] = config
    schema["properties"]["config"] = {"$ref": "#/$defs/Config"}
    return schema


def _with_definitions(model: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """The model's schema; what it refers to goes into `definitions`."""
    schema = model.model_json_schema()
    definitions |= schema.pop("$defs", {})
    return schema


def _entry(key: str, entry: type[BenchmarkEntry]) -> dict[str, Any]:
    """How a config writes the entry: its keys in one mapping, or below its name."""
    reference = {"$ref": f"#/$defs/{entry.__name__}"}
    if entry.flat():
        return {"allOf": [reference, {"type": "object", "required": [key]}]}
    return {"type": "object", "properties": {key: reference}, "required": [key]}


def _sample() -> dict[str, Any]:
    schema = TypeAdapter(Sample).json_schema()
    properties = schema["properties"]
    for name, description in _SAMPLE.items():
        if name in properties:
            properties[name]["description"] = description
    properties["finish_reason"]["enum"] = ["stop", "length", "choose", "scored"]
    properties["scores"]["additionalProperties"] = {"type": ["number", "null"]}  # JSON has no NaN
    return schema


def _open(schema: Any) -> Any:
    """The schema without the ban on other keys: a file that a later version wrote must stay valid.

    Behind a validator of our own, pydantic writes the least number of items as `minLength`, which is of strings.
    """
    if isinstance(schema, dict):
        opened = {k: _open(v) for k, v in schema.items() if (k, v) != ("additionalProperties", False)}
        if opened.get("type") == "array" and "minLength" in opened:
            opened["minItems"] = opened.pop("minLength")
        return opened
    return [_open(item) for item in schema] if isinstance(schema, list) else schema
