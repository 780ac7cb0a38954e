"""`cluster:` in a config and `--cluster`: what they mean, what they refuse, and that nothing else depends on them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cluster.joining import check_address
from harness.cluster.worker import EngineWorker
from harness.commands.main import cli
from harness.commands.options import with_cluster
from harness.config import from_dict, load, to_dict
from harness.cost.known import Records
from harness.run.costs import Costs
from harness.run.plan_cluster import render_cluster
from harness.store import manifest as manifests
from harness.types import GatedevalError
from tests.support import ROOT
from tests.support.cluster_runs import plan

DEMO = ROOT / "configs/demo.yaml"


def test_the_option_replaces_the_address_and_keeps_the_other_keys(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("name: c\nmodels: [{label: a, path: org/a}]\nbenchmarks: [gsm8k]\ncluster: {engines: 3}\n")
    assert load(file).cluster.address == "local"  # type: ignore[union-attr]
    moved = load(file, with_cluster([], "head:6379")).cluster
    assert moved is not None
    assert (moved.address, moved.engines) == ("head:6379", 3)
    assert load(file, with_cluster([], "none")).cluster is None
    assert load(DEMO, with_cluster([], "auto")).cluster.address == "auto"  # type: ignore[union-attr]
    assert load(DEMO, with_cluster([], None)).cluster is None


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("{engines: 0}", "engines"),
        ("{gpus: -1}", "gpus"),
        ("{cpus: two}", "cpus"),
        ("{addres: local}", "did you mean 'address'"),
        ("{address: a b}", "address"),
        ("[local]", "cluster"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_line(entry: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"name: c\nmodels: [{{label: a, path: org/a}}]\nbenchmarks: [gsm8k]\ncluster: {entry}\n")
    with pytest.raises(GatedevalError, match=rf"c\.yaml:4: .*{what}"):
        load(file)


def test_a_run_s_inputs_do_not_depend_on_the_cluster() -> None:
    plain = load(DEMO)
    clustered = load(DEMO, with_cluster([], "local"))
    assert "cluster" not in to_dict(plain)
    assert from_dict(to_dict(clustered)).cluster == clustered.cluster
    inputs = [manifests._inputs({"config": to_dict(config)}) for config in (plain, clustered)]
    assert inputs[0] == inputs[1]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GatedevalError, match=r"pip install 'gatedeval\[ray\]'"):
        check_address("local")
    done = CliRunner().invoke(cli, ["run", str(DEMO), "--cluster", "local", "-o", "never"])
    assert done.exit_code == 2
    assert not Path("never").exists()


def test_only_a_cluster_imports_ray() -> None:
    modules = "harness.commands.evaluate, harness.run.runner, harness.cluster.pool, harness.cluster.on_ray"
    code = f"import sys, {modules}; sys.exit('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0


def test_a_plan_shows_how_the_work_is_spread(tiny: Path) -> None:
    made = plan(tiny)
    costs = Costs(made, Records(tiny / "nothing"))
    config = load(DEMO, [("cluster.engines", 6)])
    text = render_cluster(costs, config.cluster)  # type: ignore[arg-type]
    head, _, _, *rows = text.splitlines()
    assert head.startswith("cluster local: 6 engines")
    assert head.endswith("; 2 models at once")  # of equal work
    requests = [sum(n for cell, n in made.cells.items() if cell.model == label) for label in made.models]
    assert [[*row.split()[:2], *row.split()[3:5]] for row in rows] == [
        [label, "3", str(n), str(n // 3)] for label, n in zip(made.models, requests, strict=True)
    ]
    assert sum(int(row.split()[5].rstrip("%")) for row in rows) in (99, 100, 101)
    few = load(DEMO, [("cluster.engines", 1)]).cluster
    assert few is not None
    assert "1 model at once, the next one takes the engines" in render_cluster(costs, few)
    elsewhere = load(DEMO, [("cluster.address", "head:6379")]).cluster
    assert elsewhere is not None
    assert "as many engines of 1 GPU as it has room for" in render_cluster(costs, elsewhere)


@pytest.mark.extended
def test_the_plan_command_takes_the_option() -> None:
    done = CliRunner().invoke(cli, ["plan", str(DEMO), "--cluster", "local", "-s", "cluster.engines=2"])
    assert done.exit_code == 0, done.output
    assert "2 engines" in done.output


def test_a_node_says_what_it_lacks(tiny: Path, tmp_path: Path) -> None:
    worker = EngineWorker()
    there = {"label": "a", "path": str(tiny / "baseline")}
    [refusal] = worker.check([{**there, "fingerprint": "another"}])
    assert "has other files there than on the driver's machine" in refusal
    [refusal] = worker.check([{"label": "b", "path": str(tmp_path / "nothing"), "fingerprint": "f"}])
    assert "model 'b'" in refusal
    assert "does not exist" in refusal
