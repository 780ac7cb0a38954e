"""Checkpoints with damaged weights, through vLLM: the run fails, or the table says what their answers are like."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from harness.store import Store
from harness.tables import table5
from tests.support.engines import altered
from tests.support.in_process import gatedeval

pytestmark = pytest.mark.engine

CONFIG = """
name: broken
models: [{label: broken, path: broken}]
contexts: [{label: native, max_length: 512}]
benchmarks:
  - {ruler: [niah_single_1], lengths: [512], samples: 8}
engine: {enforce_eager: true, dtype: float32}
"""


def with_output_projections(value: float) -> Any:
    def change(tensors: dict[str, Any]) -> dict[str, Any]:
        return {k: t.fill_(value) if k.endswith("o_proj.weight") else t for k, t in tensors.items()}

    return change


@pytest.mark.parametrize(
    ("value", "told"),
    [(math.nan, "Empty answers"), (0.0, "The same answer to at least 90% of samples")],
    ids=["NaN", "zero"],
)
def test_a_broken_output_projection_is_no_silent_score(tiny: Path, tmp_path: Path, value: float, told: str) -> None:
    """A zero for a complete run would look like a weak model. (The start-up check may refuse the model before.)"""
    altered(tiny / "baseline", tmp_path / "broken", tensors=with_output_projections(value))
    (tmp_path / "broken.yaml").write_text(CONFIG)
    done = gatedeval("run", "broken.yaml", cwd=tmp_path)
    store = Store.read(tmp_path / "results/broken")
    if done.returncode:
        assert store.failures, done.stderr[-2000:]
        assert table5(store).rows[0][2].value is None
    else:
        assert any(line.startswith(told) and "niah_single_1" in line for line in table5(store).caption), done.stdout
