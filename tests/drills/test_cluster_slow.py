"""configs/demo.yaml with real engines on a Ray cluster of two nodes on this machine.

The whole demo once; where processes are killed, a part of it. A quarter of an hour on two cores.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from harness.store import Store
from harness.store.probes import Probes
from tests.drills.test_interruption import Session, left_behind
from tests.support import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]
CONFIG = ROOT / "configs/demo.yaml"
ENVIRONMENT = {"RAY_worker_niceness": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two Ray nodes of one core each."""
    pytest.importorskip("ray")
    os.environ.update(ENVIRONMENT)
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 200 * 2**20})
    made.add_node(num_cpus=1, object_store_memory=200 * 2**20)
    yield made
    made.shutdown()


@pytest.fixture
def address(nodes: Any) -> str:
    """Of the cluster."""
    return nodes.address


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, answered by one engine."""
    path = tmp_path_factory.mktemp("here") / "demo"
    gatedeval(path)
    return path


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config with a part of the demo: two of its models, half of the samples, no probes."""
    facts = yaml.safe_load(CONFIG.read_text())
    facts["models"] = [model for model in facts["models"] if model["label"] in ("baseline", "headwise")]
    for model in facts["models"]:
        model["path"] = str(CONFIG.parent / model["path"])
    facts["contexts"] = [setting for setting in facts["contexts"] if setting["label"] != "base 10K"]
    facts["benchmarks"] = [entry for entry in facts["benchmarks"] if entry.get("lengths") != [256]]
    for entry in facts["benchmarks"]:
        entry["samples"] = -(-entry["samples"] // 2)
    facts["data"] = str(CONFIG.parent / facts["data"])
    del facts["probe"]
    file = tmp_path_factory.mktemp("part") / "part.yaml"
    file.write_text(yaml.safe_dump(facts))
    return file


@pytest.fixture(scope="module")
def part_here(part: Path) -> Path:
    """The part, answered by one engine."""
    gatedeval(part.parent / "here", config=part)
    return part.parent / "here"


def gatedeval(path: Path, *arguments: str, config: Path = CONFIG) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "cli.py"), "run", str(config), "-o", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **ENVIRONMENT})


def on(address: str) -> list[str]:
    return ["--cluster", address, "-s", "cluster.engines=2", "-s", "cluster.cpus=1"]


def samples(path: Path) -> dict[str, dict[str, Any]]:
    """Every stored line by cell and id, without what two runs on one engine differ in: times, and tokens cached."""
    found: dict[str, dict[str, Any]] = {}
    for file in (path / "samples").glob("*.jsonl"):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            record.pop("seconds")
            record["extra"].pop("cached_tokens", None)
            assert f"{file.stem} {record['id']}" not in found, "a sample was stored twice"
            found[f"{file.stem} {record['id']}"] = record
    return found


def probes(path: Path) -> dict[str, dict[str, float]]:
    """What the probes measured, by hash."""
    records = Probes(path).records()
    assert records
    return {r["hash"]: {name: v for name, v in r.items() if isinstance(v, float)} for r in records}


def assert_equal(path: Path, here: Path) -> None:
    assert samples(path) == samples(here)
    assert (path / "cells.csv").read_bytes() == (here / "cells.csv").read_bytes()


def test_the_demo_on_a_cluster_is_the_demo(address: str, here: Path, tmp_path: Path) -> None:
    done = gatedeval(tmp_path / "demo", *on(address))
    assert done.stdout == gatedeval(here).stdout  # the table, byte for byte
    assert_equal(tmp_path / "demo", here)
    measured = probes(tmp_path / "demo")
    assert measured.keys() == probes(here).keys()
    for hash, numbers in probes(here).items():  # another number of cores sums in another order
        assert measured[hash] == pytest.approx(numbers, rel=1e-3, abs=1e-4)
    engines = [e for s in Store.read(tmp_path / "demo").manifest["sessions"] for m in s["engines"].values() for e in m]
    assert {engine["name"] for engine in engines} == {"engine 1", "engine 2"}


def test_begun_here_and_finished_there(address: str, part: Path, part_here: Path, tmp_path: Path) -> None:
    path = tmp_path / "demo"
    session = Session(tmp_path, str(part), run=path)
    assert session.wait_for(lambda: session.lines() > 300)
    session.process.send_signal(signal.SIGTERM)
    assert session.end() == 143
    assert left_behind(session.process.pid) == []
    gatedeval(path, *on(address), config=part)
    assert_equal(path, part_here)


def test_killed_engines_and_a_killed_driver(address: str, part: Path, part_here: Path, tmp_path: Path) -> None:
    path, chance = tmp_path / "demo", random.Random(16)
    for round in range(2):
        session = Session(tmp_path, str(part), *on(address), run=path)
        for _ in range(3 - round):
            assert session.wait_for(functools.partial(more_lines, session, session.lines() + 50))
            time.sleep(chance.uniform(0, 5))
            ours = psutil.Process().children(recursive=True)  # not those of another test's nodes
            if victims := [p.pid for p in ours if "ray::RemoteEngine" in " ".join(_command(p))]:
                os.kill(chance.choice(victims), signal.SIGKILL)
        if round == 0:
            session.process.kill()
            session.end()
            assert left_behind(session.process.pid) == []
        else:
            assert session.end(3600) == 0, session.stderr
    assert_equal(path, part_here)
    assert "died" in session.stderr


def test_a_node_that_goes_and_one_that_comes(
    nodes: Any, address: str, part: Path, part_here: Path, tmp_path: Path
) -> None:
    """The node is lost with its engine at work; another node's engine takes its place."""
    session = Session(tmp_path, str(part), *on(address), run=tmp_path / "demo")
    assert session.wait_for(functools.partial(more_lines, session, 50))
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    assert session.wait_for(functools.partial(more_lines, session, session.lines() + 50))
    nodes.add_node(num_cpus=1, object_store_memory=200 * 2**20)
    assert session.end(3600) == 0, session.stderr
    assert_equal(tmp_path / "demo", part_here)
    assert "died" in session.stderr
    used = [e for s in Store.read(tmp_path / "demo").manifest["sessions"] for m in s["engines"].values() for e in m]
    assert any(engine.get("died") for engine in used)


def more_lines(session: Session, count: int) -> bool:
    return session.lines() > count


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
