"""A run on a cluster is the same run: samples, hashes, table, resuming, failures. Processes are threads here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster.connection import Cluster
from harness.engine.requests import EngineError
from harness.report.facts import facts_of
from harness.store import Store
from tests.support.cluster_runs import ENGINE, content, lines, models_of, plan, run_here, run_on
from tests.support.thread_backend import ThreadBackend

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture
def backend() -> Iterator[ThreadBackend]:
    made = ThreadBackend(2, engine=ENGINE)
    yield made
    made.close()


def test_it_equals_the_run_in_one_process(models: Path, tmp_path: Path, backend: ThreadBackend) -> None:
    made = plan(models)
    run_here(made, tmp_path / "here")
    with Cluster(lambda: backend, models_of(made)) as cluster:
        state, tally = run_on(cluster, made, tmp_path / "there")
        assert len(backend.processes) == 2  # both models were answered by the same processes
    assert not backend.alive()
    assert state == "complete"
    assert content(tmp_path / "there") == content(tmp_path / "here")
    assert len(lines(tmp_path / "there")) == tally.asked == tally.answered

    # every sample names its engine's arithmetic, and the session says which engines answered
    store = Store.read(tmp_path / "there")
    [session] = store.manifest["sessions"]
    for label in ("baseline", "headwise"):
        entries = session["engines"][label]
        assert {entry["name"] for entry in entries} <= {"engine 1", "engine 2"}
        assert sum(entry["answers"] for entry in entries) == sum(c.model == label for c in store.cells) * 12
        assert all(store.manifest["arithmetic"][entry["arithmetic"]]["device"] for entry in entries)
    assert any(text.startswith("2 engines on ") for text in facts_of(store).short)


@pytest.mark.parametrize("begun", ["here", "there"])
def test_a_run_begun_in_one_way_is_finished_in_the_other(
    begun: str, models: Path, tmp_path: Path, backend: ThreadBackend
) -> None:
    half, whole = plan(models, samples=5), plan(models)
    run_here(whole, tmp_path / "fresh")
    with Cluster(lambda: backend, models_of(whole)) as cluster:
        for made, way in ((half, begun), (whole, "there" if begun == "here" else "here")):
            _, tally = (
                run_here(made, tmp_path / "mixed") if way == "here" else run_on(cluster, made, tmp_path / "mixed")
            )
    assert tally.reused > 0
    assert tally.redone == 0
    assert content(tmp_path / "mixed") == content(tmp_path / "fresh")


def test_a_finished_run_connects_to_no_cluster(models: Path, tmp_path: Path) -> None:
    def connect() -> ThreadBackend:
        raise AssertionError("connected")

    made = plan(models, samples=2)
    run_here(made, tmp_path / "run")
    with Cluster(connect, models_of(made)) as cluster:
        state, tally = run_on(cluster, made, tmp_path / "run")
    assert (state, tally.asked) == ("complete", 0)


def test_a_sample_that_kills_engines_fails_its_cell_by_name(
    models: Path, tmp_path: Path, backend: ThreadBackend
) -> None:
    label = "ruler fwe at 512, sample 3"
    (models / "poison").write_text(label)
    made = plan(models)
    with Cluster(lambda: backend, models_of(made)) as cluster:
        state, _ = run_on(cluster, made, tmp_path / "there")
    assert state == "incomplete"
    store = Store.read(tmp_path / "there")
    cells = [cell for cell in store.cells if cell.task == "fwe" and cell.length == 512]
    assert set(store.failures) == {cell.key for cell in cells}
    assert all(label in error and "signal 11" in error for error in store.failures.values())
    (models / "poison").unlink()
    run_here(made, tmp_path / "there")  # without the poison the same command completes the run
    run_here(made, tmp_path / "fresh")
    assert content(tmp_path / "there") == content(tmp_path / "fresh")


def test_processes_that_are_killed_cost_nothing_but_time(models: Path, tmp_path: Path, backend: ThreadBackend) -> None:
    (models / "pace").write_text("0.01")
    made = plan(models, samples=30)
    stop = threading.Event()

    def kill() -> None:
        for _ in range(5):
            time.sleep(0.15)
            if not stop.is_set() and backend.alive():
                backend.alive()[0].die()

    killer = threading.Thread(target=kill)
    with Cluster(lambda: backend, models_of(made)) as cluster:
        killer.start()
        state, tally = run_on(cluster, made, tmp_path / "there")
        stop.set()
        killer.join()
    assert state == "complete"
    assert len(backend.processes) > 2
    assert len(lines(tmp_path / "there")) == tally.answered
    (models / "pace").unlink()
    run_here(made, tmp_path / "here")
    assert content(tmp_path / "there") == content(tmp_path / "here")


def test_a_cluster_that_no_engine_starts_on_fails_the_model_as_one_engine_would(
    models: Path, tmp_path: Path, backend: ThreadBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*arguments: object) -> None:
        raise EngineError("vLLM did not start on it: no memory")

    monkeypatch.setattr("tests.support.cluster_runs.NodeEngine.__init__", cannot)
    made = plan(models, samples=2)
    with Cluster(lambda: backend, models_of(made)) as cluster:
        state, tally = run_on(cluster, made, tmp_path / "there")
    assert state == "incomplete"
    assert len(tally.failed) == len(made.cells)
    assert all("no memory" in error for error in Store.read(tmp_path / "there").failures.values())
