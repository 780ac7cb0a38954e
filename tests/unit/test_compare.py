"""`compare` and `delta`: which models, in which words, and what they say where there is nothing to compare."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.export import export_run
from harness.store import Store
from harness.tables.choices import option_text, reference_text, response_text
from harness.tables.compare import compare
from harness.types import Cell
from tests.support.in_process import gatedeval
from tests.support.sample_runs import config, sample, write_run

SHOT = "Which is a tool?\nA. pear\nB. wolf\nC. drill\nAnswer: C\n\n"
QUESTION = f"{SHOT}Which is a drink?\nA. mill\nB. son\nC. milk\nD. harp\nAnswer:"


def choice(i: int, response: str, reference: str, prompt: str = QUESTION, score: float = 0.0):  # type: ignore[no-untyped-def]
    options = [" A", " B", " C", " D"]
    made = sample(i, {"acc": score}, finish_reason="choose", options=options)
    made.extra["prompt"] = {"head": "", "tail": prompt}
    return replace(made, response=response, references=[reference])


def staged(path: Path) -> Path:
    """Models `a`, `b` under `short`, and `c`, `d` under `long`: the pairs have no context in common."""
    cells: dict[Cell, int | None] = {
        Cell(m, c, "ruler", "vt", 4096): 8 for c, models in (("short", "ab"), ("long", "cd")) for m in models
    }
    declared = {"comparisons": {"baselines": {"short": "a", "long": "c"}}}
    with Store.open(path, declared, cells=cells) as store:
        for cell in cells:
            for i in range(8):
                store.append(cell, sample(i, {"score": float(i % 2 == 0 or cell.model in "bd")}))
        store.finish()
    return path


# ------------------------------------------------------------------------------------------- which two


@pytest.mark.parametrize("command", [("table", "--style", "delta"), ("compare",)], ids=lambda c: c[0])
def test_nothing_to_compare_is_an_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    run = staged(tmp_path / "r")
    done = gatedeval(command[0], str(run), *command[1:], "--baseline", "a", "--candidate", "d", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "'d' and 'a' have no cell in common that both have scores for" in done.stderr
    for file in (run / "samples").glob("*.jsonl"):
        file.unlink()
    done = gatedeval(command[0], str(run), *command[1:], "--baseline", "a", "--candidate", "b", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "short / vt at 4096: a and b has no scores" in done.stderr
    assert "Holm over 0" not in done.stderr


def test_a_default_candidate_is_taken_only_where_there_is_one(tmp_path: Path) -> None:
    run = staged(tmp_path / "r")
    assert compare(run).startswith("b against a\n"), "the only model that is planned beside a"
    assert compare(run, candidate="d").startswith("d against c\n"), "the baseline that run.json declares there"
    assert compare(run, "c").startswith("d against c\n")
    three = write_run(tmp_path / "t", config(models=("a", "b", "c"), lengths=(4096,), tasks=("vt",)), n=2)
    done = gatedeval("compare", str(three), cwd=tmp_path)
    assert done.returncode == 2
    assert "Give --candidate NAME, one of 'b', 'c'" in done.stderr


def test_every_option_and_command_that_a_message_names_exists(tmp_path: Path) -> None:
    three = write_run(tmp_path / "t", config(models=("a", "b", "c"), lengths=(4096,), tasks=("vt", "cwe")), n=4)
    text = compare(three, "a", "b", listed=0)
    one = write_run(tmp_path / "o", config(models=("a",), lengths=(4096,), tasks=("vt",)), n=2)
    messages = [text] + [gatedeval("compare", str(run), cwd=tmp_path).stderr for run in (three, one)]
    for command, options in (("compare", "".join(messages)), ("table", text)):
        known = gatedeval(command, "--help", cwd=tmp_path).stdout
        named = re.findall(r"--[a-z]+", options) if command == "compare" else ["--style"]
        assert [o for o in named if o not in known + "--style"] == []
    commands = gatedeval("--help", cwd=tmp_path).stdout
    for name in re.findall(r"`gatedeval (\w+)", "".join(messages)):
        assert f"  {name} " in commands


# ------------------------------------------------------------------------------------------- in which words


def test_gains_and_losses_are_listed_in_turn(tmp_path: Path) -> None:
    """Thirty losses and three gains: a list of six has all the gains."""
    cells: dict[Cell, int | None] = {Cell(m, "c", "ruler", "vt", 4096): 40 for m in ("a", "b")}
    with Store.open(tmp_path / "r", {}, cells=cells) as store:
        for cell in cells:
            for i in range(40):
                right = i < 30 if cell.model == "a" else 30 <= i < 33
                store.append(cell, sample(i, {"score": float(right)}))
    text = compare(tmp_path / "r", listed=6)
    assert "33 samples are scored differently (30 lost, 3 gained), 6 of them, losses and gains in turn:" in text
    assert re.findall(r": (\d\.\d\d -> \d\.\d\d); ref", text) == ["1.00 -> 0.00", "0.00 -> 1.00"] * 3
    assert "(30 lost, 3 gained); --listed N lists N of them." in compare(tmp_path / "r", listed=0)


def test_a_choice_is_shown_as_its_letter_and_words(tmp_path: Path) -> None:
    cells: dict[Cell, int | None] = {Cell(m, "c", "mmlu", "anatomy"): 1 for m in ("a", "b")}
    with Store.open(tmp_path / "r", {}, cells=cells) as store:
        for cell in cells:
            store.append(cell, choice(0, "2" if cell.model == "b" else "0", "2", score=float(cell.model == "b")))
    text = compare(tmp_path / "r")
    assert "reference 'C. milk'" in text
    assert "a: 'A. mill'" in text
    assert "b: 'C. milk'" in text


def test_options_without_letters_or_without_a_prompt() -> None:
    assert response_text(choice(0, "3", "2")) == "D. harp"
    assert response_text(choice(0, "3", "2", prompt="cut")) == "D", "the list of options is not stored"
    assert reference_text(choice(0, "3", "1", prompt="(A) mill\n(B) son")) == "B. son"
    words = sample(0, {"acc": 1.0}, finish_reason="choose", options=[" runs away", " sleeps"])
    assert option_text(words, "1") == "sleeps"
    assert option_text(words, "7") == "7", "no such option"
    assert option_text(sample(0, {"score": 1.0}), "2") == "2", "a number that the model wrote"


# ------------------------------------------------------------------------------------------- for programs


def test_length_is_empty_in_csv_where_there_is_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(tasks=("vt",), lengths=(4096,)), n=3)
    for style in ("table5", "tasks", "delta", "samples"):
        rows = list(csv.DictReader(io.StringIO(export_run(run, style, "csv"))))
        assert {row["length"] for row in rows if row["benchmark"] == "ruler"} == {"4096"}, style
        assert {row["length"] for row in rows if row["benchmark"] != "ruler"} == {""}, style


def test_samples_as_json_have_lists_as_lists(tmp_path: Path) -> None:
    cell = Cell("m", "c", "ruler", "vt", 4096)
    with Store.open(tmp_path / "r", {}, cells={cell: 1}) as store:
        store.append(cell, replace(sample(0, {"score": 1.0}), references=["one", "two"], response="\ud835 cut"))
    (line,) = export_run(tmp_path / "r", "samples", "json").splitlines()
    assert json.loads(line)["references"] == ["one", "two"]
    assert json.loads(line)["response"] == "\ufffd cut", (
        "half a character is no text: it is shown as what cannot be decoded"
    )


def test_figures_take_formats_with_commas(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(models=("m",), tasks=("vt",)), n=2)
    done = gatedeval("figures", str(run), "-f", "svg,png", "-o", str(tmp_path / "f"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {file.suffix for file in (tmp_path / "f").iterdir()} == {".svg", ".png"}
    wrong = gatedeval("figures", str(run), "-f", "svg,gif", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
