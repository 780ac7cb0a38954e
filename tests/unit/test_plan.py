"""What a plan refuses before anything runs, and what samples are made of."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.benchmarks.lm_eval import Mmlu
from harness.benchmarks.protocol import Setup
from harness.benchmarks.ruler import Ruler
from harness.config import from_dict
from harness.data.folder import DataFolder
from harness.models.thinking import Thinking
from harness.models.tokenizer import Tokenizer
from harness.run.answers import answer_text
from harness.run.plan import Plan, build
from harness.types import Cell, GatedevalError
from tests.support import ROOT
from tests.support.engines import altered

CHAT = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def plan(tiny: Path, benchmark: dict[str, Any], **more: Any) -> Plan:
    facts = {
        "name": "p",
        "models": [{"label": "a", "path": str(tiny / "baseline")}, {"label": "b", "path": str(tiny / "headwise")}],
        "contexts": [{"label": "native", "max_length": 2048}],
        "benchmarks": [benchmark],
    }
    return build(from_dict({**facts, **more}))


def test_a_prompt_that_does_not_fit_is_refused_at_plan_time_with_its_count(tiny: Path, shared: Path) -> None:
    mmlu = {"mmlu": {"subjects": ["professional_law"], "samples": 3}}
    fits = plan(
        tiny, mmlu, data=str(shared / "data"), contexts=[{"label": "long", "rope_theta": 1e6, "max_length": 8192}]
    )
    assert fits.refusals == []
    assert min(fits.tokens.values()) > 1500
    refused = plan(tiny, mmlu, data=str(shared / "data"), contexts=[{"label": "short", "max_length": 512}])
    assert len(refused.refusals) == 2  # one for each model
    assert "over the 512 of context 'short'" in refused.refusals[0]
    with pytest.raises(GatedevalError, match=r"cannot be run:\n  - mmlu.*\n  - mmlu"):
        refused.check()
    with pytest.raises(GatedevalError, match=r"^the plan cannot be run: mmlu"):
        replace(refused, refusals=refused.refusals[:1]).check()


def test_a_plan_counts_what_is_sent_and_imports_neither_torch_nor_transformers(tiny: Path, shared: Path) -> None:
    """Counted by the tokenizers library alone, which is what keeps `gatedeval plan` below three seconds."""
    mmlu = {"mmlu": {"subjects": ["anatomy"], "samples": 3}}
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.unit.test_plan import Path, plan
contexts = [{{"label": "long", "rope_theta": 1e6, "max_length": 8192}}]
made = plan(Path({str(tiny)!r}), {mmlu!r}, data={str(shared / "data")!r}, contexts=contexts)
made.check()
print([m for m in ("torch", "transformers", "vllm") if m in sys.modules], list(made.tokens.values()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    data = DataFolder(shared / "data")
    setup = Setup(Tokenizer(tiny / "baseline"), data, 42)
    benchmark = Mmlu(subjects=("anatomy",), samples=3)
    jobs = benchmark.requests(Cell("a", "c", "mmlu", "anatomy"), setup, 0)
    tokens = sum(len(setup.tokenizer.encode(job.options[0][0])) for job in jobs)
    assert done.stdout.strip() == f"[] [{tokens}, {tokens}]"


def test_missing_data_names_the_file_before_anything_runs(tiny: Path, tmp_path: Path) -> None:
    empty = tmp_path / "data"
    empty.mkdir()
    refused = plan(tiny, {"ruler": ["qa_1"], "lengths": [2048], "samples": 1}, data=str(empty))
    assert any("squad" in r.lower() for r in refused.refusals)
    refused = plan(tiny, {"gsm8k": {}}, data=str(empty))
    assert any("gsm8k" in r for r in refused.refusals)


def test_all_refusals_come_together(tiny: Path, tmp_path: Path) -> None:
    lying = altered(tiny / "headwise", tmp_path / "m", headwise_attn_output_gate=False)
    models = [{"label": "a", "path": str(lying)}, {"label": "b", "path": str(tiny / "baseline")}]
    refused = plan(tiny, {"ruler": ["vt"], "lengths": [256], "samples": 1}, models=models)
    assert any("flags say gate none" in r for r in refused.refusals)
    assert any("vt at length 256" in r for r in refused.refusals)


def test_a_length_that_only_one_context_reaches(tiny: Path) -> None:
    contexts = [
        {"label": "native", "max_length": 1024},
        {"label": "YaRN", "yarn": {"factor": 2, "original_max_position_embeddings": 1024}, "max_length": 2048},
    ]
    made = plan(tiny, {"ruler": ["fwe"], "lengths": [512, 2048], "samples": 2}, contexts=contexts)
    assert {(c.context, c.length) for c in made.cells} == {("native", 512), ("YaRN", 512), ("YaRN", 2048)}


def test_both_models_are_asked_the_same_token_ids(tiny: Path, shared: Path) -> None:
    data = DataFolder(shared / "data")
    benchmark = Ruler(ruler=("vt",), lengths=(1024,), samples=3)
    prompts = []
    for arm in ("baseline", "headwise"):
        setup = Setup(Tokenizer(tiny / arm), data, 42)
        jobs = benchmark.requests(Cell(arm, "c", "ruler", "vt", 1024), setup, 1024)
        prompts.append([setup.tokenizer.encode(job.prompt or "") for job in jobs])
    assert prompts[0] == prompts[1]


def test_ruler_answer_budgets_are_the_tasks_own(tiny: Path, shared: Path) -> None:
    """A benchmark's options cannot leak into another: RULER's caps come from its task table alone."""
    setup = Setup(Tokenizer(tiny / "baseline"), DataFolder(shared / "data"), 42)
    for task, tokens in {"niah_single_1": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa_1": 32}.items():
        benchmark = Ruler(ruler=(task,), lengths=(4096,), samples=1)
        [job] = benchmark.requests(Cell("m", "c", "ruler", task, 4096), setup, 4096)
        assert (job.max_tokens, job.stop, job.temperature) == (tokens, (), 0.0)


def test_ruler_in_a_chat_template(tiny: Path, shared: Path, tmp_path: Path) -> None:
    """The answer prefix begins the assistant's turn, the last ids decode to it, and all of it fits the length."""
    folder = altered(tiny / "baseline", tmp_path / "m")
    facts = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**facts, "chat_template": CHAT}))
    setup = Setup(Tokenizer(folder), DataFolder(shared / "data"), 42, chat=True)
    for task in ("niah_single_1", "vt", "fwe"):
        benchmark = Ruler(ruler=(task,), lengths=(1024,), samples=2)
        for job in benchmark.requests(Cell("m", "c", "ruler", task, 1024), setup, 1024):
            prompt = job.prompt or ""
            assert prompt.startswith("[user] ")
            turn = prompt.rpartition("[assistant] ")[2]
            assert turn.startswith(("The special", "Answer"))
            ids = setup.tokenizer.encode(prompt)
            assert setup.tokenizer.hf.decode(ids[-60:]).endswith(turn)
            assert len(ids) + job.max_tokens <= 1024


def test_a_thought_in_a_run_without_thinking_is_an_error() -> None:
    def text(response: str, allowed: bool, opened: bool = False) -> str:
        return answer_text(response, Thinking(allowed), opened, (), "q")

    assert text("plain", False) == "plain"
    with pytest.raises(GatedevalError, match="holds <think> although thinking is off"):
        text("<think>hm</think> 42", False)
    assert text("<think>was it 41?</think>\n42", True) == "42"
    assert text("<think>it is 42, I thi", True) == "", "the thought never ended"
    assert text("it is 42, I thi", True, opened=True) == "", "the prompt had opened it"
    assert text("42", True) == "42", "no thought was opened: the model answered at once"
