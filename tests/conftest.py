"""Fixtures shared by all tests: where the folder with oracles and benchmark data is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import ROOT


def shared_folder() -> Path | None:
    """The folder with `oracles/` and `data/`: GATEDEVAL_SHARED, else `shared` beside the repository; None if absent."""
    given = os.environ.get("GATEDEVAL_SHARED")
    folder = Path(given) if given else ROOT.parent / "shared"
    return folder.resolve() if (folder / "data").is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with oracles and benchmark data; tests that need it are skipped where it is absent."""
    folder = shared_folder()
    if folder is None and os.environ.get("GATEDEVAL_REQUIRE_SHARED") == "1":
        pytest.fail("GATEDEVAL_REQUIRE_SHARED=1, but there is no oracle and data folder: set GATEDEVAL_SHARED")
    if folder is None:
        pytest.skip("no oracle and data folder: set GATEDEVAL_SHARED, or put `shared` beside the repository")
    return folder
