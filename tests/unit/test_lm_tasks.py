"""MMLU and GSM8k through lm-eval: prompts to the byte, data from the folder, scoring."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.benchmarks import lm_tasks as lmtasks
from harness.benchmarks.lm_names import is_known, lm_eval_names
from harness.benchmarks.lm_tasks import LmEvalTask, local_task
from harness.data.catalog import MMLU_SUBJECTS
from harness.data.folder import DataFolder
from harness.engine.encoding import generation_request
from harness.engine.requests import Choice, Completion
from harness.types import GatedevalError
from tests.support import ROOT


@pytest.fixture(scope="module")
def data(shared: Path) -> DataFolder:
    return DataFolder(shared / "data")


def score(task: LmEvalTask, question: str, answer: str, response: str) -> dict[str, float]:
    doc = {"question": question, "answer": answer}
    _, instances = task.request(0, doc, None)
    return task.score(doc, instances, Completion(0, response, 1, "stop", 0.0), response)


def test_mmlu_prompt_by_hand(data: DataFolder) -> None:
    task = local_task("mmlu", "anatomy", 5, data)
    number, doc = next(iter(task.documents(None)))
    ask, _ = task.request(number, doc, None)
    rows = [*data.mmlu_rows("dev", "anatomy"), data.mmlu_rows("test", "anatomy")[0]]
    want = "The following are multiple choice questions (with answers) about anatomy.\n\n"
    for i, row in enumerate(rows):
        options = "".join(f"\n{letter}. {choice}" for letter, choice in zip("ABCD", row["choices"], strict=True))
        want += f"{row['question'].strip()}{options}\nAnswer:" + (f" {'ABCD'[row['answer']]}\n\n" if i < 5 else "")
    assert [pair[0] for pair in ask.options] == [want] * 4
    assert [pair[1] for pair in ask.options] == [" A", " B", " C", " D"]
    assert task.reference(doc) == [str(rows[5]["answer"])]


def test_mmlu_has_all_questions_and_the_template_cache_changes_no_byte(data: DataFolder) -> None:
    from lm_eval import utils

    total = 0
    for subject in MMLU_SUBJECTS:
        task = local_task("mmlu", subject, 5, data)
        total += len(task)
        cached = [task.request(n, d, None)[0].options for n, d in task.documents(2)]
        quick = utils.env.from_string
        utils.env.from_string = quick.__wrapped__  # type: ignore[attr-defined]
        try:
            plain = [task.request(n, d, None)[0].options for n, d in task.documents(2)]
        finally:
            utils.env.from_string = quick
        assert cached == plain, subject
    assert total == 14042


def test_mmlu_scores(data: DataFolder) -> None:
    task = local_task("mmlu", "anatomy", 5, data)
    number, doc = next(iter(task.documents(None)))
    _, instances = task.request(number, doc, None)
    gold = int(task.reference(doc)[0])
    for best in range(4):
        logprobs = tuple(-1.0 if i == best else -2.0 for i in range(4))
        scores = task.score(doc, instances, Choice(0, logprobs, (False,) * 4, 0.0), "")
        assert scores == {"acc": float(best == gold)}


def test_gsm8k_reads_numbers_as_people_write_them(data: DataFolder) -> None:
    task = local_task("gsm8k", None, 5, data)
    for response, strict, flexible in (
        ("She has 18 dollars.\n#### 18", 1, 1),
        ("so it is 18 dollars.", 0, 1),
        ("That makes $18", 0, 1),
        ("#### $18", 0, 1),
        ("the answer is 17", 0, 0),
        ("#### 17 and not 18", 0, 1),  # two modes, two readings: hence both are named beside the number
    ):
        got = score(task, "q?", "It is.\n#### 18", response)
        assert got == {"exact_match,strict-match": strict, "exact_match,flexible-extract": flexible}, response
    assert score(task, "q?", "#### 1,800", "#### 1,800")["exact_match,strict-match"] == 1
    assert score(task, "q?", "#### 1800", "altogether 1,800")["exact_match,flexible-extract"] == 1


def test_gsm8k_flexible_agrees_with_upstream_s_labels_of_real_solutions(shared: Path, data: DataFolder) -> None:
    """1,600 real solutions of four models, labelled right or wrong by GSM8k's authors."""
    task = local_task("gsm8k", None, 0, data)
    rows = data.gsm8k_rows("test")
    agree = labelled = 0
    with gzip.open(shared / "data/gsm8k/example_model_solutions_first400.jsonl.gz", "rt") as lines:
        solved = [json.loads(line) for line in lines]
    for row, solutions in zip(rows, solved, strict=False):
        for solution in (v for v in solutions.values() if isinstance(v, dict) and "is_correct" in v):
            got = score(task, row["question"], row["answer"], solution["solution"])
            labelled += 1
            agree += got["exact_match,flexible-extract"] == float(solution["is_correct"])
    assert labelled == 1600
    assert agree >= 1590  # the rest: answers written as 5.00, or with a unit that holds digits


def test_gsm8k_examples_do_not_depend_on_what_ran_before(data: DataFolder) -> None:
    task = local_task("gsm8k", None, 5, data)
    first = [task.request(n, d, None)[0].prompt for n, d in task.documents(5)]
    list(local_task("mmlu", "anatomy", 5, data).documents(3))
    [task.request(n, d, None) for n, d in task.documents(2)]
    assert [task.request(n, d, None)[0].prompt for n, d in task.documents(5)] == first
    assert len({p.split("Question:")[1] for p in first if p}) > 1  # drawn anew for each document


def test_gsm8k_generation_settings(data: DataFolder) -> None:
    task = local_task("gsm8k", None, 5, data)
    number, doc = next(iter(task.documents(1)))
    ask, _ = task.request(number, doc, None)
    assert ask.stop == ("Question:", "</s>", "<|im_end|>")
    assert (ask.max_tokens, ask.temperature) == (256, 0.0)
    assert ask.prompt is not None
    assert ask.prompt.count("Question:") == 6
    assert ask.prompt.endswith("Answer:")


def test_unsupported_generation_settings_are_refused() -> None:
    with pytest.raises(GatedevalError, match="num_beams"):
        generation_request("0", "k", "p", {"until": ["x"], "num_beams": 4})
    assert generation_request("0", "k", "p", {"do_sample": False, "temperature": 0.7}).temperature == 0.0
    assert generation_request("0", "k", "p", {"until": "x", "max_new_tokens": 7}).stop == ("x",)


def test_unknown_task_has_a_suggestion() -> None:
    with pytest.raises(GatedevalError, match=r"no task 'hellaswagg'; did you mean 'hellaswag'"):
        lmtasks.load_tasks("hellaswagg", 0)


def test_task_whose_data_is_on_the_hub_says_so_when_offline(tmp_path: Path) -> None:
    code = "from harness.benchmarks import lm_tasks as lmtasks; lmtasks.load_tasks('hellaswag', 0)"
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "its data cannot be loaded" in done.stderr.splitlines()[-1]


def test_plain_lm_eval_is_served_from_the_folder(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", datasets.load_dataset)  # restored afterwards
    lmtasks.serve_local_data(data)
    assert len(datasets.load_dataset("openai/gsm8k", "main")["test"]) == 1319
    assert datasets.load_dataset("cais/mmlu", "anatomy")["dev"][0]["answer"] in range(4)


def test_lm_eval_can_copy_and_dump_our_tasks(data: DataFolder) -> None:
    for task in (local_task("mmlu", "anatomy", 5, data), local_task("gsm8k", None, 5, data)):
        assert task.task.dump_config()["num_fewshot"] == 5


def test_mistyped_task_in_a_config_is_named_with_its_line_and_near_names_without_loading_lm_eval(
    tmp_path: Path,
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "name: x\nmodels: [{label: a, path: org/name}]\nbenchmarks:\n  - {lm_eval: hellaswagg, shots: 0}\n"
    )
    code = f"""
import sys
from harness.config import load
from harness.types import GatedevalError
from tests.support import ROOT
try:
    load({str(config)!r})
except GatedevalError as error:
    print(error)
assert not {{"lm_eval", "torch", "datasets"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"{config}:4: " in done.stdout, done.stderr
    assert "lm-eval has no task 'hellaswagg'; did you mean 'hellaswag'" in done.stdout


def test_every_name_that_lm_eval_lists_is_known() -> None:
    from lm_eval.tasks import TaskManager

    root = Path(next(iter(__import__("lm_eval").__path__))) / "tasks"
    for folder in ("acpbench", "afrixnli", "mmlu", "hellaswag", "leaderboard"):  # all of them take 15 s
        listed = TaskManager(include_defaults=False, include_path=str(root / folder)).task_index
        assert listed, folder
        assert listed.keys() <= lm_eval_names(), folder
    assert all(is_known(name) for name in ("mmlu", "mmlu_anatomy", "gsm8k", "acp_bool_cot_2shot"))
    assert not is_known("hellaswagg")
