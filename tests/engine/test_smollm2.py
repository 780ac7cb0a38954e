"""A real language model and its gated twins through the main job, and the same questions through lm-eval's own backend.

Slow (about 20 minutes on 2 cores): `make test-slow`. SmolLM2-135M-Instruct comes from PyPI, no hub is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.store import Store
from harness.types import Cell
from tests.support import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(3600)]
ARMS = ("baseline", "headwise", "elementwise")
NEAR_TIE = (
    2e-3  # nats between the two best options, or the two best tokens, that float32 sums in another order may swap
)


@pytest.fixture(scope="module")
def models() -> Path:
    subprocess.run([sys.executable, "scripts/build_smollm2.py"], cwd=ROOT, check=True)
    return ROOT / ".cache/smollm2"


@pytest.fixture(scope="module")
def run(models: Path, shared: Path) -> Store:
    """The run; kept beside the models, so that an interrupted test goes on (content hashes see to what is stale)."""
    target = models / "run"
    command = [
        sys.executable,
        "cli.py",
        "run",
        "configs/smollm2.yaml",
        "--data",
        str(shared / "data"),
        "-o",
        str(target),
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    print(result.stdout)
    return Store.read(target)


def cells(run: Store, model: str) -> list[Cell]:
    return [c for c in run.cells if c.model == model]


def test_every_sample_of_the_twins_is_the_baseline_s(run: Store) -> None:
    for arm in ARMS[1:]:
        for cell in cells(run, "baseline"):
            twin = Cell(arm, cell.context, cell.benchmark, cell.task, cell.length)
            for ours, theirs in zip(run.samples(cell), run.samples(twin), strict=True):
                assert ours.extra["prompt_hash"] == theirs.extra["prompt_hash"]
                assert (ours.response, ours.scores) == (theirs.response, theirs.scores), (cell, ours.id)
                if "logprobs" in ours.extra:
                    assert ours.extra["logprobs"] == pytest.approx(theirs.extra["logprobs"], abs=1e-4)


def test_the_model_is_really_evaluated(run: Store) -> None:
    """A 135M instruct model finds a needle among noise at 1K most of the time, and is near chance on MMLU."""
    scores = {c: run.scores(c).scores.mean() for c in cells(run, "baseline")}
    assert scores[Cell("baseline", "native", "ruler", "niah_single_1", 1024)] >= 0.8
    mmlu = [v for c, v in scores.items() if c.benchmark == "mmlu"]
    assert 0.1 <= sum(mmlu) / len(mmlu) <= 0.5


@pytest.fixture(scope="module")
def hugging_face(models: Path, shared: Path) -> dict[str, list[dict[str, Any]]]:
    """lm-eval's Hugging Face backend on the same questions: its samples by task."""
    from lm_eval import simple_evaluate

    from harness.benchmarks.lm_tasks import local_task
    from harness.config import load
    from harness.data.folder import DataFolder

    config = load(ROOT / "configs/smollm2.yaml", check_paths=False)
    data = DataFolder(shared / "data")
    tasks = []
    for benchmark in config.benchmarks:
        if benchmark.name == "mmlu":
            tasks += [local_task("mmlu", subject, 5, data).task for subject in benchmark.tasks]
        elif benchmark.name == "gsm8k":
            tasks.append(local_task("gsm8k", None, 5, data).task)
    results = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(models / "llama"), "dtype": "float32"},
        tasks=tasks,
        limit=20,
        batch_size=1,
        device="cpu",
        bootstrap_iters=0,
        log_samples=True,
    )
    return results["samples"]


def test_mmlu_equals_the_hugging_face_backend(run: Store, hugging_face: dict[str, list[dict[str, Any]]]) -> None:
    compared = 0
    for cell in (c for c in cells(run, "baseline") if c.benchmark == "mmlu"):
        theirs = {s["doc_id"]: s for s in hugging_face[f"mmlu_{cell.task}"]}
        for sample in run.samples(cell):
            other = theirs[int(sample.id)]
            logprobs = [float(r[0][0]) for r in other["resps"]]
            assert sample.extra["logprobs"] == pytest.approx(logprobs, abs=NEAR_TIE)
            best = sorted(logprobs)[-2:]
            if best[1] - best[0] > NEAR_TIE:
                assert sample.scores["acc"] == other["acc"], (cell, sample.id)
            compared += 1
    assert compared == 100


def test_gsm8k_equals_the_hugging_face_backend(run: Store, hugging_face: dict[str, list[dict[str, Any]]]) -> None:
    [cell] = [c for c in cells(run, "baseline") if c.benchmark == "gsm8k"]
    theirs = {s["doc_id"]: s for s in hugging_face["gsm8k"] if s["filter"] == "strict-match"}
    samples = list(run.samples(cell))
    differing = [s for s in samples if s.response != theirs[int(s.id)]["resps"][0][0]]
    # free-running generation may part ways at a near-tie and stay apart; all but a few must be equal to the letter
    assert len(differing) <= 2, [(s.id, s.response[:200], theirs[int(s.id)]["resps"][0][0][:200]) for s in differing]
    same = [s for s in samples if s not in differing]
    for sample in same:
        assert sample.scores["exact_match,strict-match"] == theirs[int(sample.id)]["exact_match"]
    assert len(samples) == 20


def test_plain_lm_eval_runs_the_registered_model(models: Path, shared: Path, tmp_path: Path) -> None:
    """`lm_eval --model gatedeval ... --tasks gsm8k --limit 5`: the command that lm-eval's users know."""
    command = [
        str(Path(sys.executable).parent / "lm_eval"), "--model", "gatedeval", "--model_args",
        f"path={models / 'headwise'},dtype=float32,enforce_eager=True,max_length=4096",
        "--tasks", "gsm8k", "--limit", "5", "--output_path", str(tmp_path),
    ]  # fmt: skip
    env = {**os.environ, "GATEDEVAL_DATA": str(shared / "data")}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    [file] = tmp_path.rglob("results*.json")
    assert json.loads(file.read_text())["n-samples"]["gsm8k"]["effective"] == 5
