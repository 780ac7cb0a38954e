"""Results of lm-eval, NVIDIA's RULER and kvpress as runs: what is read, what is refused, what is never paired."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.commands.main import cli
from harness.exchange.importing import import_results
from harness.store import Store, merge
from harness.tables import cells_frame, delta_table
from harness.types import Cell, GatedevalError
from tests.support.sample_runs import config, write_run

DATE, LATER = "2026-11-30T10-20-30.123456", "2026-12-01T10-20-30.5"


def generated(doc: int, scores: dict[str, float], filter: str = "none", **more: Any) -> dict[str, Any]:
    """A line of lm-eval for a generated answer; `scores`: metric -> value."""
    return {
        "doc_id": doc,
        "doc": {"question": f"q{doc}"},
        "target": "7",
        "arguments": {"gen_args_0": {"arg_0": f"Question {doc}:", "arg_1": {"until": ["\n"], "max_gen_toks": 16}}},
        "resps": [["it is 7"]],
        "filtered_resps": ["7"],
        "filter": filter,
        "metrics": list(scores),
        **scores,
        **more,
    }


def chosen(doc: int, logprobs: Iterable[float], target: int) -> dict[str, Any]:
    """A line of lm-eval for a question with options; it writes log-likelihoods as text."""
    logprobs = list(logprobs)
    right = float(max(range(len(logprobs)), key=logprobs.__getitem__) == target)
    return {
        "doc_id": doc,
        "doc": {},
        "target": str(target),
        "arguments": {f"gen_args_{i}": {"arg_0": f"Q{doc}", "arg_1": f" {'ABCD'[i]}"} for i in range(len(logprobs))},
        "resps": [[[str(v), "False"]] for v in logprobs],
        "filter": "none",
        "metrics": ["acc"],
        "acc": right,
    }


def write_lm_eval(
    folder: Path, tasks: dict[str, list[dict[str, Any]]], results: dict[str, Any] | None = None, date: str = DATE
) -> Path:
    """lm-eval's files of one evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, rows in tasks.items():
        (folder / f"samples_{task}_{date}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    content = {"results": results or {}, "configs": dict.fromkeys(tasks), "config": {"model": "hf"}, "git_hash": "abc"}
    (folder / f"results_{date}.json").write_text(json.dumps(content))
    return folder


# ------------------------------------------------------------------------------------------------- lm-eval


def test_lm_evals_answers_and_scores_are_read(tmp_path: Path) -> None:
    both = [
        generated(d, {"exact_match": float(d == 1 or name == "flexible-extract")}, name)
        for name in ("strict-match", "flexible-extract")
        for d in (1, 0)
    ]
    folder = write_lm_eval(
        tmp_path / "out" / "org__model",
        {
            "gsm8k": both,
            "mmlu_anatomy": [chosen(0, (-3.0, -1.0, -2.0, -9.5), 1), chosen(1, (-1.0, -2.0, -3.0, -4.0), 2)],
        },
        {
            "gsm8k": {"exact_match,strict-match": 0.5, "exact_match,flexible-extract": 1.0, "alias": "gsm8k"},
            "mmlu_anatomy": {"acc,none": 0.5},
        },
    )
    store = Store.read(import_results(folder.parent, tmp_path / "run", model="hf model", context="32k"))
    assert list(store.cells) == [Cell("hf model", "32k", "gsm8k", "gsm8k"), Cell("hf model", "32k", "mmlu", "anatomy")]
    words, choices = (list(store.samples(cell)) for cell in store.cells)
    assert [s.scores for s in words] == [
        {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0},
        {"exact_match,strict-match": 1.0, "exact_match,flexible-extract": 1.0},
    ]
    assert (words[0].response, words[0].references) == ("it is 7", ["7"])
    assert [(s.response, s.references, s.scores["acc"]) for s in choices] == [("1", ["1"], 1.0), ("0", ["2"], 0.0)]
    assert choices[0].extra["logprobs"] == [-3.0, -1.0, -2.0, -9.5]
    assert choices[0].extra["options"] == [" A", " B", " C", " D"]
    assert choices[0].finish_reason == "choose"
    assert store.manifest["imported"]["facts"] == {"model": "hf", "git_hash": "abc"}
    assert set(store.manifest["data"]) == {p.name for p in folder.iterdir()}
    frame = cells_frame(store)
    assert list(frame.score) == [50.0, 50.0]


def test_ruler_of_lm_eval_is_scored_as_ruler_scores_it(tmp_path: Path) -> None:
    """The answer "France" has one of four references: lm-eval says 0.25 (a share), RULER says 1."""

    def row(doc: int, length: int, theirs: float) -> dict[str, Any]:
        outputs = ["France", "in France", "Normandy, France", "France."]
        return {
            **generated(doc, {str(length): theirs, "131072": -1.0}),
            "doc": {"outputs": outputs, "max_length": length, "input": "..."},
            "resps": [[" France"]],
        }

    rows = [row(0, 4096, 0.25), row(1, 4096, 1.0), row(2, 8192, 0.25)]
    folder = write_lm_eval(tmp_path / "out", {"ruler_qa_squad": rows})
    store = Store.read(import_results(folder, tmp_path / "run"))
    assert {(c.task, c.length): len(list(store.samples(c))) for c in store.cells} == {
        ("qa_1", 4096): 2,
        ("qa_1", 8192): 1,
    }
    assert all(s.scores == {"score": 1.0, "word_bounded": 1.0} for c in store.cells for s in store.samples(c))
    assert any("qa_squad at 4096" in line and "1 of 2 samples" in line for line in store.manifest["caption"])


def test_an_answer_cut_inside_a_character_is_imported(tmp_path: Path) -> None:
    folder = write_lm_eval(tmp_path / "out", {"words": [generated(0, {"acc": 1.0}, resps=[["a \ud835 42"]])]})
    store = Store.read(import_results(folder, tmp_path / "run"))
    [cell] = store.cells
    assert [s.response for s in store.samples(cell)] == ["a \N{REPLACEMENT CHARACTER} 42"]


def test_files_of_an_older_lm_eval_are_read(tmp_path: Path) -> None:
    """Arguments as lists, and no list of the metrics."""
    rows = [
        {
            "doc_id": d,
            "doc": {},
            "target": "7",
            "arguments": [["Q", {"until": ["\n"]}]],
            "resps": [["7"]],
            "em": 0.5 * d,
        }
        for d in range(3)
    ]
    store = Store.read(import_results(write_lm_eval(tmp_path / "out", {"words": rows}), tmp_path / "run"))
    [cell] = store.cells
    assert [s.scores for s in store.samples(cell)] == [{"em": 0.0}, {"em": 0.5}, {"em": 1.0}]


def test_importing_twice_adds_nothing(tmp_path: Path) -> None:
    folder = write_lm_eval(tmp_path / "out", {"words": [generated(d, {"acc": 1.0}) for d in range(3)]})
    for _ in range(2):
        run = import_results(folder, tmp_path / "run")
        assert [len(f.read_text().splitlines()) for f in (run / "samples").iterdir()] == [3]


def test_several_evaluations_in_one_folder_are_told_apart_by_their_results_file(tmp_path: Path) -> None:
    write_lm_eval(tmp_path / "out", {"words": [generated(0, {"acc": 1.0})]})
    folder = write_lm_eval(tmp_path / "out", {"words": [generated(0, {"acc": 0.0})]}, date=LATER)
    with pytest.raises(GatedevalError, match=rf"2 evaluations \({DATE}, {LATER}\); name the results_DATE.json"):
        import_results(folder, tmp_path / "run")
    result = CliRunner().invoke(cli, ["import", str(folder / f"results_{LATER}.json"), str(tmp_path / "run")])
    assert result.exit_code == 0, result.stderr
    [cell] = (store := Store.read(tmp_path / "run")).cells
    assert [s.scores["acc"] for s in store.samples(cell)] == [0.0]


@pytest.mark.parametrize(
    ("rows", "results", "message"),
    [
        ([generated(0, {"acc": 1.0}), generated(0, {"acc": 1.0})], {}, "line 2: document 0 occurs twice"),
        ([{"text": "x"}], {}, "line 1: not a sample of lm-eval: it has no doc_id, arguments, resps, target"),
        ([["x"]], {}, "line 1: not a sample of lm-eval"),
        ([generated(0, {})], {}, "line 1: task 'words' has no number per document"),
        ([generated(0, {"acc": 1.0}, resps=[[3]])], {}, "line 1: its response is not a text"),
        ([generated(0, {"acc": 1.0}, arguments={})], {}, "line 1: its arguments are not"),
        ([{**chosen(0, (-1.0, -2.0), 0), "resps": [["x"], ["y"]]}], {}, "line 1: 'x' is not a log-likelihood"),
        (
            [generated(d, {"acc": float(d > 0)}) for d in range(4)],
            {"words": {"acc,none": 0.5}},
            r"the mean of its 4 samples is 0.750000 \(acc none\), and the results file beside it says 0.500000",
        ),
        ([], {}, "has no samples"),
    ],
)
def test_what_is_not_lm_evals_is_one_error_with_file_and_line(
    rows: list[Any], results: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_lm_eval(tmp_path / "out", {"words": rows}, results)
    with pytest.raises(GatedevalError, match=message):
        import_results(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_perplexity_is_no_mean_that_is_checked(tmp_path: Path) -> None:
    rows = [generated(d, {"word_perplexity": float(d)}) for d in range(2)]
    folder = write_lm_eval(tmp_path / "out", {"words": rows}, {"words": {"word_perplexity,none": 99.0}})
    store = Store.read(import_results(folder, tmp_path / "run"))
    [cell] = store.cells
    assert store.scores(cell).headline == "word_perplexity"


# ------------------------------------------------------------------------------------------------- kvpress, NVIDIA


def kvpress(folder: Path, answers: list[str], question: str = "What is the magic number?") -> Path:
    folder.mkdir(parents=True)
    lines = ["task,question,answer,predicted_answer"]
    lines += [f"niah_single_1,{question} {i},['{i}{i}{i}'],{answer}" for i, answer in enumerate(answers)]
    (folder / "predictions.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_folder_of_kvpress_is_read_with_its_length_and_its_own_scores(tmp_path: Path) -> None:
    folder = kvpress(tmp_path / "ruler__4096__org--model__knorm__0.50", ["it is 000", "no", "222"])
    (folder / "metrics.json").write_text('{"niah_single_1": {"string_match": 66.67}}')
    store = Store.read(import_results(folder, tmp_path / "run"))
    [cell] = store.cells
    assert (cell.task, cell.length) == ("niah_single_1", 4096)
    assert [s.scores["score"] for s in store.samples(cell)] == [1.0, 0.0, 1.0]
    assert not any("metrics.json" in line for line in store.manifest["caption"])
    (folder / "metrics.json").write_text('{"niah_single_1": {"string_match": 33.33}}')
    store = Store.read(import_results(folder, tmp_path / "other"))
    assert any("66.67 by RULER's scoring; metrics.json beside it says 33.33" in s for s in store.manifest["caption"])


def test_the_real_predictions_of_a_model_have_the_scores_that_kvpress_states(shared: Path, tmp_path: Path) -> None:
    [file] = (shared / "data/ruler_preds").glob("*predictions.csv.gz")
    [stated] = (shared / "data/ruler_preds").glob("*metrics.json")
    folder = tmp_path / "ruler__4096__llama__centrality__0.50"
    folder.mkdir()
    (folder / "predictions.csv.gz").write_bytes(file.read_bytes())
    (folder / "metrics.json").write_bytes(stated.read_bytes())
    store = Store.read(import_results(folder, tmp_path / "run"))
    scores = {c.task: store.summary(c).score for c in store.cells}
    for task, expected in json.loads(stated.read_text()).items():
        assert round(scores[task], 2) == expected["string_match"], task
    assert len(scores) == 13
    assert store.manifest["imported"]["samples"] == 6500
    assert len(store.manifest["caption"]) == 1, "no line about a score that differs"


def test_two_files_of_kvpress_are_compared_where_the_questions_are_the_same(tmp_path: Path) -> None:
    full = kvpress(tmp_path / "ruler__4096__m__none__0", ["000", "111", "222", "333"])
    pressed = kvpress(tmp_path / "ruler__4096__m__knorm__0.5", ["000", "no", "222", "no"])
    other = kvpress(tmp_path / "ruler__4096__m__other__0.5", ["000", "111", "222", "333"], question="Another?")
    for folder, name in ((full, "full"), (pressed, "pressed"), (other, "other")):
        import_results(folder, tmp_path / name, model=name)
    frame = delta_table(
        Store.read(merge(tmp_path / "full", tmp_path / "pressed", tmp_path / "m")), "full", "pressed"
    ).frame
    row = frame.set_index("task").loc["niah_single_1"]
    assert (row.samples, row.difference, row.lost) == (4, -50.0, 2)
    with pytest.raises(GatedevalError, match="asked different things"):
        merge(tmp_path / "full", tmp_path / "other", tmp_path / "n")


# ------------------------------------------------------------------------------------------------- --like


def test_files_without_prompts_are_never_compared_with_a_run(tmp_path: Path) -> None:
    ours = write_run(tmp_path / "ours", config(lengths=(4096,)), n=4)
    folder = kvpress(tmp_path / "ruler__4096__m__none__0", ["000", "111"])
    with pytest.raises(GatedevalError, match="its files do not have the prompts"):
        import_results(folder, tmp_path / "run", like=ours, context="8k")
    import_results(folder, tmp_path / "alone")
    with pytest.raises(GatedevalError, match="no sample in common"):
        merge(ours, tmp_path / "alone", tmp_path / "both")


def test_what_a_run_to_compare_with_must_have(tmp_path: Path) -> None:
    ours = write_run(tmp_path / "ours", config(lengths=(4096,)), n=2)
    folder = write_lm_eval(tmp_path / "out", {"gsm8k": [generated(0, {"acc": 1.0})]})
    for arguments, message in (
        (["--like", str(ours)], "several context settings ('8k', 'YaRN'); name the one"),
        (["--like", str(ours), "--context", "9k"], "no context '9k' in this run"),
        (["--like", str(ours), "--context", "8k", "--model", "gated"], "has a model 'gated' already"),
        (["--like", str(ours), "--context", "8k"], "needs the tokenizer of 'baseline'"),
        (["--like", str(tmp_path / "nowhere")], "no run at"),
    ):
        result = CliRunner().invoke(cli, ["import", str(folder), str(tmp_path / "run"), *arguments])
        assert result.exit_code == 2, arguments
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_a_folder_without_results_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(GatedevalError, match="neither samples of lm-eval"):
        import_results(tmp_path / "empty", tmp_path / "run")
    with pytest.raises(GatedevalError, match="no such file or folder"):
        import_results(tmp_path / "nowhere", tmp_path / "run")
    with pytest.raises(GatedevalError, match="--length must be 0"):
        import_results(tmp_path / "empty", tmp_path / "run", length=-1)
    (tmp_path / f"results_{DATE}.json").write_text("{}")
    with pytest.raises(GatedevalError, match="run lm_eval with --log_samples"):
        import_results(tmp_path / f"results_{DATE}.json", tmp_path / "run")


def test_a_prompt_without_a_finite_score_stays_without_one(tmp_path: Path) -> None:
    folder = write_lm_eval(tmp_path / "out", {"words": [generated(0, {"acc": math.nan}), generated(1, {"acc": 1.0})]})
    store = Store.read(import_results(folder, tmp_path / "run"))
    [cell] = store.cells
    assert math.isnan(store.summary(cell).score), "a cell with a sample that has no score has failed"
