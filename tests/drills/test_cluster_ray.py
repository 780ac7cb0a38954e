"""A run on a real Ray cluster of two nodes on this machine, with engines that need no vLLM.

`test_cluster_slow.py` has the same with vLLM. Processes are killed with SIGKILL, a node is removed, one is added.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cluster.connection import Cluster
from harness.cluster.joining import check_address
from harness.cluster.on_ray import RayBackend
from harness.config import EngineOptions
from harness.config.cluster import ClusterOptions
from harness.run.plan import Plan
from harness.run.progress import Progress
from harness.run.runner import run
from harness.store import Store
from harness.types import GatedevalError
from tests.drills.test_interruption import left_behind
from tests.support import ROOT
from tests.support.cluster_runs import ENGINE, content, lines, models_of, plan, run_here, run_on
from tests.support.signals import receive_signals

pytestmark = pytest.mark.extended


def needs_ray() -> None:
    """Skip where Ray is not installed; fail there in CI, which installs it."""
    if os.environ.get("GATEDEVAL_REQUIRE_EXTRAS") == "1":
        __import__("ray")
    pytest.importorskip("ray")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two Ray nodes of one core each on this machine."""
    needs_ray()
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"  # the nodes' processes read it
    from ray.cluster_utils import Cluster as Nodes

    made = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 150 * 2**20})
    made.add_node(num_cpus=1, object_store_memory=150 * 2**20)
    yield made
    made.shutdown()


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


class Watched(Progress):
    """Calls `then` in the run's own thread, at numbers of finished samples."""

    def __init__(self, made: Plan, then: dict[int, Callable[[], Any]]) -> None:
        super().__init__(made, quiet=True)
        self.then, self.finished = then, 0

    def advance(self, *arguments: Any, **more: Any) -> None:
        super().advance(*arguments, **more)
        self.finished += 1
        if action := self.then.pop(self.finished, None):
            action()


def killed_and_equal(address: str, models: Path, path: Path, kills: int, samples: int) -> None:
    """A run of which `kills` worker processes are killed at random instants; it has what a run in one process has."""
    made = plan(models, samples=samples, models=1 if kills < 5 else 2)
    (models / "pace").write_text("0.02")
    chance, killed = random.Random(16), []

    def kill() -> None:
        killed.append(chance.choice(workers()))
        os.kill(killed[-1], signal.SIGKILL)

    instants = chance.sample(range(2, sum(made.cells.values()) - 4), kills)
    said: list[str] = []
    with Cluster(lambda: backend(address), models_of(made), say=said.append) as cluster:
        progress = Watched(made, dict.fromkeys(instants, kill))
        state, tally = run(made, path / "there", progress=progress, cluster=cluster)
        assert sum("died" in line for line in said) >= kills
    assert len(killed) == kills
    assert gone()
    assert state == "complete"
    assert len(lines(path / "there")) == tally.answered == len(set(lines(path / "there")))
    (models / "pace").unlink()
    run_here(made, path / "here")
    assert content(path / "there") == content(path / "here")


def test_two_nodes_give_the_run_of_one_process_though_processes_are_killed(
    nodes: Any, models: Path, tmp_path: Path
) -> None:
    killed_and_equal(nodes.address, models, tmp_path, kills=2, samples=12)


@pytest.mark.slow
def test_five_kills_at_random_instants_cost_nothing_but_time(nodes: Any, models: Path, tmp_path: Path) -> None:
    killed_and_equal(nodes.address, models, tmp_path, kills=5, samples=40)


@pytest.mark.slow
def test_two_models_are_answered_at_once_by_two_nodes(nodes: Any, models: Path, tmp_path: Path) -> None:
    made = plan(models, samples=20)
    (models / "pace").write_text("0.05")
    given: list[dict[str, int]] = []
    with Cluster(lambda: backend(nodes.address, engines=2), models_of(made)) as cluster:
        note = {n: lambda: given.append({name: s.given for name, s in cluster.shares.items()}) for n in (1, 40)}
        state, _ = run(made, tmp_path / "there", progress=Watched(made, note), cluster=cluster)
    assert state == "complete"
    assert given == [{"baseline": 1, "headwise": 1}] * 2
    (models / "pace").unlink()
    run_here(made, tmp_path / "here")
    assert content(tmp_path / "there") == content(tmp_path / "here")
    assert gone()


@pytest.mark.slow
def test_a_node_goes_and_another_one_comes(
    nodes: Any, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(models, samples=60)
    (models / "pace").write_text("0.05")
    extra = nodes.add_node(num_cpus=1, object_store_memory=150 * 2**20)
    # A model's thread adds the other node; only the main thread could install Ray's signal handlers.
    monkeypatch.setattr(nodes, "_shutdown_at_exit", False)
    changes = {
        60: lambda: nodes.remove_node(extra, allow_graceful=False),
        90: lambda: nodes.add_node(num_cpus=1, object_store_memory=150 * 2**20),
    }
    with Cluster(lambda: backend(nodes.address), models_of(made)) as cluster:
        progress = Watched(made, changes)
        state, tally = run(made, tmp_path / "there", progress=progress, cluster=cluster)
        places = {member.info.get("node") for member in cluster.roster.everyone}
    assert not changes
    assert state == "complete"
    assert len(places) >= 2
    assert len(lines(tmp_path / "there")) == tally.answered
    (models / "pace").unlink()
    run_here(made, tmp_path / "here")
    assert content(tmp_path / "there") == content(tmp_path / "here")
    assert gone()


@pytest.mark.slow
def test_a_poisoned_sample_is_named_on_real_nodes(nodes: Any, models: Path, tmp_path: Path) -> None:
    made = plan(models, models=1)
    (models / "poison").write_text("ruler fwe at 512, sample 3")
    with Cluster(lambda: backend(nodes.address), models_of(made)) as cluster:
        state, _ = run_on(cluster, made, tmp_path / "there")
    assert state == "incomplete"
    assert set(Store.read(tmp_path / "there").failures) == {
        cell.key for cell in made.cells if cell.task == "fwe" and cell.length == 512
    }
    assert gone()


class Driver:
    """`tests/support/cluster_driver.py` in a session of its own."""

    def __init__(self, models: Path, path: Path, samples: int) -> None:
        self.path = path
        command = [sys.executable, "-m", "tests.support.cluster_driver", str(models), str(path), str(samples)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=receive_signals,
        )

    def wait_for_lines(self, count: int) -> None:
        while self.process.poll() is None and (not (self.path / "samples").exists() or len(lines(self.path)) < count):
            time.sleep(0.05)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err


def test_a_driver_that_is_killed_leaves_nothing_and_is_resumed(models: Path, tmp_path: Path) -> None:
    needs_ray()
    (models / "pace").write_text("0.02")
    driver = Driver(models, tmp_path / "run", 12)
    driver.wait_for_lines(10)
    driver.process.kill()
    assert driver.end()[0] == -signal.SIGKILL
    assert left_behind(driver.process.pid) == []
    (models / "pace").unlink()
    again = Driver(models, tmp_path / "run", 12)
    status, out, err = again.end()
    assert status == 0, err
    state, asked, reused = out.split()
    assert (state, int(reused) >= 9) == ("complete", True)
    assert int(asked) + int(reused) == sum(plan(models).cells.values())
    assert left_behind(again.process.pid) == []
    run_here(plan(models), tmp_path / "here")
    assert content(tmp_path / "run") == content(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_driver_in_order_and_leaves_nothing(models: Path, tmp_path: Path, signum: int) -> None:
    needs_ray()
    (models / "pace").write_text("0.02")
    driver = Driver(models, tmp_path / "run", 12)
    driver.wait_for_lines(10)
    os.killpg(driver.process.pid, signum)  # as a terminal's Ctrl-C, which reaches every process of the session's group
    status, out, err = driver.end()
    assert (status, out.split()[:2]) == (128 + signum, ["stopped", "by"]), err
    assert "Traceback" not in err
    assert left_behind(driver.process.pid) == []


class Talks(socketserver.BaseRequestHandler):
    """A server of another kind."""

    def handle(self) -> None:
        self.request.recv(100)
        self.request.sendall(b"HTTP/1.0 400 Bad request\r\n\r\n")


def test_what_the_cluster_does_not_have_is_refused_in_a_line(nodes: Any, models: Path) -> None:
    for options, what in (
        ({"engines": 9}, r"9 engines with 1 core each: not possible, the cluster \(\d nodes\) has \d cores"),
        ({"gpus": 1}, r"1 engine with 1 GPU each: not possible, the cluster \(\d nodes\) has 0 GPUs"),
        ({"gpus": 3}, r"cluster\.gpus: 3 GPUs per engine.*takes 1"),
    ):
        with pytest.raises(GatedevalError, match=what):
            backend(nodes.address, **options)
    with pytest.raises(GatedevalError, match=r"no Ray cluster answers there.*ray status"):
        backend("127.0.0.1:9")
    with socketserver.TCPServer(("127.0.0.1", 0), Talks) as other:
        threading.Thread(target=other.handle_request).start()
        with pytest.raises(GatedevalError, match="what listens there is no Ray"):
            backend(f"127.0.0.1:{other.server_address[1]}")
    import ray

    assert not ray.is_initialized()


@pytest.mark.parametrize("address", ["nowhere", "ray://host:10001", "host:port", "host:99999", ":1"])
def test_an_address_that_is_none_is_refused_without_ray(address: str) -> None:
    with pytest.raises(GatedevalError, match=r"HOST:PORT"):
        check_address(address)
