"""`decide` needs two models' engines in every round: kept side by side where both fit, else rounds are long."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness.config import Config, ContextSetting, EngineOptions, Model, from_dict
from harness.cost.beside import options_beside
from harness.cost.devices import GIB, Devices
from harness.cost.memory import Memory
from harness.engine.requests import EngineError
from harness.models.kv_cache import KvLayers, LayerGroup, Sharding
from harness.run import pacing, runner
from harness.run.pacing import Pace
from harness.run.plan import build
from harness.run.plan_text import render
from harness.run.progress import Progress
from harness.run.session import Tally
from harness.stats.decision import RATIO, _crossing, critical_value
from harness.store import Store
from harness.store.rounds import Rounds
from harness.types import Cell
from tests.support import ROOT
from tests.support.fake_engine import Cut, CutEngine, InlineProducer

LARGE = Devices(kind="cpu", memory=64.0 * GIB, cores=2)
SMALL = Devices(kind="cpu", memory=5.0 * GIB, cores=2)  # one engine's GiB of keys and values, not two with processes
DECIDE = {"candidate": "elementwise", "baseline": "baseline", "margin": 8.0}


class Watched(CutEngine):
    """Notes which models' engines run at once.

    `refused`: a label whose engine does not start beside another; `dies`: one whose first engine dies while it waits.
    """

    alive: ClassVar[list[str]] = []
    together: ClassVar[set[tuple[str, ...]]] = set()
    log: ClassVar[list[str]] = []
    refused: ClassVar[str | None] = None
    dies: ClassVar[str | None] = None

    def __init__(self, model: Model, contexts: Sequence[ContextSetting], options: Any) -> None:
        if model.label == Watched.refused and Watched.alive:
            raise EngineError("no memory is left")
        super().__init__(model, contexts, options)
        self.label = model.label
        Watched.alive.append(model.label)
        Watched.log.append(model.label)
        Watched.together.add(tuple(sorted(Watched.alive)))

    @property
    def dead(self) -> bool:
        """The first engine of `dies` is found dead when it is needed again."""
        return self.label == Watched.dies and Watched.log.count(self.label) == 1

    def close(self) -> None:
        Watched.alive.remove(self.label)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Prefetcher", InlineProducer)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    Watched.alive, Watched.together, Watched.log = [], set(), []
    Watched.refused = Watched.dies = CutEngine.after = None


def config(tiny: Path, models: Sequence[str] = ("baseline", "elementwise"), **samples: Any) -> Config:
    rule = {"at_least": 10, "at_most": 60, **samples}
    entry = {"ruler": ["niah_single_1", "niah_single_2"], "lengths": [512], "samples": rule, "answer_tokens": 24,
             "profile": "fair"}  # fmt: skip
    return from_dict(
        {
            "name": "decide",
            "models": [{"label": label, "path": str(tiny / label)} for label in models],
            "contexts": [{"label": "native", "max_length": 512}],
            "benchmarks": [entry],
            "decide": DECIDE,
            "data": str(ROOT / "tasks/demo/data"),
        }
    )


def run(config: Config, path: Path, devices: Devices) -> Tally:
    plan = build(config, devices=devices)
    plan.check()
    state, tally = runner.run(plan, path, progress=Progress(plan, quiet=True), engine_factory=Watched)
    assert state == "complete"
    return tally


def entry(path: Path) -> Rounds:
    [found] = [Rounds.from_dict(e) for e in Store.read(path).manifest["rounds"] if e["goal"] == "decide"]
    return found


# ------------------------------------------------------------------------------------------------ side by side


def test_both_engines_stay_where_both_fit(tiny: Path, tmp_path: Path) -> None:
    run(config(tiny), tmp_path / "run", LARGE)
    assert len(entry(tmp_path / "run").samples) >= 3, "there should be rounds"
    assert Watched.log == ["baseline", "elementwise"], "one start each, whatever the number of rounds"
    assert ("baseline", "elementwise") in Watched.together
    assert Watched.alive == []
    assert set(entry(tmp_path / "run").paces) == {1}, "no engine starts in a round, so none has to be long"


def test_another_models_engine_never_runs_beside_them(tiny: Path, tmp_path: Path) -> None:
    three = config(tiny, ["baseline", "headwise", "elementwise"], precision=25.0)
    run(three, tmp_path / "run", LARGE)
    assert Watched.log == ["headwise", "baseline", "elementwise"], "it comes first, so that the two can stay"
    assert all(names == ("headwise",) or "headwise" not in names for names in Watched.together)


def test_an_engine_that_does_not_start_beside_the_other_starts_alone(tiny: Path, tmp_path: Path) -> None:
    Watched.refused = "elementwise"
    run(config(tiny), tmp_path / "run", LARGE)
    assert Watched.together == {("baseline",), ("elementwise",)}
    rounds = len(entry(tmp_path / "run").samples)
    assert len(Watched.log) == rounds + 1, "from then on the engines take turns"


def test_an_engine_that_died_while_it_waited_is_replaced(tiny: Path, tmp_path: Path) -> None:
    Watched.dies = "baseline"
    run(config(tiny), tmp_path / "run", LARGE)
    assert Watched.log == ["baseline", "elementwise", "baseline"]
    assert entry(tmp_path / "run").ended in ("above", "below", "equal", "undecided"), "no cell has failed"


# ------------------------------------------------------------------------------------------------ taking turns


def test_where_only_one_fits_the_engines_take_turns(tiny: Path, tmp_path: Path) -> None:
    run(config(tiny), tmp_path / "run", SMALL)
    assert Watched.together == {("baseline",), ("elementwise",)}
    assert len(Watched.log) == len(entry(tmp_path / "run").samples) + 1, "the model that ran last goes first"


def slow_starts(monkeypatch: pytest.MonkeyPatch, start: float, sample: float = 1.0) -> None:
    monkeypatch.setattr(Pace, "start", lambda self, model: start)
    monkeypatch.setattr(Pace, "sample", lambda self, cell: sample)


def test_rounds_are_long_beside_the_start_of_an_engine(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_starts(monkeypatch, 1.5)  # so a round needs 28.5 s of answering
    run(config(tiny, at_most=60), tmp_path / "run", SMALL)
    found = entry(tmp_path / "run")
    sums = [2 * sum(n) for n in found.samples]  # both models
    assert len(sums) >= 2
    for before, after in itertools.pairwise(sums):
        assert after - before >= 28.5 or after == 2 * sum(found.most)
    assert max(found.paces) > 1
    # The same steps as with engines side by side, some of them left out.
    slow_starts(monkeypatch, 0.0)
    run(config(tiny, at_most=60), tmp_path / "beside", LARGE)
    steps = entry(tmp_path / "beside").samples
    assert found.samples[1][0] > steps[1][0]


def test_where_an_engine_starts_very_slowly_all_is_drawn_at_once(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_starts(monkeypatch, 1e6)
    run(config(tiny), tmp_path / "run", SMALL)
    assert entry(tmp_path / "run").samples == ((10, 10), (60, 60))


def test_a_resumed_run_takes_the_same_steps_however_fast_its_engines_start(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_starts(monkeypatch, 1.5)
    run(config(tiny, at_most=60), tmp_path / "whole", SMALL)
    whole = entry(tmp_path / "whole")
    second = 2 * sum(whole.samples[0])  # answers of the first round
    assert len(whole.samples) >= 2
    CutEngine.after, Watched.alive = second + 5, []
    with pytest.raises(Cut):
        run(config(tiny, at_most=60), tmp_path / "cut", SMALL)
    CutEngine.after, Watched.alive = None, []
    reached = len(entry(tmp_path / "cut").samples)
    assert reached > 1
    slow_starts(monkeypatch, 0.0)
    run(config(tiny, at_most=60), tmp_path / "cut", LARGE)
    found = entry(tmp_path / "cut")
    assert found.samples[:reached] == whole.samples[:reached], "the rounds that were planned stay as they were"
    assert found.paces[: reached - 1] == whole.paces[: reached - 1]
    assert max(whole.paces) > 1, "other steps than those of engines that start at once"


def test_the_plan_says_whether_both_run_at_once(tiny: Path) -> None:
    assert "decide: the engines of both models run at the same time" in render(build(config(tiny), devices=LARGE))
    assert "do not fit side by side; they take turns" in render(build(config(tiny), devices=SMALL))


# ------------------------------------------------------------------------------------------------ the parts

CELL = Cell("m", "native", "ruler", "vt", 512)


def record(**more: Any) -> dict[str, Any]:
    seen = [
        {"context": "native", "benchmark": "ruler", "task": "vt", "length": 512, "samples": 10, "seconds": 20.0},
        {"context": "native", "benchmark": "ruler", "task": "vt", "length": 512, "samples": 10, "seconds": 40.0},
        {"context": "native", "benchmark": "ruler", "task": "fwe", "length": 512, "samples": 20, "seconds": 20.0},
    ]
    return {"models": {"m": {"starts": [10.0, 30.0, 20.0], "observations": seen, **more}}}


def test_times_are_those_that_the_run_has_recorded() -> None:
    pace = Pace(record())
    assert pace.start("m") == 20.0
    assert pace.sample(CELL) == 3.0
    assert pace.sample(Cell("m", "native", "ruler", "cwe", 512)) == 2.0, "the model's mean"
    assert pacing.ANSWERING * 20.0 == 380.0
    assert not pace.is_long({CELL: 126}, {"m": 1})
    assert pace.is_long({CELL: 127}, {"m": 1})
    assert pace.is_long({CELL: 1}, {"m": 0}), "no engine starts"


@pytest.mark.parametrize("cost", [None, {}, {"models": {}}, {"models": {"m": {}}}, record(observations=[])])
def test_where_nothing_is_recorded_no_round_is_lengthened(cost: dict[str, Any] | None) -> None:
    assert Pace(cost).is_long({CELL: 1}, {"m": 1})


@pytest.mark.parametrize("pace", [2, 3, 4])
def test_a_part_of_the_looks_is_wrong_no_more_often_than_all(pace: int) -> None:
    looks = 8
    critical = critical_value(looks, 0.05)
    assert _crossing(critical, looks, RATIO) == pytest.approx(0.05, abs=1e-4)
    assert _crossing(critical, 1 + (looks - 1) // pace, RATIO**pace) < 0.05


def memory(kind: str, *, gib: float, weights: float, pool: float | None = 1.0, tokens: int = 4096) -> Memory:
    """Of an engine of 8 layers with keys and values of 2 x 2048 elements: 64 KiB a token in 16 bits."""
    return Memory(
        devices=Devices(kind=kind, memory=gib * GIB),
        split=Sharding(tensor_parallel=1, pipeline_parallel=1, block_size=16, in_flight=8192),
        weights=weights * GIB,
        max_length=tokens,
        seqs=256,
        kv=KvLayers(groups=(LayerGroup(layers=8, heads=16, width=256),)),
        element=2.0,
        pool=None if pool is None else pool * GIB,
    )


@pytest.mark.parametrize(
    ("gib", "weights", "given", "expected"),
    [
        (80, 16, {}, 0.46),  # half of vLLM's share for each
        (80, 30, {}, 0.46),
        (80, 33, {}, None),  # 33 + two longest prompts + 4 GiB are more than 36.8
        (24, 16, {}, None),
        (80, 16, {"gpu_memory_utilization": 0.9}, None),  # so much was asked for, and it is not there twice
        (80, 16, {"gpu_memory_utilization": 0.4}, 0.4),
        (80, 16, {"kv_cache_gib": 10.0}, 0.46),
        (80, 16, {"kv_cache_gib": 20.0}, None),
    ],
)
def test_gpu_engines_get_half_of_a_gpu_each(
    gib: float, weights: float, given: dict[str, Any], expected: float | None
) -> None:
    both = [memory("gpu", gib=gib, weights=weights)] * 2
    found = options_beside(both, EngineOptions(**given))
    assert (None if found is None else found.gpu_memory_utilization) == expected
    if found is not None:
        assert found.kv_cache_gib == given.get("kv_cache_gib")
        assert 2 * (found.gpu_memory_utilization or 1.0) <= 0.92 + 1e-9


@pytest.mark.parametrize(
    ("gib", "pool", "fits"), [(24, 2.0, True), (12, 1.0, True), (12, 2.0, False), (24, None, False)]
)
def test_cpu_engines_share_one_memory(gib: float, pool: float | None, fits: bool) -> None:
    both = [memory("cpu", gib=gib, weights=1.0, pool=pool)] * 2
    options = EngineOptions()
    assert options_beside(both, options) == (options if fits else None)
