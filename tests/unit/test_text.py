"""Plain text in aligned columns."""

from __future__ import annotations

from harness.text import align, width


def test_columns_line_up_also_with_wide_characters() -> None:
    rows = [["model", "n"], ["模型", "12"], ["e\u0301a", "3"]]
    lines = align(rows, right=[1], rule=True)
    assert lines == ["model   n", "-----  --", "模型   12", "e\u0301a      3"]
    assert {width(line) for line in lines} == {9}


def test_no_line_ends_in_spaces_and_short_rows_end_early() -> None:
    assert align([["a", "bb", "c"], ["aaa"], ["a", ""]]) == ["a    bb  c", "aaa", "a"]
    assert align([]) == []
