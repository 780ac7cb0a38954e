"""A precision with a real engine and a trained model: killed in a later round, the run takes the same steps again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from harness.stats.sequential import next_counts
from harness.store import Store
from harness.store.rounds import Rounds
from tests.support import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TASKS = ["niah_single_2", "niah_multikey_1", "niah_multikey_2"]
CONFIG = {
    "name": "rounds",
    "models": [{"label": "elementwise", "path": str(ROOT / "tasks/demo/models/elementwise/long")}],
    "contexts": [{"label": "base 1M", "rope_theta": 1_000_000, "max_length": 1024}],
    "benchmarks": [
        {"ruler": TASKS, "lengths": [512], "samples": {"precision": 4.5, "at_least": 15, "at_most": 150},
         "profile": "fair", "answer_tokens": 16},
        {"lm_eval": "demo_choice", "shots": 0, "samples": {"precision": 6.0, "at_least": 20}},
    ],
    "data": str(ROOT / "tasks/demo/data"),
    "engine": {"dtype": "float32", "enforce_eager": True},
}  # fmt: skip


def command(folder: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, str(ROOT / "cli.py"), "run", "rounds.yaml"]
    return subprocess.Popen(
        arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def entries(run: Path) -> list[Rounds]:
    return [Rounds.from_dict(entry) for entry in Store.read(run).manifest.get("rounds") or []]


def test_a_run_that_was_killed_in_a_later_round_takes_the_same_steps(tmp_path: Path) -> None:
    (tmp_path / "rounds.yaml").write_text(yaml.safe_dump(CONFIG))
    run = tmp_path / "results/rounds"
    process = command(tmp_path)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "run.json").exists() and any(len(entry.samples) > 1 for entry in entries(run)):
            break  # the pilot is finished, another round is planned
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    planned = entries(run)
    assert any(len(entry.samples) > 1 for entry in planned)

    again = command(tmp_path)
    text, _ = again.communicate(timeout=600)
    assert again.returncode == 0, text[-3000:]
    assert "found" in text
    store, found = Store.read(run), entries(run)
    assert store.manifest["state"] == "complete"
    for before, after in zip(planned, found, strict=True):
        steps = len(before.samples)
        assert after.samples[:steps] == before.samples, "the rounds before the kill are those after it"
        assert after.ended == "precision reached"
        assert after.widths[-1] <= after.target
    for entry in found:  # every step follows from the stored scores of the steps before it
        for now, following in zip(entry.samples, (*entry.samples[1:], None), strict=True):
            columns = [store.scores(cell).scores for cell in entry.cells("elementwise")]
            if entry.population is None:  # ids are in the order of the draws
                first = [column[:n] for column, n in zip(columns, now, strict=True)]
                decided = next_counts(first, entry.design, entry.target / 100)
                assert (None if decided is None else tuple(decided)) == following
        assert [len(store.scores(cell).ids) for cell in entry.cells("elementwise")] == list(entry.samples[-1])

    third = command(tmp_path)
    text, _ = third.communicate(timeout=600)
    assert third.returncode == 0
    assert "0 samples answered" in text, "nothing is asked again, and no engine starts"
    assert entries(run) == found
