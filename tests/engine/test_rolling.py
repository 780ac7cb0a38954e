"""Perplexity of texts in the live engine, against lm-eval's own computation on a plain torch model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate

from harness.benchmarks.lm_tasks import load_tasks
from harness.benchmarks.rolling import ROLLING
from harness.config import ContextSetting, Model
from harness.engine.lm_eval_model import GatedevalLM
from harness.engine.requests import EngineError, Prompt, Question
from harness.export import export_run
from harness.store import Store
from tests.support import ROOT
from tests.support.elsewhere import PlainTorch
from tests.support.engines import started
from tests.support.in_process import gatedeval

pytestmark = pytest.mark.engine

MODEL = ROOT / "tasks/demo/models/elementwise/long"
SAMPLES = 6
WINDOW = 100  # tokens that a window reads: the third text has several windows, the last one moved to the left
SHORT = ContextSetting(label="short", rope_theta=1e6, max_length=WINDOW + 1)
CONFIG = f"""
name: prose
models: [{{label: m, path: {MODEL}}}]
contexts:
  - {{label: short, rope_theta: 1_000_000, max_length: {WINDOW + 1}}}
  - {{label: long, rope_theta: 1_000_000, max_length: 2048}}
benchmarks: [{{lm_eval: demo_prose, samples: {SAMPLES}}}]
engine: {{dtype: float32, enforce_eager: true}}
"""


def _theirs(lm: Any) -> dict[str, float]:
    task = load_tasks("demo_prose", None)["demo_prose"].task
    results = simple_evaluate(model=lm, tasks=[task], limit=SAMPLES, bootstrap_iters=0)["results"]["demo_prose"]
    return {metric: results[f"{metric},none"] for metric in ROLLING}


@pytest.mark.extended
def test_a_run_s_perplexities_are_lm_eval_s_on_plain_torch(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    first = gatedeval("run", tmp_path / "c.yaml", "-o", tmp_path / "run", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    for context, window in (("short", WINDOW), ("long", 2047)):
        theirs = _theirs(PlainTorch(MODEL, window))
        exported = json.loads(export_run(tmp_path / "run", "lm_eval", "json", context=context))["results"]["demo_prose"]
        for metric in ROLLING:
            assert exported[f"{metric},none"] == pytest.approx(theirs[metric], rel=1e-4), (context, metric)
        assert f" {theirs['word_perplexity']:.2e}".replace("+", "") in first.stdout
    short, long = Store.read(tmp_path / "run").cells
    windows = {s.id: len(s.extra["windows"]) for s in Store.read(tmp_path / "run").samples(short)}
    assert min(windows.values()) == 1 < max(windows.values())
    assert {len(s.extra["windows"]) for s in Store.read(tmp_path / "run").samples(long)} == {1}
    again = gatedeval("run", tmp_path / "c.yaml", "-o", tmp_path / "run", cwd=tmp_path)
    assert f"0 samples answered, {2 * SAMPLES} found finished" in again.stderr
    assert again.stdout == first.stdout


@pytest.mark.slow
def test_both_ways_to_score_a_text_agree_and_leave_the_engine_as_it_was() -> None:
    """By the hook on an eager engine, and by one request a token, as compiled engines do; between other requests."""
    theirs = _theirs(PlainTorch(MODEL, WINDOW))
    with started(Model(label="m", path=str(MODEL), dtype="float32"), SHORT) as engine:
        lm = GatedevalLM(engine=engine)
        assert _theirs(lm) == pytest.approx(theirs, rel=1e-4)
        text = Question("text", (((0,), (5, 6, 7)), ((7,), (8, 9))), rolling=True)
        options = Question("options", text.options)
        prompt = Prompt("prompt", (5, 6, 7, 8), 4)
        answers = {a.key: a for a in engine.answer([prompt, text, None, options, None])}
        assert answers["text"].logprobs == pytest.approx(answers["options"].logprobs, abs=1e-4)
        assert answers["prompt"].token_ids == next(engine.generate([prompt])).token_ids
        engine.arguments["enforce_eager"] = False
        try:
            [slow] = engine.answer([text])
        finally:
            engine.arguments["enforce_eager"] = True
        assert slow.logprobs == pytest.approx(answers["text"].logprobs, abs=1e-4)
        engine.rpc("gatedeval_losses_start", [1, 2, 3])
        with pytest.raises(EngineError, match="a probe is already running"):
            list(engine.answer([text]))
        assert [a.key for a in engine.answer([text])] == ["text"], "the failed one left no hook behind"
