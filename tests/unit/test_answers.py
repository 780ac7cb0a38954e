"""Answers that are empty, all the same, cut or tied are told beneath the table, by a rule that chance does not meet."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.export import export_run
from harness.store import Store
from harness.tables import lengths_table, table5
from harness.tables.answers import answer_counts
from harness.tables.compare import compare
from harness.types import Cell, GatedevalError, Sample
from tests.support.sample_runs import config, sample, write_run


def caption_of(path: Path, answers: list[tuple[str, str]], *, finish: str = "stop", **extra: object) -> str:
    """The caption of a run with one cell; `answers`: (reference, response) of each sample."""
    cell = Cell("m", "native", "ruler", "vt", 4096)
    with Store.open(path, {}, cells={cell: len(answers)}) as store:
        for i, (reference, response) in enumerate(answers):
            given: Sample = sample(i, {"score": 0.0}, finish_reason=finish, **extra)
            store.append(cell, replace(given, references=[reference], response=response))
        return "\n".join(table5(store).caption)


def test_empty_answers_everywhere_are_told_beneath_the_table(tmp_path: Path) -> None:
    """What NaN in a weight gives: no text at all, and a score of 0 from a run that is complete."""
    text = caption_of(tmp_path / "r", [(str(i), " \n") for i in range(20)])
    assert (
        "Empty answers, more than a rate of 1% explains (binomial test, p < 0.001): m / native / vt at 4096 100%"
        in text
    )
    assert "The same answer" not in text, "an empty answer is counted once"


@pytest.mark.parametrize(("empty", "told"), [(0, False), (1, False), (3, False), (6, True)])
def test_a_few_empty_answers_of_a_hundred_may_be_chance(tmp_path: Path, empty: int, told: bool) -> None:
    text = caption_of(tmp_path / "r", [(str(i), "" if i < empty else f"answer {i}") for i in range(100)])
    assert ("Empty answers" in text) is told


def test_identical_answers_everywhere_are_told_beneath_the_table(tmp_path: Path) -> None:
    """What a zeroed output projection gives: one text for every prompt; on multiple choice one option for all."""
    words = "The same answer to at least 90% of samples whose references differ more than that"
    assert words in caption_of(tmp_path / "text", [(str(i), "!!!!") for i in range(20)])
    four = [(str(i % 4), "2") for i in range(100)]
    assert f"{words} (binomial test, p < 0.001): m / native / vt at 4096 100%" in caption_of(tmp_path / "choice", four)


def test_equal_answers_to_equal_references_are_right_and_not_told(tmp_path: Path) -> None:
    assert "The same answer" not in caption_of(tmp_path / "all", [("yes", "yes")] * 50)
    assert "The same answer" not in caption_of(
        tmp_path / "most", [("yes" if i < 45 else "no", "yes") for i in range(50)]
    )
    biased = [(str(i % 4), "2" if i % 5 else "1") for i in range(100)]
    assert "The same answer" not in caption_of(tmp_path / "biased", biased), "eighty of a hundred is a preference"
    assert "The same answer" not in caption_of(tmp_path / "two", [("a", "x"), ("b", "x")]), "two samples show nothing"


def test_exact_ties_of_option_scores_are_counted_per_cell(tmp_path: Path) -> None:
    """16-bit logits have steps of 0.125 at 16 to 32: equal scores go to the first option, and the table says so."""
    cell = Cell("m", "native", "mmlu", "anatomy")
    scores = [[-1.0, -2.0, -3.0, -4.0], [-1.0, -1.0, -3.0, -4.0], [-1.0, -2.0, -2.0, -4.0], [-1.5] * 4]
    with Store.open(tmp_path / "r", {}, cells={cell: 4}) as store:
        for i, logprobs in enumerate(scores):
            store.append(cell, sample(i, {"acc": 1.0}, finish_reason="choose", logprobs=logprobs))
        assert answer_counts(store.scores(cell)).tied == 2, "a tie below the highest score decides nothing"
        text = "\n".join(table5(store).caption)
    assert "shared exactly by two or more options" in text
    assert "m / native / anatomy 2 of 4." in text


def test_ties_of_many_subjects_are_summed(tmp_path: Path) -> None:
    cells: dict[Cell, int | None] = {Cell("m", "native", "mmlu", f"subject_{i}"): 2 for i in range(9)}
    with Store.open(tmp_path / "r", {}, cells=cells) as store:
        for cell in cells:
            for i in range(2):
                store.append(cell, sample(i, {"acc": 1.0}, finish_reason="choose", logprobs=[-1.0, -1.0 - i]))
        text = "\n".join(table5(store).caption)
    assert "m / native / mmlu 9 of 18." in text


def test_a_sound_run_has_no_line_about_its_answers(tmp_path: Path) -> None:
    text = caption_of(tmp_path / "r", [(str(i), str(i)) for i in range(30)])
    assert not any(word in text for word in ("Empty", "same answer", "shared exactly", "token budget"))


# ------------------------------------------------------------------------------------------- summary figures


@pytest.fixture(scope="module")
def six_lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One task at six lengths: 96, 95, 94, 93, 90 and 80 of 100 samples right, which is Table 3 of RULER's paper."""
    path = tmp_path_factory.mktemp("runs") / "six"
    right = dict(zip([4096 << i for i in range(6)], [96, 95, 94, 93, 90, 80], strict=True))
    cells: dict[Cell, int | None] = {Cell("m", "native", "ruler", "vt", n): 100 for n in right}
    with Store.open(path, {}, cells=cells) as store:
        for cell in cells:
            for i in range(100):
                store.append(cell, sample(i, {"score": float(i < right[cell.length])}))
        store.finish()
    return path


def test_rulers_summary_figures_are_exported(six_lengths: Path) -> None:
    (row,) = csv.DictReader(io.StringIO(export_run(six_lengths, "lengths", "csv")))
    assert [round(float(row[key]), 2) for key in ("average", "wavg_inc", "wavg_dec")] == [91.33, 89.05, 93.62]
    assert (row["effective_length"], row["unbroken_length"]) == ("65536", "65536")
    (cells,) = json.loads(export_run(six_lengths, "lengths", "json"))["cells"]
    assert cells["effective_length"] == 65536
    text = export_run(six_lengths, "lengths")
    for number in ("91.33", "89.05", "93.62", "4K to 128K (6)", "64K"):
        assert number in text
    for fmt in ("latex", "html"):
        assert "89.05" in export_run(six_lengths, "lengths", fmt)


def test_the_lengths_table_of_a_benchmark_without_lengths_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(models=("a",), tasks=("vt",)), n=4)
    with pytest.raises(GatedevalError, match="scored over length; of these: ruler"):
        export_run(run, "lengths", "md", benchmarks="mmlu")


def test_a_missing_length_blocks_the_summary_figures(six_lengths: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(models=("a", "b"), tasks=("vt",)), n=4)
    (run / "samples" / f"{Cell('a', '8k', 'ruler', 'vt', 8192).key}.jsonl").unlink()
    rows = list(csv.DictReader(io.StringIO(export_run(run, "lengths", "csv"))))
    assert (rows[0]["model"], rows[0]["average"], rows[0]["height"]) == ("a", "", "")
    assert float(rows[1]["average"]) >= 0
    assert [e.number for e in lengths_table(Store.read(run)).rows[0][3:7]] == ["–"] * 4  # noqa: RUF001
    for file in (run / "samples").glob("a__8k__ruler__*"):
        file.unlink()
    assert [e.number for e in lengths_table(Store.read(run)).rows[0][7:]] == ["–"] * 2  # noqa: RUF001


def test_compare_has_the_same_summary_figures(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(tasks=("vt",)), n=10)
    rows = list(csv.DictReader(io.StringIO(export_run(run, "lengths", "csv"))))
    text = compare(run)
    for row in rows:
        assert f"average {float(row['average']):.2f}, wAvg (inc) {float(row['wavg_inc']):.2f}" in text
