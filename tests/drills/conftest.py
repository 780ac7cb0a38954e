"""Fixtures of the drills with several engines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.run import runner
from tests.support.fake_engine import InlineProducer


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are produced in the tests' own process."""
    monkeypatch.setattr(runner, "Prefetcher", InlineProducer)


@pytest.fixture
def models(tiny: Path, tmp_path: Path) -> Path:
    """Folder of the tiny checkpoints `baseline` and `headwise`, beside which a test may put files."""
    for name in ("baseline", "headwise"):
        shutil.copytree(tiny / name, tmp_path / "models" / name)
    return tmp_path / "models"
