"""Choosing rows, columns and words of a table: on the command line, in a config, and without changing a number."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from harness.config import TableOptions, from_dict, load, to_dict
from harness.export import export_run
from harness.report import report
from harness.store import Store
from harness.tables import Table, delta_table, table5
from harness.tables.rows import declared_comparisons
from harness.tables.view import viewed
from harness.types import Cell, GatedevalError
from tests.support.in_process import gatedeval
from tests.support.sample_runs import config, write_run

MODELS = ("baseline", "head,wise", "elementwise")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = config(models=MODELS, tasks=("vt", "niah_single_1"), lengths=(4096, 8192, 16384))
    skill = {"baseline": 0.3, "head,wise": 0.6, "elementwise": 0.9}
    return write_run(tmp_path_factory.mktemp("runs") / "r", settings, skill=lambda c: skill[c.model])


def rows(path: Path, **options: Any) -> list[list[str]]:
    lines = [line for line in export_run(path, **options).splitlines() if line.startswith("|")]
    return [[field.strip() for field in re.split(r"(?<!\\)\|", line)[1:-1]] for line in (lines[0], *lines[2:])]


def test_models_and_contexts_are_shown_in_the_order_they_are_named_in(run: Path) -> None:
    shown = rows(run, models=("elementwise", "baseline"), contexts=("YaRN",))
    assert [row[:2] for row in shown[1:]] == [["elementwise", "YaRN"], ["baseline", "YaRN"]]
    assert [row[0] for row in rows(run, models=("head,wise",))[1:]] == ["head,wise"] * 2, "a comma in a label"
    assert [row[0] for row in rows(run, models=("elementwise,baseline",), contexts="8k")[1:]] == [
        "elementwise",
        "baseline",
    ]


def test_benchmarks_and_lengths_choose_columns(run: Path) -> None:
    head = rows(run, benchmarks=("gsm8k", "ruler"), lengths=("8K",))[0]
    assert head[2:] == ["GSM8k strict", "GSM8k flexible", "RULER 2/13 8K"]
    caption = export_run(run, benchmarks=("gsm8k",))
    assert "- GSM8k: 5-shot" in caption
    assert "- RULER:" not in caption
    assert "- MMLU:" not in caption


@pytest.mark.parametrize(
    "choice",
    [
        {"models": ("baseline", "elementwise")},
        {"benchmarks": ("ruler",), "lengths": (4096,)},
        {"contexts": ("YaRN",)},
        {"rename": {"elementwise": "SDPA gate"}},
        {"transpose": True},
    ],
)
def test_a_choice_changes_no_number_no_mark_and_no_family(run: Path, choice: dict[str, Any]) -> None:
    whole, part = (json.loads(export_run(run, fmt="json", **options)) for options in ({}, choice))
    if choice.get("transpose"):
        part["rows"] = [
            {"model": m, "context": c, **{row["benchmark"]: row[f"{m}, {c}"] for row in part["rows"]}}
            for m, c in ((row["model"], row["context"]) for row in whole["rows"])
        ]
    names = {v: k for k, v in choice.get("rename", {}).items()}
    by_key = {(row["model"], row["context"]): row for row in whole["rows"]}
    for row in part["rows"]:
        before = by_key[names.get(row["model"], row["model"]), row["context"]]
        for name, field in row.items():
            if isinstance(field, dict):
                assert {k: v for k, v in field.items() if k != "best"} == {
                    k: v for k, v in before[name].items() if k != "best"
                }
    family = len(declared_comparisons(Store.read(run)))
    assert any(f"Holm over {family} comparisons" in line for line in part["caption"])


def test_renaming_reaches_every_line_and_format_and_asks_nothing_again(run: Path) -> None:
    before = sorted((p.name, p.read_bytes()) for p in run.rglob("*") if p.is_file())
    rename = {"elementwise": "SDPA gate", "baseline": "plain model", "YaRN": "stretched"}
    for style in ("table5", "tasks", "delta", "lengths"):
        given = {"baseline": "baseline", "candidate": "elementwise"} if style == "delta" else {}
        for fmt in ("md", "latex", "csv", "json", "html"):
            text = export_run(run, style, fmt, rename=rename, **given)
            assert not re.search(
                r"\b(elementwise|baseline|YaRN)\b(?! factor)", text.replace('"baseline"', "").replace(",baseline,", ",")
            ), (style, fmt)
            assert "SDPA gate" in text or style == "delta"
    assert "SDPA gate" in export_run(run, "samples", "csv", rename=rename)
    assert before == sorted((p.name, p.read_bytes()) for p in run.rglob("*") if p.is_file())


def test_renamed_cells_are_the_stored_cells(run: Path) -> None:
    store = Store.read(run)
    other, view = viewed(store, rename={"baseline": "b"}, models=("baseline",))
    old, new = Cell("baseline", "8k", "ruler", "vt", 4096), Cell("b", "8k", "ruler", "vt", 4096)
    assert view.models == ("b",)
    assert list(other.samples(new)) == list(store.samples(old))
    assert other.planned(new) == store.planned(old)
    assert other.done(new) == store.done(old)
    assert other.known(new) == store.known(old)
    assert other.scores(new) is store.scores(old)
    assert other.summary(new).samples == 20
    again, _ = viewed(other)
    assert set(again.cells) == set(other.cells), "names are changed once"


def test_names_that_the_run_does_not_have_are_refused(run: Path) -> None:
    for wrong, message in (
        ({"models": ("basline",)}, "no model 'basline' in this run; did you mean 'baseline'"),
        ({"contexts": ("x",)}, "no context 'x' in this run; it has '8k', 'YaRN'"),
        ({"benchmarks": ("mlu",)}, "no benchmark 'mlu'"),
        ({"lengths": (5000,)}, "no length 5000 in this run; it has 4096, 8192, 16384"),
        ({"lengths": ("4Q",)}, "should be a length in tokens"),
        ({"rename": {"x": "y"}}, "no model or context 'x'"),
        ({"rename": {"baseline": "elementwise"}}, "two models would be called 'elementwise'"),
        ({"digits": 9}, "digits"),
        ({"models": ("baseline", "baseline")}, "names 'baseline' twice"),
    ):
        with pytest.raises(GatedevalError, match=re.escape(message)):
            export_run(run, **wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--standalone", "--standalone goes with --format latex, not with md"),
        ("--label tab:x", "--label goes with --format latex, not with md"),
        ("--context 8k", "--context goes with --style lm_eval, not with table5"),
        ("--model baseline", "--model goes with --style lm_eval, not with table5"),
        ("--candidate baseline", "--candidate goes with --style delta or training, not with table5"),
        ("--style tasks --transpose", "--transpose goes with --style table5, not with tasks"),
        ("--style tasks --partial", "--partial goes with --style table5, not with tasks"),
        ("--style delta --models baseline", "--models goes with --style table5 or tasks"),
        ("-f csv --digits 1", "--digits goes with --format md or latex or html, not with csv"),
        ("--rename baseline", "not of the form A=B"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused_in_one_line(run: Path, arguments: str, message: str) -> None:
    done = gatedeval("table", str(run), *arguments.split(), cwd=run.parent)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_the_command_line_takes_every_choice(run: Path) -> None:
    done = gatedeval(
        "table", str(run), "--models", "elementwise,baseline", "--contexts", "8k", "--benchmarks", "ruler", "--lengths",
        "4K,8K", "--rename", "elementwise=SDPA = gate", "--digits", "1", "--caption", "short", "--transpose",
        cwd=run.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [field.strip() for field in lines[0].split("|")[1:-1]] == ["benchmark", "SDPA = gate, 8k", "baseline, 8k"]
    assert re.fullmatch(r"\| RULER 2/13 4K +\| +\*{0,2}\d+\.\d\*{0,2}[▲▼ ]* \| +\d+\.\d[▲▼ ]* +\|", lines[2])
    assert "Seed 42" not in done.stdout, "a short caption"
    assert "Reading:" in done.stdout


def test_digits_decide_what_is_a_tie(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(tasks=("vt",), lengths=(4096,)), skill=lambda c: 0.52)
    first = rows(run, digits=0)[1:3]
    assert all("." not in row[2] for row in first)


# ------------------------------------------------------------------------------------------- in the config


def test_the_section_of_the_config_is_used_by_every_later_table(tmp_path: Path) -> None:
    section = {"models": ["elementwise", "baseline"], "rename": {"elementwise": "SDPA"}, "digits": 1, "label": "tab:x"}
    settings = config(models=MODELS, tasks=("vt",), table=section)
    run = write_run(tmp_path / "r", settings)
    assert [row[0] for row in rows(run)[1:]] == ["SDPA", "baseline"] * 2
    assert [row[0] for row in rows(run, models=("head,wise",))[1:]] == ["head,wise"] * 2, "an option goes before it"
    assert r"\label{tab:x}" in export_run(run, fmt="latex")
    assert export_run(run, "samples", "csv").count("head,wise") == 0
    assert shown_in_report(run) == as_shown(table5(Store.read(run))), "the report shows the same table"


def test_a_label_in_the_config_is_for_latex_and_in_the_way_of_no_format(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(tasks=("vt",), table={"label": "tab:x", "transpose": True}))
    for fmt in ("md", "csv", "json", "html", "latex"):
        assert export_run(run, fmt=fmt)
        assert export_run(run, "tasks", fmt)


FILE = """\
name: x
models: [{label: a, path: org/a}, {label: b, path: org/b}]
contexts: [{label: native}]
benchmarks: [{ruler: [vt], lengths: [4096]}, gsm8k]
table:
  models: [a, c]
  lengths: [4K, 8K]
  digit: 1
"""


def test_mistakes_in_the_section_are_named_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(FILE)
    with pytest.raises(GatedevalError, match=r"c\.yaml:8: table: unknown key 'digit'; did you mean 'digits'"):
        load(file, check_paths=False)
    file.write_text(FILE.replace("digit:", "digits:"))
    with pytest.raises(GatedevalError) as error:
        load(file, check_paths=False)
    assert "c.yaml:6: table.models: no model 'c'" in str(error.value)
    assert "c.yaml:7: table.lengths: no benchmark has the length 8192" in str(error.value)
    file.write_text(FILE.replace("a, c", "b").replace("4K, 8K", "4K").replace("digit:", "digits:"))
    table = load(file, check_paths=False).table
    assert table == TableOptions(models=("b",), lengths=(4096,), digits=1)


def test_the_section_is_stored_and_read_back() -> None:
    data = {
        "name": "x",
        "models": [{"label": "a", "path": "org/a"}],
        "benchmarks": ["gsm8k"],
        "table": {"rename": {"a": "A"}, "digits": 0, "models": ["a"]},
    }
    loaded = from_dict(data)
    assert loaded.table.rename == (("a", "A"),)
    assert from_dict(to_dict(loaded)) == loaded
    json.dumps(to_dict(loaded))


# ------------------------------------------------------------------------------------------- one table per run


def as_shown(table: Table) -> list[list[str]]:
    """Model and numbers with their marks of every row."""
    return [[str(row[0].text), *(e.number + e.marks for e in row[2:])] for row in table.rows]


def shown_in_report(run: Path) -> list[list[str]]:
    """The same, read from the report's table."""
    table = report(Store.read(run)).split('<table class="main"')[1].split("</table>")[0]
    rows = []
    for line in re.findall(r'<tr><th scope="row">.*?</tr>', table, flags=re.DOTALL):
        fields = re.findall(
            r"<t[hd].*?</t[hd]>", re.sub(r'<span class="(drop|iv)".*?</span>', "", line), flags=re.DOTALL
        )
        rows.append([unescape(re.sub(r"<[^>]+>", "", field)).strip() for field in fields])
    return rows


def test_terminal_and_report_show_one_table_of_an_unfinished_run(tmp_path: Path) -> None:
    """A missing task blocks its average in both, and the family of tests is the same with --partial and without."""
    run = write_run(tmp_path / "r", config(tasks=("vt", "cwe"), lengths=(4096,)), skill=lambda c: 0.4)
    (run / "samples" / f"{Cell('gated', '8k', 'ruler', 'cwe', 4096).key}.jsonl").unlink()
    assert shown_in_report(run) == as_shown(table5(Store.read(run)))
    for partial in (False, True):
        caption = " ".join(table5(Store.read(run), allow_partial=partial).caption)
        assert f"Holm over {len(declared_comparisons(Store.read(run)))} comparisons" in caption


def test_a_number_from_a_part_of_its_tasks_is_not_tested(tmp_path: Path) -> None:
    settings = config(tasks=("vt", "niah_single_1"), lengths=(4096,))
    run = write_run(tmp_path / "r", settings, skill=lambda c: float(c.model == "gated"))
    (run / "samples" / f"{Cell('gated', '8k', 'ruler', 'vt', 4096).key}.jsonl").unlink()
    line = next(row for row in rows(run, allow_partial=True) if row[:2] == ["gated", "8k"])
    assert "†" in line[2]
    assert "▲" not in line[2]


def test_delta_of_a_chosen_part_keeps_the_family(run: Path) -> None:
    whole = delta_table(Store.read(run), "baseline", "elementwise").frame
    part = csv.DictReader(
        io.StringIO(export_run(run, "delta", "csv", baseline="baseline", candidate="elementwise", lengths=(4096,)))
    )
    p_values = {round(p, 4) for p in whole.p_adjusted}
    assert all(float(row["p_adjusted"]) in p_values for row in part)
