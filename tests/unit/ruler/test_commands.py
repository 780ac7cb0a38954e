"""The commands, and lm-eval with our task files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError
from tasks.ruler import TASKS, generate
from tasks.ruler.commands import main
from tests.support import ROOT


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments))


def test_generate_writes_lines_only(shared: Path) -> None:
    tokenizer = str(shared / "oracles" / "ruler" / "tokenizer_bpe4k_bos")
    given = ["--tokenizer", tokenizer, "--length", "4096", "--samples", "2", "--data", str(shared / "data")]
    done = run("ruler", "generate", "niah_single_2", *given)
    assert done.exit_code == 0
    assert [json.loads(line)["outputs"] for line in done.stdout.splitlines()]
    assert "2 of 2 samples take more than 4096 tokens as sent" in done.stderr
    validity = run("ruler", "generate", "niah_single_2", *given, "--validity", "--profile", "fair")
    assert [json.loads(line)["overshoot"] for line in validity.stdout.splitlines()] == [0, 0]
    assert validity.stderr == ""
    short = [*given, "--profile", "fair", "--length", "512", "--answer-tokens", "16", "--validity"]
    rows = [json.loads(line) for line in run("ruler", "generate", "niah_single_2", *short).stdout.splitlines()]
    assert [(r["length"], r["answer_tokens"]) for r in rows] == [(512, 16)] * 2
    assert all(490 < r["prompt_tokens"] + 16 <= 512 for r in rows)


def test_files_by_option(shared: Path) -> None:
    tokenizer = str(shared / "oracles" / "ruler" / "tokenizer_bpe4k")
    squad = str(next((shared / "data" / "squad").glob("*.json.gz")))
    given = ["ruler", "generate", "qa_1", "--tokenizer", tokenizer, "--length", "2048", "--samples", "1"]
    assert run(*given, "--squad", squad).stdout == run(*given, "--data", str(shared / "data")).stdout
    error = run(*given, "--squad", "no-such-file").exception
    assert isinstance(error, GatedevalError)
    assert "--squad no-such-file: no such file" in str(error)


def test_score_prints_the_table(shared: Path) -> None:
    file = str(next((shared / "data" / "ruler_preds").glob("*.csv.gz")))
    text = run("ruler", "score", file).stdout
    assert "niah_multiquery       500   91.65      0         91.65" in text
    assert text.splitlines()[-1].split() == ["average", "of", "13", "6500", "81.33"]
    assert json.loads(run("ruler", "score", file, "--format", "json").stdout)["average"] == 81.33
    qa_2 = json.loads(run("ruler", "score", file, "--format", "json").stdout)["tasks"]["qa_2"]
    assert (qa_2["score"], qa_2["word_bounded"]) == (56.8, 56.2)  # three answers are plurals of the reference
    assert run("ruler", "score", file, "--format", "csv").stdout.splitlines()[1] == "niah_single_1,500,99.40,0,99.40"


def test_score_of_one_task_has_no_average(tmp_path: Path) -> None:
    file = tmp_path / "vt.jsonl"
    file.write_text('{"outputs": ["A"], "pred": "a"}\n')
    done = run("ruler", "score", str(file))
    assert done.stdout.splitlines()[-1].endswith("–")  # noqa: RUF001
    assert "qa_2 missing" in done.stderr


@pytest.fixture(scope="module")
def lm_eval_tasks(shared: Path) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=str(ROOT / "tasks"),
        metadata={
            "max_seq_lengths": [8192],
            "samples": 2,
            "data": str(shared / "data"),
            "tokenizer": str(shared / "oracles" / "ruler" / "tokenizer_bpe4k"),
        },
    )
    return {name: manager.load([name])["tasks"][name] for name in [f"gatedeval_ruler_{t}" for t in TASKS]}


def test_lm_eval_sends_our_prompts(shared: Path, bpe4k: Tokenizer, lm_eval_tasks: dict[str, Any]) -> None:
    """The request of every task is our prompt, the answer prefix with its spaces included; nothing global leaks in."""
    from tasks.ruler import ANSWER_TOKENS

    for task in TASKS:
        loaded = lm_eval_tasks[f"gatedeval_ruler_{task}"]
        loaded.build_all_requests(limit=None, rank=0, world_size=1)
        samples = list(generate(task, tokenizer=bpe4k, length=8192, samples=2, data=shared / "data"))
        assert [r.args[0] for r in loaded.instances] == [s.prompt for s in samples]
        for request, sample in zip(loaded.instances, samples, strict=True):
            assert request.args[1] == {
                "until": [], "do_sample": False, "temperature": 0.0, "max_gen_toks": ANSWER_TOKENS[task]
            }  # fmt: skip
            assert loaded.process_results(request.doc, [" ".join(sample.outputs)]) == {"8192": 1.0}
            assert loaded.process_results(request.doc, ["nothing"]) == {"8192": 0.0}


def test_lm_eval_without_a_tokenizer(shared: Path) -> None:
    from tasks.ruler.lmeval import glue

    with pytest.raises(GatedevalError, match="needs the model's tokenizer"):
        glue._dataset("vt", max_seq_lengths=[4096])
    with pytest.raises(GatedevalError, match="doubling each time"):
        glue._dataset("vt", max_seq_lengths=[5000], tokenizer="x")


def test_lm_eval_limit_takes_as_many_of_every_length_and_makes_no_more(shared: Path) -> None:
    """lm-eval's own loop with its own dummy model: `--limit 3` over three lengths is nine prompts and three scores."""
    from lm_eval.api.registry import get_model
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    facts = {
        "max_seq_lengths": [1024, 2048, 4096],
        "samples": 50,
        "data": str(shared / "data"),
        "tokenizer": str(shared / "oracles" / "ruler" / "tokenizer_bpe4k"),
    }
    manager = TaskManager(include_path=str(ROOT / "tasks"), include_defaults=False, metadata=facts)
    task = manager.load(["gatedeval_ruler_vt"])["tasks"]["gatedeval_ruler_vt"]
    made = task.eval_docs._made
    assert len(made) == 3, "loading makes the first sample of every length, to find a length that is too small"
    for limit, rows in ((3, 3), (0.1, 5)):
        results = evaluate(get_model("dummy")(), {"gatedeval_ruler_vt": task}, limit=limit, bootstrap_iters=0)
        assert len(made) == 3 * rows
        assert [(d["max_length"], d["row"]) for d in made[:6]] == [(n << 10, row) for row in (0, 1) for n in (1, 2, 4)]
        assert {"1024,none", "2048,none", "4096,none"} <= results["results"]["gatedeval_ruler_vt"].keys()
        assert results["n-samples"]["gatedeval_ruler_vt"] == {"original": 50, "effective": rows}
        assert len(results["samples"]["gatedeval_ruler_vt"]) == 3 * rows


def test_lm_eval_refuses_a_length_that_is_too_small_for_the_task(shared: Path) -> None:
    from tasks.ruler.lmeval import glue

    facts = {"tokenizer": str(shared / "oracles" / "ruler" / "tokenizer_bpe4k"), "data": str(shared / "data")}
    with pytest.raises(GatedevalError, match="length"):
        glue._dataset("qa_2", max_seq_lengths=[4096, 512], **facts)
