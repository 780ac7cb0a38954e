"""The JSON Schema files: current, and valid for what runs and tables really hold."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.formats import NAMES, schema
from harness.formats.generate import generate
from harness.store import Store, import_predictions
from harness.types import Cell, GatedevalError
from tests.support import ROOT
from tests.support.formats import assert_valid, validator
from tests.support.sample_runs import config, sample, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("formats") / "run", config(lengths=(4096, 8192)), n=3)


def test_the_schema_files_are_current() -> None:
    """After a change of a config key or of `Sample`: python -m harness.formats."""
    made = generate()
    assert tuple(made) == NAMES
    for name, text in made.items():
        assert (ROOT / "harness/formats" / f"{name}.schema.json").read_text() == text, name


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_an_unknown_schema_is_one_error() -> None:
    with pytest.raises(GatedevalError, match="did you mean 'sample'"):
        schema("samples")


def test_a_run_and_its_tables_are_valid(run: Path) -> None:
    assert_valid(run)


def test_a_sample_without_a_score_is_valid(tmp_path: Path) -> None:
    cell = Cell("m", "c", "words", "words")
    with Store.open(tmp_path / "run", {"config": {}}, cells={cell: 1}) as store:
        store.append(cell, sample(0, {"acc": float("nan")}))
        store.finish()
    assert_valid(tmp_path / "run")


def test_an_imported_run_is_valid(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"task": "vt", "outputs": ["A", "B"], "pred": "A"}\n')
    assert_valid(import_predictions(tmp_path / "p.jsonl", tmp_path / "run", length=4096))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.pop("cells"), ""),
        (lambda d: d["cells"][0].update(planned="many"), "cells/0/planned"),
        (lambda d: d["config"]["contexts"][1]["yarn"].update(factor=0.5), "config/contexts/1/yarn"),
        (lambda d: d["config"]["benchmarks"][0].update(lengths=[]), "config/benchmarks/0"),
        (lambda d: d.update(state="done"), "state"),
    ],
)
def test_what_is_wrong_in_a_manifest_is_found(run: Path, change: Any, where: str) -> None:
    manifest = json.loads((run / "run.json").read_text())
    wrong = copy.deepcopy(manifest)
    change(wrong)
    errors = list(validator("run").iter_errors(wrong))
    assert any("/".join(map(str, e.absolute_path)).startswith(where) for e in errors)


@pytest.mark.parametrize("field", ["id", "hash", "scores", "references", "response", "finish_reason"])
def test_a_sample_without_a_field_is_invalid(run: Path, field: str) -> None:
    line = next((run / "samples").iterdir()).read_text().splitlines()[0]
    record = json.loads(line)
    assert validator("sample").is_valid(record)
    del record[field]
    assert not validator("sample").is_valid(record)
