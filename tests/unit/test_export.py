"""What people paste into papers, notebooks and terminals: aligned, escaped, parseable, complete."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness import stats
from harness.benchmarks.presentation import Presentation, register
from harness.data.catalog import MMLU_SUBJECTS
from harness.export import FORMATS, STYLES, export_run, render
from harness.export.latex import PACKAGES, escape
from harness.store import Store
from harness.tables import Column, Entry, Table, cells_frame, table5
from harness.tables.compare import compare
from harness.tables.comparisons import lines
from harness.text import width
from harness.types import Cell, GatedevalError
from tasks.ruler.protocol import TASKS as RULER_TASKS
from tests.support.sample_runs import YARN, answer, config, sample, table5_cells, write_run

ODD = r"50% & <b>_#1</b> $x^2$ | {a\b} ~ é"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        tmp_path_factory.mktemp("runs") / "demo",
        config(lengths=(4096, 8192, 16384, 32768)),
        skill=lambda c: {"baseline": 0.6, "gated": 0.85}[c.model] - 0.2 * (c.context == "YaRN"),
    )


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose labels, caption and answers try to break every format."""
    settings = config(models=(ODD, "模型"), lengths=(4096,), tasks=("vt",))
    cells = table5_cells(settings, 3)
    store = Store.open(tmp_path_factory.mktemp("odd") / "run", {"config": settings, "caption": [ODD]}, cells=cells)
    for cell in cells:
        for i in range(3):
            store.append(cell, answer(cell, i, 0.5))
    store.finish()
    return store.path


def table(rows: list[list[Entry]], *titles: str) -> Table:
    return Table(
        style="x",
        title="t",
        columns=[Column(title="model", numeric=False), *(Column(title=t) for t in titles)],
        rows=rows,
        make_frame=pd.DataFrame,
    )


# ------------------------------------------------------------------------------------------- Markdown


def test_markdown_lines_up_in_a_terminal(run: Path, odd: Path) -> None:
    for path in (run, odd):
        for style in ("table5", "tasks", "delta"):
            lines = [line for line in export_run(path, style).splitlines() if line.startswith("|")]
            assert len({width(line) for line in lines}) == 1, style
            bars = [[i for i, c in enumerate(line) if c == "|" and line[i - 1] != "\\"] for line in lines]
            assert len({len(b) for b in bars}) == 1


def test_digits_line_up_whether_bold_or_marked() -> None:
    text = render(
        table(
            [
                [Entry(text="a"), Entry(value=9.5, best=True, marks="▲", drop=-1.25)],
                [Entry(text="b"), Entry(value=100.0)],
                [Entry(text="c"), Entry()],
            ],
            "4K",
        ),
        "md",
    )
    rows = text.splitlines()[2:5]
    assert len({row.index(".") for row in rows[:2]}) == 1
    assert "**9.50**▲ (−1.2)" in rows[0]
    assert rows[1].rstrip(" |").endswith("100.00")


def test_markdown_is_a_table_to_markdown_readers(run: Path) -> None:
    lines = [line for line in export_run(run).splitlines() if line.startswith("|")]
    assert re.fullmatch(r"\| -+ \| -+ \|( -+: \|)+", lines[1])
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")


def test_caption_lines_stand_beneath_as_a_list(run: Path) -> None:
    text = export_run(run)
    below = text[text.rindex("|\n") + 2 :]
    assert below.startswith("\n- RULER: mean of 13 tasks")
    assert all(line.startswith(("- ", "  ")) for line in below.strip().splitlines())
    assert max(map(len, below.splitlines())) <= 118


# ------------------------------------------------------------------------------------------- CSV and JSON


@pytest.mark.parametrize("style", ["table5", "tasks"])
def test_csv_is_tidy(run: Path, style: str) -> None:
    rows = list(csv.DictReader(io.StringIO(export_run(run, style, "csv"))))
    assert list(rows[0])[:7] == ["model", "context", "benchmark", "task", "length", "samples", "score"]
    store = Store.read(run)
    assert len(rows) == len(store.cells)
    for r in rows[::17]:
        cell = Cell(r["model"], r["context"], r["benchmark"], r["task"], int(r["length"] or 0))
        assert float(r["score"]) == pytest.approx(100 * store.scores(cell).scores.mean(), abs=1e-4)
        assert int(r["samples"]) == 20


def test_missing_numbers_are_empty_in_csv_and_listed_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "r", config(lengths=(4096,), tasks=("vt", "cwe")), n=3)
    (run / "samples" / f"{Cell('gated', '8k', 'ruler', 'vt', 4096).key}.jsonl").unlink()
    (row,) = [
        r
        for r in csv.DictReader(io.StringIO(export_run(run, fmt="csv")))
        if (r["model"], r["context"], r["task"]) == ("gated", "8k", "vt")
    ]
    assert (row["samples"], row["score"], row["ci_low"]) == ("0", "", "")
    assert "gated / 8k / vt at 4096: no sample yet" in capsys.readouterr().err
    assert "Missing (1): gated / 8k / vt at 4096" in export_run(run)
    assert capsys.readouterr().err == ""


def test_csv_of_the_papers_rows(run: Path) -> None:
    frame = pd.read_csv(io.StringIO(export_run(run, fmt="csv", reference="paper")))
    paper = frame[frame.model.str.startswith("paper: ")]
    assert len(paper) == 20
    assert paper.samples.isna().all()
    assert paper.set_index(["model", "context", "length"]).score["paper: SDPA gate", "YaRN", 131072] == 58.82


def test_json_holds_the_table_and_its_cells(run: Path) -> None:
    data = json.loads(export_run(run, fmt="json"), parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    assert (data["schema"], data["style"], data["run"]) == (1, "table5", "demo")
    names = [c["name"] for c in data["columns"]]
    assert len(set(names)) == len(names)
    assert list(data["rows"][0]) == names
    assert data["rows"][0]["RULER 16K"] == {
        "value": None,
        "interval": None,
        "interval_clustered": None,
        "change": None,
        "marks": "",
        "best": False,
    }
    for field in (f for r in data["rows"] for f in r.values() if isinstance(f, dict) and f["value"] is not None):
        assert field["interval"][0] <= field["value"] <= field["interval"][1], "every number has its interval"
    mmlu = data["rows"][0]["MMLU 2/57"]
    store = Store.read(run)
    columns = [store.scores(Cell("baseline", "8k", "mmlu", s)).scores for s in ("anatomy", "virology")]
    by_subject = stats.clustered_interval(np.concatenate(columns), ["anatomy"] * 20 + ["virology"] * 20)
    assert mmlu["interval_clustered"] == pytest.approx([100 * by_subject.low, 100 * by_subject.high])
    assert mmlu["interval"] != mmlu["interval_clustered"]
    assert data["rows"][0]["MMLU 2/57 by subject"]["interval_clustered"] is None
    assert any("subjects as clusters" in line for line in data["caption"])
    assert data["rows"][2]["RULER 4K"]["change"] < 0
    assert len(data["cells"]) == len(Store.read(run).cells)
    assert any("Seed 42" in line for line in data["caption"])


def test_samples_for_people_who_use_pandas_themselves(run: Path) -> None:
    text = export_run(run, "samples", "json")
    first = json.loads(text.splitlines()[0])
    assert (first["model"], first["id"], first["score:score"]) == ("baseline", "0", first["score:score"])
    frame = pd.read_csv(io.StringIO(export_run(run, "samples", "csv")))
    assert len(frame) == len(text.splitlines()) == 20 * len(Store.read(run).cells)
    with pytest.raises(GatedevalError, match="use --format csv or json"):
        export_run(run, "samples", "md")


# ------------------------------------------------------------------------------------------- HTML


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() not in (tag,):
            assert tag in ("ul", "body", "html"), f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_html_is_well_formed_and_texts_stay_texts(odd: Path) -> None:
    page = export_run(odd, fmt="html")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert ODD in "".join(tags.text)
    assert "<b>_#1</b>" not in page
    assert "http" not in page, "nothing is loaded"


# ------------------------------------------------------------------------------------------- LaTeX


def tabulars(text: str) -> list[str]:
    """The tabulars of a LaTeX text that hold rules; an outer one that only stacks them is none."""
    return re.findall(r"\\begin\{tabular\}\{(?!@)((?:(?!\\end\{tabular\}).)*)\\end\{tabular\}", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("style", "options"),
    [
        ("table5", {}),
        ("table5", {"intervals": True}),
        ("table5", {"transpose": True}),
        ("tasks", {}),
        ("delta", {}),
        ("lengths", {}),
    ],
    ids=str,
)
def test_latex_has_as_many_fields_in_every_row(run: Path, style: str, options: dict[str, bool]) -> None:
    text = export_run(run, style, "latex", **options)
    assert tabulars(text)
    for tabular in tabulars(text):
        spec, _, body = tabular.partition("}\n")
        columns = len(re.sub(r"\[[^]]*\]|@\{[^}]*\}", "", spec))
        rows = [
            re.sub(r"(?<!\\)\\\\(\[.*\])?$", "", line)
            for line in body.splitlines()
            if re.search(r" \\\\(\[.*\])?$", line)
        ]
        assert len(rows) > 1
        for row in rows:
            spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
            assert len(re.split(r"(?<!\\)&", row)) - len(spans) + sum(spans) == columns
        assert all(body.count(rule) == 1 for rule in (r"\toprule", r"\bottomrule"))
    assert text.count("{") == text.count("}")
    for environment in ("table", "threeparttable", "tabular", "tablenotes"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}") > 0


def test_latex_has_a_label_a_short_caption_and_the_protocol_as_notes(run: Path) -> None:
    text = export_run(run, fmt="latex", label="tab:main")
    assert text.count(r"\label{tab:main}") == 1
    caption = re.search(r"\\caption\{(.*)\}", text)
    assert caption is not None
    assert caption[1] == ("Scores of 2 models under 2 context settings on RULER, MMLU (2 of 57 subjects) and GSM8k.")
    notes = re.findall(r"^\\item (.*)$", text, flags=re.M)
    assert len(notes) == len(table5(Store.read(run)).caption)
    assert all(note.endswith(".") for note in notes)


def test_latex_has_true_minus_signs_and_numbers_that_line_up(run: Path) -> None:
    text = export_run(run, fmt="latex", contexts=("YaRN",))
    assert re.search(r"\(\\ensuremath\{-\}\d", text), "a change in parentheses is text"
    assert not re.search(r"\(-\d", text)
    delta = export_run(run, "delta", "latex", baseline="gated", candidate="baseline")
    assert re.search(r"& -\d+\.\d\d &", delta), "siunitx sets the minus of a number"
    assert re.search(r"\{\[\}\\ensuremath\{-\}\d", delta), "an interval is text"
    assert "\N{MINUS SIGN}" not in text + delta


def test_latex_intervals_stand_below_their_scores(run: Path) -> None:
    text = export_run(run, fmt="latex", intervals=True)
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("baseline & 8k"))
    assert lines[first].endswith(r"\\[-0.5ex]")
    assert re.match(r"\\multicolumn\{1\}\{l\}\{\} & .*\\scriptsize \{\[\}\d+\.\d, \d+\.\d\{\]\}", lines[first + 1])


def test_a_wide_table_becomes_narrow_ones_with_the_labels_of_their_rows(run: Path) -> None:
    parts = tabulars(export_run(run, fmt="latex"))
    assert len(parts) > 1
    assert all(part.count("gated & YaRN") == 1 for part in parts)
    small = tabulars(export_run(run, fmt="latex", benchmarks=("gsm8k",)))
    assert len(small) == 1


def test_latex_escapes_what_latex_would_act_on() -> None:
    plain = re.sub(
        r"\\(textbackslash|textasciicircum|textasciitilde|textless|textgreater|textbar)\{\}", "", escape(ODD)
    )
    assert not re.search(r"(?<!\\)[%&#_$^~<>|{}]", plain)
    assert escape("[a]*") == "{[}a{]}{*}", "else the line break before would take it for its argument"
    assert escape("éŁőß\u00a0½") == r"é\L{}o\ss{} 1/2"
    assert escape("模型") == "??", "pdflatex has no glyph for it, and would stop"


def has_tex() -> bool:
    """Whether pdflatex and every package are here."""
    return shutil.which("pdflatex") is not None and all(
        subprocess.run(["kpsewhich", f"{name}.sty"], capture_output=True).returncode == 0 for name in PACKAGES
    )


@pytest.mark.skipif(
    not has_tex(), reason="needs Debian's texlive-latex-recommended, texlive-latex-extra and texlive-science"
)
@pytest.mark.parametrize(
    "options",
    [
        {"label": "tab:main"},
        {"reference": "paper"},
        {"intervals": True, "caption": "short"},
        {"transpose": True, "digits": 1},
        {"style": "tasks"},
        {"style": "delta"},
        {"style": "lengths"},
    ],
    ids=str,
)
def test_latex_compiles_and_fits_the_page(run: Path, odd: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    style = options.pop("style", "table5")
    for i, path in enumerate((run, odd)):
        file = tmp_path / f"{i}.tex"
        file.write_text(export_run(path, style, "latex", standalone=True, **options))
        log = compiled(file)
        if path == run:  # the odd run's labels are as long as they are
            assert "Overfull" not in log
            assert "Float too large" not in log
        # As it is means also: inside a document of the user's own, with only the named packages.
        inside = export_run(path, style, "latex", **options)
        packages = "".join(rf"\usepackage{{{p}}}" for p in PACKAGES)
        file.write_text(r"\documentclass{article}" + packages + r"\begin{document}" + "\n" + inside + r"\end{document}")
        compiled(file)


def compiled(file: Path) -> str:
    """The log of pdflatex; a file that does not compile fails the test."""
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", file.name],
        cwd=file.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert file.with_suffix(".pdf").stat().st_size > 5000
    return file.with_suffix(".log").read_text(errors="replace")


# ------------------------------------------------------------------------------------------- lm-eval


def test_lm_evals_own_tools_read_our_results(run: Path) -> None:
    results = json.loads(export_run(run, "lm_eval", "json", model="gated", context="8k"))
    from lm_eval.utils import make_table

    printed = make_table(results)
    store = Store.read(run)
    acc = np.concatenate([store.scores(Cell("gated", "8k", "mmlu", s)).scores for s in ("anatomy", "virology")])
    assert results["results"]["mmlu"]["acc,none"] == pytest.approx(acc.mean())
    assert results["results"]["mmlu_anatomy"]["acc_stderr,none"] == pytest.approx(
        store.scores(Cell("gated", "8k", "mmlu", "anatomy")).scores.std(ddof=1) / math.sqrt(20)
    )
    means = [store.scores(Cell("gated", "8k", "ruler", t, 8192)).scores.mean() for t in RULER_TASKS]
    assert results["groups"]["ruler"]["8192,none"] == pytest.approx(np.mean(means))
    assert results["results"]["gsm8k"]["exact_match,flexible-extract"] == pytest.approx(
        store.scores(Cell("gated", "8k", "gsm8k", "gsm8k")).metrics["exact_match,flexible-extract"].mean()
    )
    for name in ("ruler_qa_squad", "mmlu_anatomy", "gsm8k", "flexible-extract", "8192"):
        assert name in printed
    assert f"{results['results']['mmlu']['acc,none']:.4f}" in printed
    assert results["n-shot"]["gsm8k"] == 5
    assert results["n-samples"]["niah_single_1"]["effective"] == 20
    with pytest.raises(GatedevalError, match="choose a model, one of 'baseline', 'gated'"):
        export_run(run, "lm_eval", "json")


# ------------------------------------------------------------------------------------------- compare


def test_the_verdict_in_words(run: Path) -> None:
    text = compare(run, "baseline", "gated", "8k", listed=2)
    assert text.startswith("gated against baseline\n")
    assert re.search(r"RULER at 4K: [\d.]+ -> [\d.]+, \+[\d.]+ \[[+-].*\].*: gated is better", text)
    assert "YaRN" not in text
    assert re.search(r"Of 5 comparisons, gated is better in \d and worse in 0", text)
    assert text.count("\n- 8k / ") == 2
    assert "effective length" in text
    with pytest.raises(GatedevalError, match="no context 'x'"):
        compare(run, context="x")
    with pytest.raises(GatedevalError, match="both 'gated'"):
        compare(run, "gated", "gated")


def test_mmlus_difference_also_has_an_interval_with_subjects_as_clusters(tmp_path: Path) -> None:
    """Ten questions better in one subject, none in the other nine: other subjects need not show a difference."""
    cells: dict[Cell, int | None] = {Cell(m, "c", "mmlu", s): 40 for m in ("a", "b") for s in MMLU_SUBJECTS[:10]}
    with Store.open(tmp_path / "r", {"config": {"benchmarks": [{"mmlu": {"shots": 5}}]}}, cells=cells) as store:
        for cell in cells:
            for i in range(40):
                better = cell.model == "b" and cell.task == MMLU_SUBJECTS[0] and i < 10
                store.append(cell, sample(i, {"acc": float(i >= 20 or better)}))
        text = compare(store.path)
        (line,) = [x for x in lines(store, "a", "b")[0] if x.task == "all"]
    assert line.comparison.low > 0
    differences = np.concatenate([[1.0] * 10, [0.0] * 390])
    subjects = [i // 40 for i in range(400)]
    expected = stats.clustered_interval(differences, subjects, paired=True)
    assert line.comparison.clustered == pytest.approx((100 * expected.low, 100 * expected.high))
    assert expected.low < 0 < expected.high, "a difference in one subject out of ten need not hold in others"
    interval = f"[{100 * expected.low:+.2f}, {100 * expected.high:+.2f}]".replace("-", "\N{MINUS SIGN}")
    assert f"b is better\n    subjects as clusters (would it hold on other subjects?): {interval}" in text
    frame = pd.read_csv(io.StringIO(export_run(tmp_path / "r", "delta", "csv"))).set_index("task")
    assert frame.loc["all", "cluster_low"] == pytest.approx(100 * expected.low, abs=1e-4)
    assert frame.drop(index="all").cluster_low.isna().all()
    assert "with subjects as clusters" in export_run(tmp_path / "r", "delta")


def test_rerun_noise_beside_the_difference(tmp_path: Path) -> None:
    """Two samples of b, out of 2 x 20, come out otherwise the second time; a's do not."""
    tasks = ("vt", "niah_single_1")
    cells: dict[Cell, int | None] = {Cell(m, "c", "ruler", t, 4096): 20 for m in ("a", "b") for t in tasks}
    facts = {"models": {"a": {"engine": {"dtype": "bfloat16"}}}}
    for name in ("first", "again", "other"):
        with Store.open(tmp_path / name, facts, cells=cells) as store:
            for cell in cells:
                for i in range(20):
                    moved = name == "again" and cell == Cell("b", "c", "ruler", "vt", 4096) and i in (1, 3)
                    store.append(cell, sample(i, {"score": float(i % 2 == 0 or moved)}, hash=f"{name == 'other'}"))
    assert "give that run as --rerun" in compare(tmp_path / "first")
    text = compare(tmp_path / "first", rerun=tmp_path / "again")
    assert "rerun: a +0.00 (0 of 40 samples scored otherwise), b +5.00 (2 of 40 samples scored otherwise)" in text, (
        "two of twenty in one of two tasks of equal weight"
    )
    assert "give that run as --rerun" not in text
    with pytest.raises(GatedevalError, match="is no rerun of"):
        compare(tmp_path / "first", rerun=tmp_path / "other")


def test_equal_models_are_called_equal(tmp_path: Path) -> None:
    cells: dict[Cell, int | None] = {Cell(m, "c", "ruler", "vt", 4096): 20 for m in ("a", "twin")}
    with Store.open(tmp_path / "r", {}, cells=cells) as store:
        for cell in cells:
            for i in range(20):
                store.append(cell, sample(i, {"score": float(i % 2)}))
    text = compare(tmp_path / "r")
    assert "equal on every sample" in text
    assert "No sample is scored differently." in text
    assert "[−16.11, +16.11]" in text, "twenty equal samples leave room for a difference"


def test_a_response_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    cells: dict[Cell, int | None] = {Cell(m, "c", "ruler", "vt", 4096): 1 for m in ("a", "b")}
    with Store.open(tmp_path / "r", {}, cells=cells) as store:
        for i, cell in enumerate(cells):
            store.append(cell, replace(sample(0, {"score": float(i)}), response="\x1b[2J\x07evil\u202e" + "x" * 300))
    text = compare(tmp_path / "r")
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "evil" in text


def test_one_model_cannot_be_compared(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(models=("only",), lengths=(4096,), tasks=("vt",)), n=2)
    with pytest.raises(GatedevalError, match="needs two models, and this run has 'only'"):
        compare(run)
    three = write_run(tmp_path / "t", config(models=("a", "b", "c"), lengths=(4096,), tasks=("vt",)), n=2)
    with pytest.raises(GatedevalError, match="which model is to be compared with 'a'"):
        compare(three)


# ------------------------------------------------------------------------------------------- all of it


def test_every_style_in_every_format(run: Path, odd: Path) -> None:
    unable = {  # other tests have runs with probes, and with training steps
        "probe": "has no probes: `gatedeval probe CONFIG` makes them",
        "sinks": "no model has a probe",
        "training": "no arm of this run has checkpoints at two training steps",
    }
    refused = {("samples", f) for f in ("md", "latex", "html")} | {("lm_eval", f) for f in ("csv", "latex", "html")}
    for style in STYLES:
        for fmt in FORMATS:
            whose = {"model": "gated", "context": "8k"} if style == "lm_eval" else {}
            if style in unable:
                with pytest.raises(GatedevalError, match=unable[style]):
                    export_run(run, style, fmt)
                continue
            if (style, fmt) in refused:
                with pytest.raises(GatedevalError, match="use --format"):
                    export_run(run, style, fmt, **whose)  # type: ignore[arg-type]
                continue
            text = export_run(run, style, fmt, **whose)  # type: ignore[arg-type]
            assert text.endswith("\n")
            assert "nan" not in text.lower()
            if style != "lm_eval":
                assert export_run(odd, style, fmt)
    assert export_run(run) == export_run(run), "the same run gives the same bytes"
    for wrong in ({"style": "x"}, {"fmt": "x"}, {"style": "tasks", "reference": "paper"}):
        with pytest.raises(GatedevalError, match=r"unknown|goes with"):
            export_run(run, **wrong)  # type: ignore[arg-type]


def test_samples_as_json_lines_have_one_line_each(tmp_path: Path) -> None:
    """A line separator inside a response is no end of a line of JSON."""
    cell = Cell("m", "c", "ruler", "vt", 4096)
    with Store.open(tmp_path / "r", {}, cells={cell: 2}) as store:
        for i in range(2):
            store.append(cell, replace(sample(i, {"score": 1.0}), response="one\u2028two"))
    lines = export_run(tmp_path / "r", "samples", "json").removesuffix("\n").split("\n")
    assert [json.loads(line)["response"] for line in lines] == ["one\u2028two"] * 2


@pytest.mark.parametrize("pooling", ["tasks", "questions", "metrics", None])
def test_an_added_benchmark_is_shown_by_its_own_presentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooling: Any
) -> None:
    """Table, tasks, delta, compare and lm-eval's results of a benchmark that this project does not know."""
    monkeypatch.setattr("harness.benchmarks.presentation._PRESENTATIONS", {})
    if pooling is not None:
        shown = Presentation(title="Toys", pooling=pooling, all_tasks=("car", "doll", "kite"), unit="toys")
        register("toy", replace(shown, caption=lambda planned: f"Toys: {planned.samples_text} per toy."))
    cells: dict[Cell, int | None] = {Cell(m, "c", "toy", t): 10 for m in ("a", "b") for t in ("doll", "car")}
    settings = {"benchmarks": [{"toy": ["doll", "car"], "shots": 2}]}
    with Store.open(tmp_path / "r", {"config": settings}, cells=cells) as store:
        for cell in cells:
            for i in range(10):
                store.append(cell, sample(i, {"right": float(i % 3 == 0 or cell.model == "b")}))
        store.finish()
    table = export_run(tmp_path / "r")
    expected = {
        "tasks": ["Toys 2/3 score"],
        "questions": ["Toys 2/3", "Toys 2/3 by toy"],
        "metrics": ["Toys right"],
        None: ["toy right"],
    }
    assert [title.strip() for title in table.splitlines()[0].split("|")[3:-1]] == expected[pooling]
    assert ("Toys: 10 per toy." if pooling else "toy: 2-shot, 10 samples per task.") in table
    assert "40.00" in table
    assert "| doll" in export_run(tmp_path / "r", "tasks")
    whole = "average" if pooling == "tasks" else "all"
    assert f"| {whole} " in export_run(tmp_path / "r", "delta")
    title = "Toys" if pooling else "toy"
    assert f"\n  {title}: 40.00 -> 100.00" in compare(tmp_path / "r")
    results = json.loads(export_run(tmp_path / "r", "lm_eval", "json", model="a"))
    assert results["results"]["doll"]["right,none"] == 0.4
    assert results["n-shot"] == {"doll": 2, "car": 2}


def test_tables_need_no_model_code(run: Path) -> None:
    code = (
        "import sys; from harness.export import export_run; export_run(sys.argv[1]); "
        "print([m for m in ('torch', 'vllm', 'transformers', 'lm_eval') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_a_million_samples_in_two_gigabytes(tmp_path: Path) -> None:
    from dataclasses import asdict

    from harness.store.files import to_line

    settings = config(models=[f"m{i}" for i in range(10)], lengths=[4096 << i for i in range(6)])
    settings["contexts"] = [
        {"label": "native", "max_length": 131072},
        {"label": "YaRN", "max_length": 131072, "yarn": YARN},
    ]
    settings["benchmarks"] = settings["benchmarks"][:1]
    cells: dict[Cell, int | None] = {
        Cell(m["label"], c["label"], "ruler", t, n): 642
        for m in settings["models"]
        for c in settings["contexts"]
        for n in settings["benchmarks"][0]["lengths"]
        for t in RULER_TASKS
    }
    assert len(cells) * 642 > 1_000_000
    with Store.open(tmp_path / "r", {"config": settings}, cells=cells) as store:
        for cell in cells:  # past append: one write a file, or writing would take longer than the test
            lines = [to_line(asdict(replace(answer(cell, i, 0.7), response="lorem ipsum " * 25))) for i in range(642)]
            store.samples_path(cell).write_bytes(b"".join(lines))
    code = (
        "import resource, sys; from harness.export import export_run; export_run(sys.argv[1]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "r")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 * 1024 * 1024  # KiB

    code = code.replace(
        "harness.export import export_run; export_run", "harness.report import write_report; write_report"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "r")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 * 1024 * 1024  # KiB
    assert (tmp_path / "r" / "report.html").stat().st_size < 5_000_000


def test_cells_frame_is_the_source_of_every_number(run: Path) -> None:
    frame = cells_frame(Store.read(run))
    native = frame[(frame.benchmark == "ruler") & (frame.context == "8k") & (frame.length == 4096)]
    data = json.loads(export_run(run, fmt="json"))
    for i, model in enumerate(("baseline", "gated")):
        assert data["rows"][i]["RULER 4K"]["value"] == pytest.approx(native[native.model == model].score.mean())
