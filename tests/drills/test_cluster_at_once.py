"""Several models at once on one cluster: who gets which engines, and what happens when one ends, fails or is stopped.

Processes are threads here. `test_cluster_run.py` shows that samples are those of a run in one process.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.connection import Cluster
from harness.cluster.shares import Share
from harness.config import from_dict
from harness.run.plan import Plan, build
from harness.run.progress import Progress
from harness.run.runner import run
from harness.store import Store
from harness.types import GatedevalError
from tests.support.cluster_runs import ENGINE, content, models_of, plan, run_here, run_on
from tests.support.signals import ctrl_c_received
from tests.support.thread_backend import ThreadBackend

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture
def backend() -> Iterator[ThreadBackend]:
    made = ThreadBackend(4, engine=ENGINE)
    yield made
    made.close()


class Watched(Progress):
    """Notes how many engines each model has whenever a sample is finished; calls `then` at a number of samples."""

    def __init__(self, made: Plan, cluster: Cluster, then: dict[int, Callable[[], Any]] | None = None) -> None:
        super().__init__(made, quiet=True)
        self.cluster, self.then, self.finished = cluster, then or {}, 0
        self.given: list[dict[str, int]] = []

    def advance(self, *arguments: Any, **more: Any) -> None:
        super().advance(*arguments, **more)
        self.finished += 1
        self.given.append({label: share.given for label, share in self.cluster.shares.items()})
        if action := self.then.pop(self.finished, None):
            action()


def unequal(folder: Path, samples: int) -> Plan:
    """The second model has a fraction of the first one's work."""
    made = plan(folder, samples=samples)
    config = made.config.model_dump(mode="json")
    return build(
        from_dict(
            {
                "name": "grid",
                "models": [
                    {"label": "baseline", "path": str(folder / "baseline")},
                    {"label": "headwise", "path": str(folder / "headwise"), "contexts": ["native"]},
                ],
                "contexts": [c for c in config["contexts"] if c["label"] == "raised"]
                + [{"label": "native", "max_length": 768}],
                "benchmarks": [{"ruler": ["niah_single_1", "fwe"], "lengths": [512, 1024], "samples": samples}],
                "engine": {"dtype": "float32"},
            }
        )
    )


def test_models_are_answered_at_once_and_share_the_engines(
    models: Path, tmp_path: Path, backend: ThreadBackend
) -> None:
    made = plan(models)
    with Cluster(lambda: backend, models_of(made)) as cluster:
        progress = Watched(made, cluster)
        state, _ = run(made, tmp_path / "there", progress=progress, cluster=cluster)
    assert state == "complete"
    assert progress.given[0] == {"baseline": 2, "headwise": 2}
    assert len(backend.processes) == 4
    [session] = Store.read(tmp_path / "there").manifest["sessions"]
    assert set(session["engines"]) == {"baseline", "headwise"}
    run_here(made, tmp_path / "here")
    assert content(tmp_path / "there") == content(tmp_path / "here")


def test_more_models_than_engines_follow_one_another(models: Path, tmp_path: Path, backend: ThreadBackend) -> None:
    backend.engines = 1
    made = plan(models)
    with Cluster(lambda: backend, models_of(made)) as cluster:
        progress = Watched(made, cluster)
        state, _ = run(made, tmp_path / "there", progress=progress, cluster=cluster)
    assert state == "complete"
    assert all(len(given) == 1 for given in progress.given)
    assert len(backend.processes) == 1


def test_engines_are_divided_by_work_and_those_of_a_model_that_ends_go_to_the_others(
    models: Path, tmp_path: Path, backend: ThreadBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Share, "worth_more", lambda share, now: True)  # on a busy machine a start takes seconds
    (models / "pace").write_text("0.05")
    backend.engines = 3
    made = unequal(models, 16)  # the first model has three times the samples of the second one

    class Looking(Watched):
        """The pools look for room after every sample, not every two seconds."""

        def advance(self, *arguments: Any, **more: Any) -> None:
            super().advance(*arguments, **more)
            for pool in self.cluster.pools.values():
                pool._next_look = 0.0

    with Cluster(lambda: backend, models_of(made)) as cluster:
        progress = Looking(made, cluster)
        state, _ = run(made, tmp_path / "there", progress=progress, cluster=cluster)
    assert state == "complete"
    assert progress.given[0] == {"baseline": 2, "headwise": 1}
    assert progress.given[-1] == {"baseline": 3}
    assert len(backend.processes) == 3  # the process of the one that ended was used again
    (models / "pace").unlink()
    run_here(made, tmp_path / "here")
    assert content(tmp_path / "there") == content(tmp_path / "here")


def test_a_node_that_comes_late_starts_the_next_model(models: Path, tmp_path: Path, backend: ThreadBackend) -> None:
    backend.engines = 1
    (models / "pace").write_text("0.05")
    made = plan(models, samples=8)

    def another_node() -> None:
        backend.engines = 2
        for pool in cluster.pools.values():
            pool._next_look = 0.0

    with Cluster(lambda: backend, models_of(made)) as cluster:
        progress = Watched(made, cluster, {5: another_node})
        state, _ = run(made, tmp_path / "there", progress=progress, cluster=cluster)
    assert state == "complete"
    assert progress.given[0] == {"baseline": 1}
    assert {"baseline": 1, "headwise": 1} in progress.given


def test_a_model_that_waits_for_a_place_takes_the_one_of_a_model_that_ended(
    models: Path, tmp_path: Path, backend: ThreadBackend
) -> None:
    backend.engines, backend.room = 2, 1  # the config asks for two, the cluster has room for one
    made = plan(models, samples=4)
    with Cluster(lambda: backend, models_of(made)) as cluster:
        state, _ = run_on(cluster, made, tmp_path / "there")
    assert state == "complete"
    assert sum(process.placed for process in backend.processes) == 1


def test_what_the_user_has_to_change_ends_all_models(models: Path, tmp_path: Path, backend: ThreadBackend) -> None:
    (models / "pace").write_text("0.05")
    made = plan(models, samples=20)

    def refuse() -> None:
        raise GatedevalError("the disk is full")

    with Cluster(lambda: backend, models_of(made)) as cluster:
        progress = Watched(made, cluster, {10: refuse})
        with pytest.raises(GatedevalError, match="the disk is full"):
            run(made, tmp_path / "there", progress=progress, cluster=cluster)
        assert not cluster.shares
    assert not backend.alive()
    assert not [t for t in threading.enumerate() if t.name in made.models]
    assert 10 <= progress.finished < 40


def test_a_signal_stops_all_models_and_the_run_goes_on_later(
    models: Path, tmp_path: Path, backend: ThreadBackend
) -> None:
    (models / "pace").write_text("0.05")
    made = plan(models, samples=20)
    with Cluster(lambda: backend, models_of(made)) as cluster:
        progress = Watched(made, cluster, {12: _thread.interrupt_main})
        with ctrl_c_received(), pytest.raises(KeyboardInterrupt):
            run(made, tmp_path / "there", progress=progress, cluster=cluster)
    assert not backend.alive()
    assert not [t for t in threading.enumerate() if t.name in made.models]
    (models / "pace").unlink()
    again = ThreadBackend(2, engine=ENGINE)
    with Cluster(lambda: again, models_of(made)) as cluster:
        state, tally = run_on(cluster, made, tmp_path / "there")
    assert (state, tally.reused >= 12, tally.redone) == ("complete", True, 0)
    run_here(made, tmp_path / "here")
    assert content(tmp_path / "there") == content(tmp_path / "here")


def test_rounds_of_a_decision_keep_both_models_engines(models: Path, tmp_path: Path, backend: ThreadBackend) -> None:
    made = build(
        from_dict(
            {
                "name": "grid",
                "models": [{"label": name, "path": str(models / name)} for name in ("baseline", "headwise")],
                "contexts": [{"label": "native", "max_length": 768}],
                "benchmarks": [
                    {"ruler": ["fwe"], "lengths": [512], "samples": {"precision": 2, "at_least": 20, "at_most": 90}}
                ],
                "decide": {"baseline": "baseline", "candidate": "headwise", "margin": 1},
                "engine": {"dtype": "float32"},
            }
        )
    )
    started: list[str] = []
    with Cluster(lambda: backend, models_of(made)) as cluster:
        start = cluster.start
        cluster.start = lambda model, *more: (started.append(model.label), start(model, *more))[1]  # type: ignore[assignment]
        state, _ = run(made, tmp_path / "there", progress=Progress(made, quiet=True), cluster=cluster)
    assert state == "complete"
    [entry] = Store.read(tmp_path / "there").manifest["rounds"]
    assert len(entry["samples"]) > 1
    assert sorted(started) == ["baseline", "headwise"]
    run_here(made, tmp_path / "here")
    assert content(tmp_path / "there") == content(tmp_path / "here")
