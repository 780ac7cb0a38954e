"""Scores of ours beside the official ones: GSM8k's `normalised`, RULER's `word_bounded`; the official ones stay."""

from __future__ import annotations

import gzip
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.benchmarks.lm_eval import Gsm8k, LmScore
from harness.benchmarks.ruler import RulerScore
from harness.data.folder import DataFolder
from harness.engine.requests import Completion
from harness.export import export_run
from harness.store import Store, import_predictions
from harness.tables import table5, tasks_table
from harness.tables.rows import declared_comparisons
from harness.types import Cell, Sample
from tasks.gsm8k.reading import METRIC, answer_of, normalised_match
from tasks.ruler import TASKS, score, scores
from tests.support.sample_runs import answer, config, table5_cells, write_run

READ = [
    ("The answer is 18...", "18"),
    ("18 dollars, or 3 eggs a day, ...", "18"),
    ("The answer is 18 dollars, or 3 eggs a day, ...", "18"),
    ("It is $\\boxed{9{,}500}$.", "9500"),
    ("9{,}500", "9500"),
    ("9\\,500", "9500"),
    ("9\N{NARROW NO-BREAK SPACE}500 miles", "9500"),
    ("$29.00", "29"),
    ("#### $29.00", "29"),
    ("\N{MINUS SIGN}5", "-5"),
    ("#### \N{MINUS SIGN}5", "-5"),
    ("-$5", "-5"),
    ("$-5", "-5"),
    ("He is left with 10-5", "5"),
    ("**Answer:** 18", "18"),
    ("Answer:\n\n18 eggs", "18"),
    ("The answer to question 1 is 18.", "18"),
    ("The answer is 5 x 4 = 20 apples.", "20"),
    ("She makes 9 * 2 = $<<9*2=18>>18 every day.", "18"),
    ("The pool holds 20 m2", "20"),
    ("The pool holds 20 cm^2", "20"),
    ("3 eggs and 4 muffins leave 9. She makes 18 dollars.", "18"),
    ("#### 18\n\nQuestion: how many are 3 and 4?", "18"),
    ("one, two, 3, 4", "4"),
    ("half of it: .5", "0.5"),
    ("...", None),
    ("I do not know.", None),
]


@pytest.mark.parametrize(("response", "number"), READ)
def test_gsm8k_normalised_reads_what_the_answer_states(response: str, number: str | None) -> None:
    assert answer_of(response) == (None if number is None else Decimal(number))


def test_gsm8k_normalised_agrees_with_upstream_s_labels_of_real_solutions(shared: Path) -> None:
    """1,600 solutions of four models labelled by GSM8k's authors, and 10 answers of a chat model that are all right."""
    rows = DataFolder(shared / "data").gsm8k_rows("test")
    labelled = 0
    with gzip.open(shared / "data/gsm8k/example_model_solutions_first400.jsonl.gz", "rt") as lines:
        for row, line in zip(rows, lines, strict=False):
            for solution in json.loads(line).values():
                if isinstance(solution, dict) and "is_correct" in solution:
                    labelled += 1
                    assert normalised_match(row["answer"], solution["solution"]) == float(solution["is_correct"])
    assert labelled == 1600
    folder = shared / "data" / "gsm8k"
    predictions = (folder / "evalscope_qwen-plus_gsm8k_predictions.jsonl").read_text().splitlines()
    reviews = (folder / "evalscope_qwen-plus_gsm8k_reviews.jsonl").read_text().splitlines()
    for prediction, review in zip(map(json.loads, predictions), map(json.loads, reviews), strict=True):
        text = prediction["model_output"]["choices"][0]["message"]["content"]
        assert normalised_match(review["target"], text) == 1.0


def test_gsm8k_has_lm_eval_s_two_readings_unchanged_and_ours_after_them(shared: Path) -> None:
    data = DataFolder(shared / "data")
    benchmark = Gsm8k(shots=0)
    doc = {"question": "q?", "answer": "So.\n#### 9,500"}
    _, instances = benchmark.lm_task("gsm8k", data).request(0, doc, None)
    got = LmScore(benchmark, "gsm8k", data, doc, instances)(Completion(0, "", 1, "stop", 0.0), "It is 9{,}500...")
    assert list(got.items()) == [("exact_match,strict-match", 0), ("exact_match,flexible-extract", 0), (METRIC, 1)]


def test_ruler_word_bounded_beside_the_official_score() -> None:
    assert scores("qa_2", ["no"], "Not found in the documents") == {"score": 1.0, "word_bounded": 0.0}
    assert scores("qa_2", ["no"], "_No_, they are not.") == {"score": 1.0, "word_bounded": 1.0}
    assert scores("cwe", ["bag", "airbag"], "1. airbag 2. vote") == {"score": 1.0, "word_bounded": 0.5}
    assert scores("niah_single_1", ["123"], "91234, or 123.") == {"score": 1.0, "word_bounded": 1.0}
    assert scores("qa_1", ["$5", "U.S."], "It cost US$5 in the U.S.A.") == {"score": 1.0, "word_bounded": 1.0}
    assert RulerScore("qa_1", ["no"])(Completion(0, "", 1, "stop", 0.0), "nothing") == {"score": 1, "word_bounded": 0}


def test_ruler_word_bounded_is_never_above_the_official_score() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        references = ["".join(rng.choices("ab-. ", k=rng.randint(1, 3))) for _ in range(3)]
        text, task = "".join(rng.choices("abc-. ", k=12)), rng.choice(TASKS)
        both = scores(task, references, text)
        assert both["word_bounded"] <= both["score"] == score(task, references, text)


def rescored(cell: Cell, sample: Sample) -> Sample:
    """The sample with the metrics of ours: equal to the headline, but in RULER's qa_2 and in GSM8k."""
    first = next(iter(sample.scores.values()))
    more: dict[str, float] = {}
    if cell.benchmark == "ruler":
        more = {"word_bounded": 0.0 if cell.task == "qa_2" else first}
    elif cell.benchmark == "gsm8k":
        more = {METRIC: 1.0}
    return Sample(**{**sample.__dict__, "scores": {**sample.scores, **more}})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same answers twice: as an older version scored them, and with the metrics of ours."""
    root = tmp_path_factory.mktemp("runs")
    settings = config(lengths=(4096,))
    old = write_run(root / "old" / "demo", settings)
    cells = table5_cells(settings)
    with Store.open(root / "new" / "demo", {"config": settings, "seed": 42}, cells=cells) as store:
        for cell in cells:
            for i in range(20):
                store.append(cell, rescored(cell, answer(cell, i, 0.5)))
        store.finish()
    return old, root / "new" / "demo"


def test_tables_show_a_metric_of_ours_only_where_the_run_has_it(runs: tuple[Path, Path]) -> None:
    old, new = (Store.read(path) for path in runs)
    assert [c.title for c in table5(old).columns if c.group == "GSM8k"] == ["strict", "flexible"]
    assert [c.title for c in table5(new).columns if c.group == "GSM8k"] == ["strict", "flexible", "normalised"]
    assert any(line.startswith("GSM8k, normalised: ours") for line in table5(new).caption)
    assert not any("ours" in line for line in [*table5(old).caption, *tasks_table(old).caption])
    titles = {str(row[2].text) for row in tasks_table(new).rows}
    assert {t for t in titles if "," in t} == {"qa_2, word-bounded", "gsm8k, normalised"}, "only where it differs"
    assert [row for row in tasks_table(new).rows if "," not in str(row[2].text)] == tasks_table(old).rows
    assert any(line.startswith("RULER, word-bounded: ours") for line in tasks_table(new).caption)


def test_headline_numbers_and_tests_do_not_change_by_a_metric_beside_them(runs: tuple[Path, Path]) -> None:
    def facts(path: Path) -> list[Any]:
        declared = [(c.difference, c.p, c.adjusted, metric) for c, metric in declared_comparisons(Store.read(path))]
        return [declared, (path / "cells.csv").read_text(), export_run(path, "delta", "csv")]

    old, new = map(facts, runs)
    assert old == new


def test_exports_hold_both_scores(runs: tuple[Path, Path]) -> None:
    old, new = runs
    assert "word_bounded=0" in export_run(new, "table5", "csv")
    assert "score:word_bounded" in export_run(new, "samples", "csv").splitlines()[0]
    chosen = {"model": "gated", "context": "8k"}
    before = json.loads(export_run(old, "lm_eval", "json", **chosen))["results"]
    after = json.loads(export_run(new, "lm_eval", "json", **chosen))["results"]
    assert after["ruler_qa_hotpot"]["4096,word_bounded"] == 0.0
    assert after["gsm8k"][METRIC] == 1.0
    assert all(after[task][key] == value for task, row in before.items() for key, value in row.items())


def test_a_run_with_old_and_new_samples_shows_no_number_from_a_part_of_them(tmp_path: Path) -> None:
    settings = config(lengths=(4096,))
    cells = table5_cells(settings)
    with Store.open(tmp_path / "demo", {"config": settings, "seed": 42}, cells=cells) as store:
        for cell in cells:
            for i in range(20):
                sample = answer(cell, i, 0.5)
                store.append(cell, sample if i < 10 else rescored(cell, sample))
        store.finish()
    text = export_run(tmp_path / "demo", "lm_eval", "json", model="gated", context="8k")
    assert METRIC not in text
    assert "NaN" not in text
    store = Store.read(tmp_path / "demo")
    column = [c.title for c in table5(store).columns].index("normalised")
    assert {row[column].number for row in table5(store).rows} == {"\N{EN DASH}"}
    assert not any("word-bounded" in str(row[2].text) for row in tasks_table(store).rows)


def test_imported_predictions_have_both_scores(tmp_path: Path) -> None:
    file = tmp_path / "qa_2.jsonl"
    file.write_text('{"outputs": ["no"], "pred": "Not found"}\n')
    store = Store.read(import_predictions(file, tmp_path / "run"))
    assert [s.scores for cell in store.cells for s in store.samples(cell)] == [{"score": 1.0, "word_bounded": 0.0}]
