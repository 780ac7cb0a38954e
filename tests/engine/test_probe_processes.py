"""The processes of `gatedeval probe`: vLLM's engine core runs in its own process, each rank in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.engine import Engine
from harness.engine.probing import probe
from harness.engine.requests import EngineError
from harness.probe.plan import ProbePlan
from harness.probe.rows import choose_rows
from harness.store.probes import Probes
from tests.support import ROOT
from tests.support.in_process import NATIVE, shared_engine
from tests.support.signals import receive_signals

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PLAN = ProbePlan(tuple(range(2, 302)), choose_rows(300))


def processes() -> list[psutil.Process]:
    """The engine's processes below this one; multiprocessing's resource tracker is none."""
    alive = (p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE)
    return [p for p in alive if "resource_tracker" not in " ".join(p.cmdline())]


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_an_engine_whose_core_is_here_has_a_process_for_each_rank_and_measures_the_same(
    tiny: Path, tensor_parallel: int
) -> None:
    shared_engine.close()
    model = Model(label="m", path=str(tiny / "elementwise"), dtype="float32")
    options = EngineOptions(enforce_eager=True, tensor_parallel_size=tensor_parallel)
    results, arithmetic = {}, {}
    for core_here in (False, True):
        with Engine(model, [NATIVE], options, core_here=core_here) as engine:
            assert len(processes()) == tensor_parallel + (not core_here)
            results[core_here], arithmetic[core_here] = probe(engine, PLAN), engine.facts["arithmetic"]
        assert processes() == []
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ
    assert arithmetic[False] == arithmetic[True]
    apart, here = results[False], results[True]
    for name in ("head", "layer"):
        assert (getattr(apart.first, name) == getattr(here.first, name)).all()
    assert (apart.hidden == here.hidden).all()
    assert (apart.losses == here.losses).all()
    assert (apart.gate_mean == here.gate_mean).all()


def test_a_rank_that_dies_is_an_error_and_the_next_engine_starts(tiny: Path) -> None:
    shared_engine.close()
    model = Model(label="m", path=str(tiny / "elementwise"), dtype="float32")
    options = EngineOptions(enforce_eager=True)
    with Engine(model, [NATIVE], options, core_here=True) as engine:
        [rank] = processes()
        rank.kill()
        with pytest.raises(EngineError, match="its process ended without an error of its own"):
            probe(engine, PLAN)
    with Engine(model, [ContextSetting(label="again")], options, core_here=True) as engine:
        assert probe(engine, PLAN).length == 300
    assert processes() == []


def test_ctrl_c_ends_the_ranks_and_the_same_command_makes_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, str(ROOT / "cli.py"), "probe", str(ROOT / "configs/probe-demo.yaml"), "-o", str(out)]
    command += ["-s", "probe.lengths=[1024]"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=receive_signals)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("baseline, YaRN"):
            break
    time.sleep(1)  # the second model's rank imports vLLM
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "gatedeval probe" in error, error
    assert psutil.wait_procs(children, timeout=10)[1] == []
    made = len(Probes(out).records())
    assert made == 2
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert f"4 probes made, {made} found finished" in again.stderr
