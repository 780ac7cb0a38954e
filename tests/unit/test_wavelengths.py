"""The wavelengths of a run's context settings: what is recorded, the table behind the picture, figure and report."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import from_dict
from harness.figures.files import save_figures
from harness.figures.wavelengths import described
from harness.report.page import report
from harness.run import runner
from harness.run.plan import build
from harness.run.progress import Progress
from harness.store import Store
from harness.tables.arms import by_arm
from harness.tables.wavelengths import caption, wavelengths
from tests.support.fake_engine import FakeEngine, InlineProducer

CONTEXTS = [
    {"label": "native", "max_length": 1024},
    {"label": "YaRN", "yarn": {"factor": 4, "original_max_position_embeddings": 512}, "max_length": 1024},
    {"label": "NTK", "ntk": 4},
    {"label": "L3", "llama3": {"factor": 8, "original_max_position_embeddings": 512}, "max_length": 1024},
]


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "r"
    facts: dict[str, Any] = {
        "name": "r",
        "results": str(path.parent),
        "models": [{"label": arm, "path": str(tiny / arm)} for arm in ("baseline", "headwise")],
        "contexts": CONTEXTS,
        "benchmarks": [{"ruler": ["fwe"], "lengths": [1024], "samples": 1}],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Prefetcher", InlineProducer)
        patch.setattr(os, "fsync", lambda descriptor: None)
        plan = build(from_dict(facts))
        runner.run(plan, path, progress=Progress(plan, quiet=True), engine_factory=FakeEngine)
    return path


def test_what_a_run_records_is_the_table_behind_the_picture(run: Path) -> None:
    store = Store.read(run)
    config = json.loads((Path(store.manifest["config"]["models"][0]["path"]) / "config.json").read_text())
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    dim = config["head_dim"]
    [one] = wavelengths(store)
    assert one.models == ["baseline", "headwise"], "models with equal encodings share a panel"
    assert list(one.curves) == ["native", "YaRN", "NTK", "L3"]
    native = 2 * math.pi * theta ** (np.arange(0, dim, 2) / dim)
    np.testing.assert_allclose(one.curves["native"], native, rtol=1e-6)
    assert one.curves["NTK"][-1] == pytest.approx(4 * native[-1]), "the slowest pair is slower by the factor"
    assert one.curves["NTK"][0] == pytest.approx(native[0])
    assert one.curves["L3"][-1] == pytest.approx(8 * native[-1])
    assert one.factors["YaRN"] == pytest.approx(0.1 * math.log(4) + 1)
    assert 512 in one.trained
    text = " ".join(caption([one]))
    assert f"native {sum(native > 512)} of {dim // 2}" in text
    assert "YaRN" in described(one)
    assert "factor on cos and sin 1.1386" in text


def test_the_picture_is_in_the_figures_and_in_the_report(run: Path, tmp_path: Path) -> None:
    files = save_figures(run, tmp_path, ("svg",))
    [svg] = [file for file in files if file.name == "wavelengths.svg"]
    drawn = svg.read_text()
    for word in ("native", "YaRN", "NTK", "L3", "trained 512", "wavelength, tokens"):
        assert word in drawn
    page = report(Store.read(run))
    assert "Wavelengths of the context settings" in page
    assert "rotated pair of dimensions" in page


def test_a_run_without_recorded_encodings_has_no_picture(run: Path) -> None:
    store = Store.read(run)
    for facts in store.manifest["models"].values():
        facts.pop("rotary")
    assert wavelengths(store) == []
    assert "Wavelengths of the context settings" not in report(store)


def test_checkpoints_of_one_arm_may_have_been_trained_at_different_lengths(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "arms"
    shutil.copytree(run, path)
    manifest = json.loads((path / "run.json").read_text())
    for entry in manifest["config"]["models"]:
        entry["arm"] = "both"
    for own in manifest["models"]["headwise"]["rotary"].values():
        own["trained"] = 256
    (path / "run.json").write_text(json.dumps(manifest))
    store = by_arm(Store.read(path))
    assert [(one.models, one.trained) for one in wavelengths(store)] == [
        (["baseline"], [512, 2048]),
        (["headwise"], [256]),
    ]
    assert "Wavelengths of the context settings" in report(Store.read(path))
