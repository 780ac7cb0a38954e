"""lm-eval's rolling log-likelihood tasks: windows, numbers of one text and of all, what is stored and shown."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.benchmarks.lm_tasks import LmEvalTask, load_tasks
from harness.benchmarks.rolling import ROLLING, combined, of_text
from harness.config import ContextSetting, from_dict
from harness.engine.encoding import Encoder, encode_sample
from harness.engine.requests import Choice, Question, SampleRequest
from harness.engine.windows import text_windows
from harness.export import export_run
from harness.models.checkpoint import inspect
from harness.models.tokenizer import Tokenizer
from harness.run.plan import build
from harness.store import Store
from harness.tables.comparisons import lines
from harness.types import Cell, GatedevalError
from tests.support import ROOT
from tests.support.sample_runs import sample

MODEL = ROOT / "tasks/demo/models/baseline/long"


def test_windows_are_lm_eval_s() -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    chance = random.Random(1)
    for length in (1, 2, 3, 7, 8, 9, 15, 16, 17, 100):
        for longest in (1, 2, 5, 8, 99, 100, 101):
            ids = [chance.randrange(50) for _ in range(length)]
            theirs = [
                (tuple(a), tuple(b))
                for a, b in map(make_disjoint_window, get_rolling_token_windows(ids, 99, longest, 1))
            ]
            ours = text_windows(ids, 99, longest)
            assert list(ours) == theirs, (length, longest)
            assert [i for _, predicted in ours for i in predicted] == ids
            assert all(len(a) + len(b) - 1 <= longest for a, b in ours)
    assert text_windows([], 99, 4) == ()
    with pytest.raises(ValueError, match="at least 1 token"):
        text_windows([1], 99, 0)


def test_numbers_of_several_texts_are_lm_eval_s() -> None:
    from lm_eval.api.metrics import bits_per_byte, weighted_perplexity

    items = [(-120.5, 31), (-4.25, 2), (-1000.0, 280)]
    for metric in ROLLING:
        own = [of_text(metric, value, weight) for value, weight in items]
        expected = bits_per_byte(items) if metric == "bits_per_byte" else weighted_perplexity(items)
        assert combined(metric, own, [w for _, w in items]) == pytest.approx(expected, rel=1e-12)
        assert combined(metric, own, [w for _, w in items]) != pytest.approx(np.mean(own), rel=1e-3)
    assert math.isnan(combined("word_perplexity", [], []))


def _task(**changes: Any) -> LmEvalTask:
    return load_tasks("demo_prose", None)["demo_prose"]


def test_a_text_becomes_windows_that_fill_the_context() -> None:
    tokenizer = Tokenizer(MODEL)
    [(_, doc)] = list(_task().documents(1))
    request, instances = _task().request(0, doc, None)
    assert (request.text, request.prompt, request.options) == (doc["text"], None, ())
    question = encode_sample(request, tokenizer, max_length=33)
    assert isinstance(question, Question)
    assert question.rolling
    assert [i for _, predicted in question.options for i in predicted] == tokenizer.encode(doc["text"], special=False)
    assert max(len(a) + len(b) for a, b in question.options) == 33
    assert question.options[0][0] == (tokenizer.start_id,)
    scores = _task().score(doc, instances, Choice("k", (-100.0, -50.5), (False, False), 0.0), "")
    words, size = len(doc["text"].split()), len(doc["text"].encode())
    assert scores == {
        "word_perplexity": pytest.approx(math.exp(150.5 / words)),
        "byte_perplexity": pytest.approx(math.exp(150.5 / size)),
        "bits_per_byte": pytest.approx(150.5 / size / math.log(2)),
    }
    assert _task().extra(doc, request) == {
        "weights": {"word_perplexity": words, "byte_perplexity": size, "bits_per_byte": size}
    }


def test_wikitext_is_lm_eval_s_own_with_its_own_words_and_bytes() -> None:
    """Its text is detokenized; its words and bytes are those of the raw page."""
    page = " = A village = \n \n The old @-@ fashioned house , which was warm , cost 1 @,@ 500 pounds . \n"

    def local(**_: Any) -> Any:
        from datasets import Dataset, DatasetDict

        rows = Dataset.from_list([{"page": page}])
        return DatasetDict({"train": rows, "validation": rows, "test": rows})

    task = load_tasks("wikitext", None, local)["wikitext"]
    [(number, doc)] = list(task.documents(None))
    request, instances = task.request(number, doc, None)
    assert request.text is not None
    assert "old-fashioned house, which" in request.text
    words, size = len(re.split(r"\s+", page)), len(page.encode())
    weights = {"word_perplexity": words, "byte_perplexity": size, "bits_per_byte": size}
    assert task.extra(doc, request) == {"weights": weights}
    scores = task.score(doc, instances, Choice("k", (-80.0, -20.0), (False, False), 0.0), "")
    assert scores == {m: pytest.approx(of_text(m, -100.0, w)) for m, w in weights.items()}


def test_texts_that_have_no_number_are_refused() -> None:
    tokenizer = Tokenizer(MODEL)
    with pytest.raises(GatedevalError, match="t, document 3: its text is empty"):
        encode_sample(SampleRequest(id="3", label="t, document 3", text=""), tokenizer, max_length=64)
    with pytest.raises(GatedevalError, match="no room for a window"):
        encode_sample(SampleRequest(id="3", label="t", text="a"), tokenizer, max_length=1)
    [(_, doc)] = list(_task().documents(1))
    _, instances = _task().request(0, doc, None)
    with pytest.raises(GatedevalError, match="word_perplexity is beyond the largest number"):
        _task().score(doc, instances, Choice("k", (-1e6,), (False,), 0.0), "")


def test_a_task_whose_numbers_gatedeval_cannot_combine_is_refused() -> None:
    class Odd:
        OUTPUT_TYPE = "loglikelihood_rolling"

        def aggregation(self) -> dict[str, Any]:
            return {"word_perplexity": None, "my_metric": None}

    with pytest.raises(GatedevalError, match="'odd': gatedeval does not know how to combine the my_metric"):
        LmEvalTask("odd", Odd())


def test_the_same_text_under_another_limit_is_another_request() -> None:
    checkpoint, tokenizer = inspect(MODEL), Tokenizer(MODEL)
    request = SampleRequest(id="0", label="t", text="The house was good but warm. " * 9)
    setting = ContextSetting(label="c", max_length=2048)
    hashes = {
        n: (e := Encoder(tokenizer, checkpoint, setting, n, "float32")).hashes(e.encode(request), "f") for n in (16, 32)
    }
    assert hashes[16] != hashes[32]


# ------------------------------------------------------------------------------------------------- stored and shown


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two models on three texts; the words of each text differ, so that no mean over texts is right by chance."""
    config = {
        "models": [{"label": m, "path": m} for m in ("a", "b")],
        "contexts": [{"label": "native"}],
        "benchmarks": [{"lm_eval": "demo_prose", "samples": 3}],
    }
    cells: dict[Cell, int | None] = {Cell(m, "native", "demo_prose", "demo_prose"): 3 for m in "ab"}
    with Store.open(tmp_path, {"config": config, "models": {}}, cells=cells) as store:
        for cell in cells:
            for i, (value, words) in enumerate([(-30.0, 10), (-5.0, 1), (-200.0, 100)]):
                total = value if cell.model == "a" else 0.9 * value
                weights = {"word_perplexity": words, "byte_perplexity": 5 * words, "bits_per_byte": 5 * words}
                scores = {m: of_text(m, total, w) for m, w in weights.items()}
                store.append(cell, sample(i, scores, finish_reason="scored", weights=weights, windows=[total]))
        store.finish()
    return tmp_path


def test_a_cell_s_number_is_that_of_all_texts_together(run: Path) -> None:
    store = Store.read(run)
    a, b = store.cells
    assert store.summary(a).score == pytest.approx(math.exp(235 / 111))
    assert store.scores(a).mean("bits_per_byte") == pytest.approx(235 / 555 / math.log(2))
    assert store.summary(b).score == pytest.approx(math.exp(0.9 * 235 / 111))
    text = export_run(run)
    assert f"{math.exp(235 / 111):.2f}" in text
    assert f"**{math.exp(0.9 * 235 / 111):.2f}**" in text, "the lower one is the better one"
    assert f"{235 / 555 / math.log(2):.2f}" in text, "a number below 1 is no percentage"
    assert "of all texts together" in " ".join(text.split())
    tasks = export_run(run, "tasks")
    assert f"**{math.exp(0.9 * 235 / 111):.2f}**" in tasks
    theirs = json.loads(export_run(run, "lm_eval", "json", model="a", context="native"))["results"]["demo_prose"]
    assert theirs["word_perplexity,none"] == pytest.approx(math.exp(235 / 111))
    assert theirs["bits_per_byte,none"] == pytest.approx(235 / 555 / math.log(2))
    assert theirs["word_perplexity_stderr,none"] == "N/A"


def test_perplexities_are_not_tested_text_by_text(run: Path) -> None:
    from harness.report import write_report

    found, _ = lines(Store.read(run), "a", "b")
    assert found == []
    assert "Not tested (3): a / native / demo_prose: word_perplexity is one number" in " ".join(export_run(run).split())
    assert "word_perplexity" in write_report(run, run / "r.html").read_text()


def test_a_goal_in_points_is_refused_for_perplexities(tmp_path: Path) -> None:
    """`plan` said "until ±5 points", and the run drew every text."""
    facts: dict[str, Any] = {
        "name": "r",
        "results": str(tmp_path),
        "models": [{"label": "m", "path": str(MODEL)}],
        "contexts": [{"label": "native"}],
        "benchmarks": [{"lm_eval": "demo_prose", "samples": {"precision": 5.0, "at_least": 10}}],
        "data": str(ROOT / "tasks" / "demo" / "data"),
    }
    [refusal] = build(from_dict(facts)).refusals
    assert "demo_prose: its samples have a goal in points, and it reports perplexities; give a number" in refusal
    facts["benchmarks"] = [{"lm_eval": "demo_prose", "samples": 3}]
    assert build(from_dict(facts)).refusals == []
