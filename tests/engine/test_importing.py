"""A baseline measured elsewhere (lm-eval on plain torch) beside a run of ours in vLLM: paired where prompts match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.exchange.importing import import_results
from harness.store import Store, merge
from harness.tables import delta_table, table5
from harness.tables.compare import compare
from harness.types import Cell, GatedevalError
from tests.support import ROOT
from tests.support.formats import assert_valid
from tests.support.in_process import gatedeval

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MODELS = ROOT / "tasks/demo/models"
CONFIG = f"""
name: ours
models: [{{label: ours, path: {MODELS / "baseline/long"}, dtype: float32}}]
contexts: [{{label: native, max_length: 2048}}]
benchmarks:
  - {{ruler: [niah_single_1], lengths: [512], samples: 2, profile: fair}}
  - {{lm_eval: demo_choice, samples: 8}}
  - {{lm_eval: demo_words, samples: 8}}
engine: {{enforce_eager: true}}
"""
RULER = "gatedeval_ruler_niah_single_1"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ours")
    (root / "ours.yaml").write_text(CONFIG)
    done = gatedeval("run", "ours.yaml", "--quiet", cwd=root)
    assert done.returncode == 0, done.stderr
    return root / "results" / "ours"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lm-eval's own files of the same checkpoint, computed by plain torch."""
    from lm_eval.tasks import TaskManager

    from tests.support.elsewhere import PlainTorch, write_lm_eval_results

    metadata = {
        "max_seq_lengths": [512], "samples": 2, "profile": "fair", "tokenizer": str(MODELS / "baseline/long"),
    }  # fmt: skip
    include = [str(ROOT / "tasks/demo"), str(ROOT / "tasks/ruler/lmeval")]
    manager = TaskManager(include_defaults=False, include_path=include, metadata=metadata)
    tasks = ["demo_choice", "demo_words", RULER]
    folder = tmp_path_factory.mktemp("elsewhere") / "out"
    return write_lm_eval_results(
        PlainTorch(MODELS / "baseline/long"), tasks, folder, limit=8, task_manager=manager, metadata=metadata
    )


def test_a_fresh_run_is_valid_by_its_schemas(ours: Path) -> None:
    assert_valid(ours)


def test_the_same_checkpoint_elsewhere_answers_as_ours_does_on_every_prompt(
    ours: Path, elsewhere: Path, tmp_path: Path
) -> None:
    theirs = Store.read(import_results(elsewhere, tmp_path / "theirs", model="theirs", like=ours))
    store = Store.read(ours)
    assert theirs.manifest["imported"]["matched"] == theirs.manifest["imported"]["samples"] == 8 + 8 + 2
    for cell in store.cells:
        twin = Cell("theirs", "native", cell.benchmark, cell.task, cell.length)
        both = {s.id: s for s in theirs.samples(twin)}
        assert both.keys() == {s.id for s in store.samples(cell)}
        for s in store.samples(cell):
            there = both[s.id]
            assert there.extra["prompt_hash"] == s.extra["prompt_hash"]
            assert (there.prompt_tokens, there.references) == (s.prompt_tokens, s.references)
            assert (there.response.strip(), there.scores) == (s.response.strip(), s.scores)
            if "logprobs" in s.extra:
                assert there.extra["options"] == s.extra["options"]
                assert there.extra["logprobs"] == pytest.approx(s.extra["logprobs"], abs=1e-3)


def test_a_baseline_from_elsewhere_is_compared_with_ours(ours: Path, elsewhere: Path, tmp_path: Path) -> None:
    import_results(elsewhere, tmp_path / "theirs", model="theirs", like=ours)
    both = Store.read(merge(ours, tmp_path / "theirs", tmp_path / "both"))
    frame = delta_table(both, "ours", "theirs").frame
    assert sorted(frame.samples) == [2, 8, 8]
    assert (frame.difference == 0).all()
    assert {row[0].number for row in table5(both).rows} == {"ours", "theirs"}
    assert "theirs" in compare(tmp_path / "both", "ours", "theirs")


def test_samples_with_other_prompts_are_never_paired(ours: Path, elsewhere: Path, tmp_path: Path) -> None:
    """One prompt is changed by a letter: its answer stays in the imported run, and out of every comparison."""
    changed = tmp_path / "changed"
    [folder] = [p for p in elsewhere.iterdir() if p.is_dir()]
    changed.mkdir()
    for file in folder.iterdir():
        text = file.read_text()
        if file.name.startswith("samples_demo_words"):
            lines = [json.loads(line) for line in text.splitlines()]
            for line in (line for line in lines if line["doc_id"] == 5):
                line["arguments"]["gen_args_0"]["arg_0"] += "?"
            text = "".join(json.dumps(line) + "\n" for line in lines)
        (changed / file.name).write_text(text)
    theirs = Store.read(import_results(changed, tmp_path / "theirs", model="theirs", like=ours))
    words = Cell("theirs", "native", "demo_words", "demo_words")
    assert {s.id for s in theirs.samples(words)} == {str(i) for i in range(8) if i != 5} | {"imported-5"}
    assert any("1 of 8 samples of demo_words" in line for line in theirs.manifest["caption"])
    both = Store.read(merge(ours, tmp_path / "theirs", tmp_path / "both"))
    frame = delta_table(both, "ours", "theirs").frame
    assert set(frame[frame.benchmark == "demo_words"].samples) == {7}


def test_another_answer_budget_is_another_question(ours: Path, elsewhere: Path, tmp_path: Path) -> None:
    [folder] = [p for p in elsewhere.iterdir() if p.is_dir()]
    for file in folder.iterdir():
        if not file.name.startswith(("samples_demo_choice", f"samples_{RULER}")):
            text = file.read_text().replace('"max_gen_toks": 32', '"max_gen_toks": 31')
            (tmp_path / file.name).write_text(text)
    with pytest.raises(GatedevalError, match="no prompt is the same to the token"):
        import_results(tmp_path, tmp_path / "theirs", model="theirs", like=ours)


def test_nvidias_prediction_files_are_paired_by_their_prompts(ours: Path, elsewhere: Path, tmp_path: Path) -> None:
    """NVIDIA's pred/TASK.jsonl of the same prompts, in another order."""
    [file] = elsewhere.glob(f"*/samples_{RULER}_*.jsonl")
    rows: list[dict[str, Any]] = []
    for line in file.read_text().splitlines():
        s = json.loads(line)
        prompt = s["arguments"]["gen_args_0"]["arg_0"]
        rows.append({"index": 7, "pred": s["resps"][0][0], "input": prompt, "outputs": s["doc"]["outputs"]})
    folder = tmp_path / "512" / "pred"
    folder.mkdir(parents=True)
    (folder / "niah_single_1.jsonl").write_text("".join(json.dumps(r) + "\n" for r in reversed(rows)))
    (folder / "summary.csv").write_text("Tasks,niah_single_1\n")
    theirs = Store.read(import_results(folder.parent, tmp_path / "theirs", model="theirs", like=ours))
    cell = Cell("theirs", "native", "ruler", "niah_single_1", 512)
    assert list(theirs.cells) == [cell]
    expected = list(Store.read(ours).samples(Cell("ours", "native", "ruler", "niah_single_1", 512)))
    got = {s.id: s for s in theirs.samples(cell)}
    for s in expected:
        assert (got[s.id].references, got[s.id].scores) == (s.references, s.scores)
