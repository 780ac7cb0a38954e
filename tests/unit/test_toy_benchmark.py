"""A new benchmark is one new file in harness/benchmarks: config, plan, run, table and report take it from there.

The test copies the package, adds the file, and works in a process of its own. An engine that answers without vLLM
stands in for the real one (`engine_factory`); the producer's process makes the samples, as in every run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from harness.models.tiny import make_tiny
from tests.support import ROOT

TOY = '''
"""Sums of two digits: a benchmark in one file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from harness.benchmarks.protocol import Benchmark, Setup
from harness.config.fields import Positive
from harness.data.folder import DataFolder
from harness.engine.requests import Answer, SampleRequest
from harness.types import Cell


class Sums(Benchmark):
    """`{sums: {samples: 4}}`: 1+1, 2+1, ... as prompts; scored 1 where the answer begins with the sum."""

    KEY: ClassVar[str] = "sums"

    samples: Positive = 4

    def count(self, task: str, data: DataFolder) -> int:
        return self.samples

    def requests(self, cell: Cell, setup: Setup, max_length: int) -> Iterator[SampleRequest]:
        for number in range(1, self.samples + 1):
            yield SampleRequest(
                id=str(number), label=f"sums, sample {number}", prompt=f"{number}+1=", max_tokens=4,
                references=[str(number + 1)], score=BeginsWith(str(number + 1)),
            )


@dataclass(frozen=True)
class BeginsWith:
    sum: str

    def __call__(self, answer: Answer, text: str) -> dict[str, float]:
        return {"score": float(text.startswith(self.sum))}
'''

SCRIPT = """
import json, sys
from pathlib import Path
from harness.config import load, to_dict
from harness.engine.requests import Completion
from harness.run.plan import build
from harness.run.plan_text import render
from harness.run.runner import run
import harness

class Calculator:
    def __init__(self, model, settings, options):
        self.facts, self.setting = {}, settings[0]
    def can_switch_to(self, setting):
        return True

    def set_context(self, setting):
        self.setting = setting
    def answer(self, requests):
        for request in requests:
            if request is not None:  # every answer is 3: right for one sample
                yield Completion(request.key, "3", 1, "stop", 0.1, (), len(request.ids), 0)
    def close(self):
        pass

config = load("toy.yaml")
plan = build(config)
plan.check()
state, tally = run(plan, Path("run"), engine_factory=Calculator)
again, second = run(plan, Path("run"), engine_factory=Calculator)

from harness.report import report
from harness.store import Store
from harness.tables import table5
from harness.export import render as as_text
store = Store.read(Path("run"))
scores = {cell.task: list(map(float, store.scores(cell).scores)) for cell in store.cells}
made = {
    "package": harness.__file__, "config": to_dict(config)["benchmarks"], "plan": render(plan),
    "state": [state, again], "asked": [tally.asked, second.asked], "scores": scores,
    "table": as_text(table5(store), "md"), "report": report(store),
}
Path("made.json").write_text(json.dumps(made))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of the toy benchmark at every step."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copytree(ROOT / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tasks").symlink_to(ROOT / "tasks")
    (folder / "harness/benchmarks/sums.py").write_text(TOY)
    make_tiny(folder / "tiny")
    (folder / "toy.yaml").write_text(
        f"name: toy\nmodels: [{{label: m, path: {folder / 'tiny/baseline'}}}]\n"
        "contexts: [{label: native, max_length: 64}]\nbenchmarks: [{sums: {samples: 3}}]\n"
    )
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((folder / "made.json").read_text())
    assert result["package"] == str(folder / "harness/__init__.py")
    return result


def test_its_keys_are_config_keys_and_its_cells_are_planned(made: dict[str, Any]) -> None:
    assert made["config"] == [{"sums": {"samples": 3}}]
    [row] = [line.split() for line in made["plan"].splitlines() if " sums " in line]
    assert row[:4] == ["m", "native", "sums", "1"]


def test_its_samples_are_answered_once_and_scored(made: dict[str, Any]) -> None:
    assert made["state"] == ["complete", "complete"]
    assert made["asked"] == [3, 0]
    assert made["scores"] == {"sums": [0.0, 1.0, 0.0]}


def test_it_is_in_the_table_and_in_the_report(made: dict[str, Any]) -> None:
    assert "sums" in made["table"]
    assert "33.3" in made["table"]
    assert "sums" in made["report"]
    assert "33.3" in made["report"]  # one answer of three is right
