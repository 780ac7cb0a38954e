"""A run on a real Ray cluster of two nodes on this machine, with engines that need no vLLM.

`test_cluster_slow.py` has the same with vLLM. Processes are killed with SIGKILL, a node is removed, one is added.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cluster.connection import Cluster
from harness.cluster.on_ray import RayBackend, check_address
from harness.config import EngineOptions
from harness.config.cluster import ClusterOptions
from harness.store import Store
from harness.types import GatedevalError
from tests.support import ROOT
from tests.support.cluster_runs import ENGINE, content, lines, models_of, plan, run_here, run_on

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two Ray nodes of one core each on this machine."""
    pytest.importorskip("ray")
    os.environ["RAY_worker_niceness"] = "0"
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"  # the nodes' processes read it
    from ray.cluster_utils import Cluster as Nodes

    made = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 150 * 2**20})
    made.add_node(num_cpus=1, object_store_memory=150 * 2**20)
    yield made
    made.shutdown()


@pytest.fixture
def models(tiny: Path, tmp_path: Path) -> Path:
    for name in ("baseline", "headwise"):
        shutil.copytree(tiny / name, tmp_path / "models" / name)
    return tmp_path / "models"


def backend(address: str, **options: Any) -> RayBackend:
    return RayBackend(ClusterOptions(address=address, cpus=1, **options), EngineOptions(), ENGINE)


def workers() -> list[int]:
    """The processes of Ray's actors on this machine."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and "ray::RemoteEngine" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def gone(timeout: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout
    while workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not workers()


def test_two_nodes_give_the_run_of_one_process_though_processes_are_killed(
    nodes: Any, models: Path, tmp_path: Path
) -> None:
    made = plan(models, samples=30)
    (models / "poison").write_text("ruler fwe at 512, sample 3")
    (models / "pace").write_text("0.03")
    over, killed = threading.Event(), []
    chance = random.Random(16)

    def kill() -> None:
        while len(killed) < 5 and not over.wait(chance.uniform(0.2, 1.5)):
            if alive := workers():
                killed.append(chance.choice(alive))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    said: list[str] = []
    with Cluster(lambda: backend(nodes.address), models_of(made), say=said.append) as cluster:
        killer.start()
        state, tally = run_on(cluster, made, tmp_path / "there")
        over.set()
        killer.join()
    assert len(killed) == 5
    assert gone()
    assert state == "incomplete"
    poisoned = {cell.key for cell in made.cells if cell.task == "fwe" and cell.length == 512}
    assert set(Store.read(tmp_path / "there").failures) == poisoned
    assert sum("died" in line for line in said) >= 5
    assert len(lines(tmp_path / "there")) == tally.answered == len(set(lines(tmp_path / "there")))
    for name in ("poison", "pace"):
        (models / name).unlink()
    run_here(made, tmp_path / "there")
    run_here(made, tmp_path / "here")
    assert content(tmp_path / "there") == content(tmp_path / "here")


def test_a_node_goes_and_another_one_comes(nodes: Any, models: Path, tmp_path: Path) -> None:
    made = plan(models, samples=40)
    (models / "pace").write_text("0.05")
    extra = nodes.add_node(num_cpus=1, object_store_memory=150 * 2**20)

    def change() -> None:
        path = tmp_path / "there" / "samples"
        while not path.exists() or len(lines(tmp_path / "there")) < 20:
            time.sleep(0.1)
        nodes.remove_node(extra, allow_graceful=False)
        time.sleep(1)
        nodes.add_node(num_cpus=1, object_store_memory=150 * 2**20)

    changing = threading.Thread(target=change)
    with Cluster(lambda: backend(nodes.address), models_of(made)) as cluster:
        changing.start()
        state, tally = run_on(cluster, made, tmp_path / "there")
        changing.join()
        nodes_used = {m.info.get("node") for m in cluster.members}
    assert state == "complete"
    assert len(nodes_used) >= 2
    assert len(lines(tmp_path / "there")) == tally.answered
    (models / "pace").unlink()
    run_here(made, tmp_path / "here")
    assert content(tmp_path / "there") == content(tmp_path / "here")
    assert gone()


def test_what_the_cluster_does_not_have_is_refused_in_a_line(nodes: Any, models: Path) -> None:
    for options, what in (
        ({"engines": 9}, r"9 engines of 1 core each were asked for, the cluster \(\d nodes\) has \d cores"),
        ({"gpus": 1}, r"1 engine of 1 GPU each were asked for, the cluster \(\d nodes\) has 0 GPUs"),
        ({"gpus": 3}, r"cluster\.gpus: 3 GPUs per engine.*takes 1"),
    ):
        with pytest.raises(GatedevalError, match=what):
            backend(nodes.address, **options)
    with pytest.raises(GatedevalError, match=r"no Ray cluster answers there.*ray status"):
        backend("127.0.0.1:9")
    import ray

    assert not ray.is_initialized()


@pytest.mark.parametrize("address", ["nowhere", "ray://host:10001", "host:port", "host:99999", ":1"])
def test_an_address_that_is_none_is_refused_without_ray(address: str) -> None:
    with pytest.raises(GatedevalError, match=r"HOST:PORT"):
        check_address(address)
