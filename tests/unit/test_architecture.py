"""`make lint` sees an import in the wrong direction, and a cycle; the layers in pyproject.toml name every package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.support import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the project's modules and of pyproject.toml."""
    for package in SETTINGS["root_packages"]:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=lambda folder, names: _not_python(folder, names))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _not_python(folder: str, names: list[str]) -> list[str]:
    return [n for n in names if n == "__pycache__" or not (n.endswith(".py") or (Path(folder) / n).is_dir())]


def lint(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"], cwd=tree, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_the_project_keeps_its_contracts(tree: Path) -> None:
    code, output = lint(tree)
    assert code == 0, output


def test_an_upward_import_is_found(tree: Path) -> None:
    (tree / "harness/rope/upward.py").write_text("from harness.store import Store\n")
    code, output = lint(tree)
    assert code == 1
    assert "harness.rope is not allowed to import harness.store" in output


def test_an_upward_import_for_types_alone_is_found(tree: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from harness.run.plan import Plan\n"
    (tree / "harness/store/upward.py").write_text(text)
    code, output = lint(tree)
    assert code == 1
    assert "harness.store is not allowed to import harness.run" in output


def test_a_cycle_inside_a_package_is_found(tree: Path) -> None:
    (tree / "harness/tables/one.py").write_text("from harness.tables import two\n")
    (tree / "harness/tables/two.py").write_text("def later():\n    from harness.tables import one\n")
    code, output = lint(tree)
    assert code == 1
    assert "No cycles are allowed in harness.tables" in output


def test_torch_in_a_package_that_needs_no_model_is_found(tree: Path) -> None:
    (tree / "harness/rope/heavy.py").write_text("import torch\n")
    code, output = lint(tree)
    assert code == 1
    assert "harness.rope is not allowed to import torch" in output


def test_no_module_imports_itself_by_a_detour() -> None:
    """Finer than the contract: also a package's `__init__` and its own modules."""
    graph = grimp.build_graph(*SETTINGS["root_packages"], cache_dir=None)
    imports = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_every_package_has_its_layer() -> None:
    [contract] = [c for c in SETTINGS["contracts"] if c["type"] == "layers"]
    layers = {name.strip() for line in contract["layers"] for name in line.split("|")}
    children = {
        f"{package}.{path.stem}"
        for package in ("harness", "tasks")
        for path in (ROOT / package).iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or (path.suffix == ".py" and path.stem != "__init__")
    }
    assert children | {"gatedeval_app"} == layers


@pytest.mark.parametrize(
    "document", ["CONTRIBUTING.md", "README.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]
)
def test_files_that_the_documents_name_exist(document: str) -> None:
    named = re.findall(
        r"`((?:harness|tasks|tests|scripts|configs|docs|bench)/[\w./-]+)`", (ROOT / document).read_text()
    )
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []
