"""Scores equal upstream's on real predictions; references are read right or refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from harness.types import GatedevalError
from tasks.ruler import TASKS, score
from tasks.ruler.scoring import average, clean, parse_references, read_predictions, score_predictions, task_name


def test_qa_takes_the_best_reference() -> None:
    assert score("qa_1", ["France", "in France", "Normandy, France", "France"], " France.") == 1.0
    references = ["10th and 11th centuries", "in the 10th and 11th centuries"]
    assert score("qa_1", references, "10th and 11th centuries") == 1.0
    assert score("qa_2", ["yes"], "No.") == 0.0


def test_others_take_the_share() -> None:
    assert score("niah_multivalue", ["11", "22", "33", "44"], "11, 33 and 44") == 0.75
    assert score("vt", ["ABCDE", "FGHIJ"], "abcde") == 0.5, "letter case does not count"


def test_control_characters_become_newlines() -> None:
    assert clean("\x00 a\x07b\t\n") == "a\nb"
    assert score("niah_single_1", ["ab"], "a\x07b") == 0.0, "never removed: that would make a word of two"
    assert score("niah_single_1", ["a\nb"], "a\x07b") == 1.0


def test_real_predictions(shared: Path) -> None:
    folder = shared / "data" / "ruler_preds"
    stated = json.loads(next(folder.glob("*metrics.json")).read_text())
    scores = score_predictions(read_predictions(next(folder.glob("*.csv.gz"))))
    assert {s.task: round(s.score, 2) for s in scores} == {t: v["string_match"] for t, v in stated.items()}
    assert [s.task for s in scores] == list(TASKS)
    assert all(s.samples == 500 for s in scores)
    assert round(average(scores) or 0, 2) == 81.33
    assert average(scores[:-1]) is None, "a missing task blocks the average"


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("['a' 'b c'\n 'd']", ["a", "b c", "d"]),
        ("['a', 'b']", ["a", "b"]),
        ('["Sant\'Eufemia." "a"]', ["Sant'Eufemia.", "a"]),
        ("['\"We\\'ll\" x']", ['"We\'ll" x']),
        ('["a", "b"]', ["a", "b"]),
        ("array(['a', 'b'], dtype=object)", ["a", "b"]),
        ("['Enrique P\u00e9rez' 'x']", ["Enrique P\u00e9rez", "x"]),
        ("France", ["France"]),
        ("['8090293']", ["8090293"]),
        ("[8090293]", ["8090293"]),
    ],
)
def test_printed_lists(printed: str, expected: list[str]) -> None:
    assert parse_references(printed, "here") == expected


@pytest.mark.parametrize(
    "printed", ["['a''b']", "['a' ... 'b']", "['a' b]", "[]", "", "a, b", "['a", "[nan]", "{'a'}, 1", "[[1]]"]
)
def test_what_cannot_be_read_is_refused(printed: str) -> None:
    with pytest.raises(GatedevalError, match="here"):
        parse_references(printed, "here")


def test_names_of_other_harnesses() -> None:
    assert [task_name(n) for n in ("ruler_qa_squad", "gatedeval_ruler_qa_2", "ruler_vt", "cwe")] == [
        "qa_1",
        "qa_2",
        "vt",
        "cwe",
    ]
    with pytest.raises(GatedevalError, match="no task 'niah'"):
        task_name("niah")
    with pytest.raises(GatedevalError, match="at least one"):
        score("vt", [], "x")


def test_prediction_files(tmp_path: Path) -> None:
    file = tmp_path / "qa_1.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"outputs": ["a", "b"], "pred": "b"}\n\n{"outputs": ["a"], "pred": ""}\n'))
    (found,) = score_predictions(read_predictions(file))
    assert (found.task, found.score, found.samples, found.empty) == ("qa_1", 50.0, 2, 1)
    for line, message in [
        ('{"outputs": ["a"]}', "no prediction"),
        ('{"pred": "a"}', "no references"),
        ("{", "not JSON"),
    ]:
        bad = tmp_path / "vt.jsonl"
        bad.write_text(f"{line}\n")
        with pytest.raises(GatedevalError, match=f"line 1: .*{message}"):
            list(read_predictions(bad))
    all_empty = tmp_path / "cwe.csv"
    all_empty.write_text('references,prediction\n"[""a""]",\n')
    assert average(score_predictions(read_predictions(all_empty))) is None


@pytest.mark.parametrize(
    ("references", "message"),
    [
        ('"abc"', "references must be a list of strings, got the string 'abc'"),
        ('[""]', "references must be a list of strings that are not empty"),
        ('["a", " "]', "references must be a list of strings that are not empty"),
        ("[]", "references must be a list of strings"),
    ],
)
def test_references_that_would_score_anything_are_refused_with_their_line(
    tmp_path: Path, references: str, message: str
) -> None:
    file = tmp_path / "vt.jsonl"
    file.write_text(
        f'{{"references": ["x"], "prediction": "x"}}\n{{"references": {references}, "prediction": "abc"}}\n'
    )
    with pytest.raises(GatedevalError, match="line 2") as raised:
        list(read_predictions(file))
    assert message in str(raised.value)


def test_a_row_of_another_task_than_the_one_asked_for_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    file.write_text('{"task": "ruler_vt", "references": ["x"], "prediction": "x"}\n' * 2)
    assert {row.task for row in read_predictions(file, "vt")} == {"vt"}, "the same task under another name"
    with pytest.raises(GatedevalError, match=r"line 1: the row is of task 'ruler_vt', not 'cwe'; leave --task out"):
        list(read_predictions(file, "cwe"))
