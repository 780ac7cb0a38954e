"""Fixtures shared by all tests. tests/README.md lists them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny checkpoints `baseline`, `headwise` and `elementwise`, made once. No test may change it."""
    from harness.models.tiny import make_tiny

    root = tmp_path_factory.mktemp("tiny")
    make_tiny(root)
    return root


@pytest.fixture(scope="session", autouse=True)
def _no_engine_stays() -> Iterator[None]:
    """Close the engine that lives in the test process."""
    yield
    if (module := sys.modules.get("tests.support.in_process")) is not None:
        module.shared_engine.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with engine tests first: in a parallel run the longest must not be the last."""
    files = {item.path for item in items if item.get_closest_marker("engine")}
    items.sort(key=lambda item: item.path not in files)
