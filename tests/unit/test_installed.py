"""The wheel, installed: beside folders that have our names, in vLLM's own processes, and without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import gatedeval_app
from tests.support import ROOT
from tests.support.sample_runs import config, write_run

REGISTERED = """
import vllm.plugins
vllm.plugins.load_general_plugins()
import sys
from vllm import ModelRegistry
print("GatedQwen3ForCausalLM" in ModelRegistry.get_supported_archs(), sys.modules["harness"].__path__[0])
"""


def run(*command: str, cwd: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in `cwd` where the wheel in `site` is the installed gatedeval."""
    environment = {**os.environ, "PYTHONPATH": str(site), "VLLM_LOGGING_LEVEL": "ERROR"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy, so that no build folder is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("the wheel is built from what git tracks, and this is no git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith(("tests/", "docs/", "bench/")) or not (ROOT / name).is_file():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).symlink_to(ROOT / name)
    command = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as site-packages has it."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A working directory in which everything has our names, and fails when it is imported."""
    for name in ("harness", "tasks", "results"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package')\n")
    (tmp_path / "cli.py").write_text("raise RuntimeError('the wrong module')\n")
    return tmp_path


GATEDEVAL = (sys.executable, "-m", "gatedeval_app")


def test_it_puts_one_name_on_the_path(site: Path) -> None:
    names = {p.name for p in site.iterdir()}
    assert {n for n in names if not n.endswith(".dist-info")} == {"gatedeval_app"}


def test_it_has_what_is_read_at_run_time(site: Path) -> None:
    home = site / "gatedeval_app"
    for folder in ("configs", "results/reference", "harness", "tasks"):
        tracked = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
        absent = [n for n in tracked.stdout.split() if not (home / n).is_file() and (ROOT / n).is_file()]
        assert not absent


SCHEMAS = """
import gatedeval_app
gatedeval_app.activate()
from harness.formats import NAMES, schema
print(*(name for name in NAMES if schema(name)["properties"]))
"""


def test_it_has_the_schemas_of_its_files(crowded: Path, site: Path) -> None:
    done = run(sys.executable, "-c", SCHEMAS, cwd=crowded, site=site)
    assert done.stdout.split() == ["run", "sample", "table"], done.stderr


def test_it_offers_the_clients_of_other_tools_as_extras(site: Path) -> None:
    [info] = site.glob("*.dist-info")
    metadata = (info / "METADATA").read_text(encoding="utf-8").splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in metadata if line.startswith("Provides-Extra: ")}
    assert {"inspect", "mlflow", "wandb", "exchange"} <= extras
    for extra, package in (("inspect", "inspect-ai"), ("mlflow", "mlflow-skinny"), ("wandb", "wandb")):
        assert any(line.startswith(f"Requires-Dist: {package}") and f'"{extra}"' in line for line in metadata)
    plain = [line for line in metadata if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert not [line for line in plain if "inspect" in line or "mlflow" in line or "wandb" in line]


def test_it_exports_a_run_as_model_cards(crowded: Path, site: Path) -> None:
    ours = write_run(crowded / "run", config(lengths=(4096,)), n=2)
    done = run(*GATEDEVAL, "export", str(ours), "--to", "hub", cwd=crowded, site=site)
    assert [Path(line).parent.name for line in done.stdout.splitlines()] == ["baseline", "gated"], done.stderr


def test_commands_work_beside_folders_of_our_names(crowded: Path, site: Path) -> None:
    assert run(*GATEDEVAL, "--version", cwd=crowded, site=site).stdout.startswith("gatedeval, version")
    model = site / "gatedeval_app/tasks/demo/models/headwise/long"
    done = run(*GATEDEVAL, "check", str(model), cwd=crowded, site=site)
    assert "headwise" in done.stdout, done.stderr
    done = run(*GATEDEVAL, "plan", "configs/demo.yaml", cwd=crowded, site=site)
    assert "5958" in done.stdout.replace(",", ""), done.stderr


def test_vllm_registers_our_class_beside_folders_of_our_names(crowded: Path, site: Path) -> None:
    done = run(sys.executable, "-c", REGISTERED, cwd=crowded, site=site)
    assert done.stdout.split() == ["True", str(site / "gatedeval_app/harness")], done.stderr


def test_vllm_does_not_go_on_where_another_harness_is_imported(tmp_path: Path, site: Path) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness/__init__.py").touch()
    done = run(sys.executable, "-c", "import harness\n" + REGISTERED, cwd=tmp_path, site=site)
    assert done.returncode == 1
    assert "True" not in done.stdout
    for path in (tmp_path / "harness", site / "gatedeval_app/harness"):
        assert str(path) in done.stderr.splitlines()[-1]


PRODUCED = """
import gatedeval_app
gatedeval_app.activate()
from harness.config import load
from harness.run.plan import build
from harness.run.prefetching import Prefetcher
from harness.run.producing import Assignment
plan = build(load(gatedeval_app.HOME / "configs/demo.yaml"))
cell = next(iter(plan.cells))
with Prefetcher(plan) as prefetcher:
    events = list(prefetcher.events(Assignment(cell.model, cell.context, (cell,), "fingerprint", {})))
print(len(events), type(events[-1]).__name__)
"""


def test_the_producing_process_imports_our_harness(crowded: Path, site: Path) -> None:
    done = run(sys.executable, "-c", PRODUCED, cwd=crowded, site=site)
    assert done.stdout.split() == ["102", "CellFinished"], done.stderr  # CellStarted, 100 samples, CellFinished


def test_an_incomplete_installation_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gatedeval_app, "HOME", tmp_path)
    monkeypatch.delitem(sys.modules, "harness", raising=False)
    with pytest.raises(gatedeval_app.NotOurs, match="not completely installed"):
        gatedeval_app.activate()


def test_every_entry_point_is_a_function_of_gatedeval_app() -> None:
    points = distribution("gatedeval").entry_points
    assert {p.group for p in points} == {"console_scripts", "vllm.general_plugins", "vllm.platform_plugins"}
    for point in points:
        module, _, function = point.value.partition(":")
        assert module == "gatedeval_app"
        assert callable(getattr(gatedeval_app, function))


def test_the_watchdogs_variable_is_the_one_that_the_entry_point_reads() -> None:
    from harness.gated.watchdog import ENGINE_OF

    assert gatedeval_app._ENGINE_OF == ENGINE_OF


@pytest.mark.slow
def test_vllms_registry_process_imports_our_class(crowded: Path, site: Path) -> None:
    """vLLM inspects a model class in `python -m vllm...`, which has the working directory first on its path."""
    script = site / "inspect_class.py"
    script.write_text(
        "if __name__ == '__main__':\n    import vllm.plugins\n    vllm.plugins.load_general_plugins()\n"
        "    from vllm import ModelRegistry\n"
        "    print(ModelRegistry.models['GatedQwen3ForCausalLM'].inspect_model_cls().architecture)\n"
    )
    try:
        done = run(sys.executable, str(script), cwd=crowded, site=site)
    finally:
        script.unlink()
    assert done.stdout.split() == ["GatedQwen3ForCausalLM"], done.stderr
