"""Whether what a run directory holds is valid by our JSON Schemas, as a validator of another project says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from harness.export import export_run
from harness.formats import schema
from harness.store import Store


def validator(name: str) -> Any:
    """jsonschema's validator for one of our schemas."""
    return jsonschema.Draft202012Validator(schema(name))


def assert_valid(run: Path) -> None:
    """run.json, every sample and every JSON table of the run."""
    validator("run").validate(json.loads((run / "run.json").read_text()))
    samples, lines = validator("sample"), 0
    for file in (run / "samples").iterdir():
        for line in file.read_text().splitlines():
            samples.validate(json.loads(line))
            lines += 1
    assert lines
    for style in ("table5", "tasks", "delta"):
        if style != "delta" or len(models_of(run)) > 1:
            validator("table").validate(json.loads(export_run(run, style, "json")))


def models_of(run: Path) -> set[str]:
    return {cell.model for cell in Store.read(run).cells}
