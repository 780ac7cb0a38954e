"""Figures: real files, the run's numbers in them, the same bytes every time."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from harness.figures import save_figures
from harness.figures.curves import length_figure
from harness.figures.style import COLUMN
from harness.store import Store
from harness.tables.curves import curves
from harness.types import Cell, GatedevalError
from tests.support.sample_runs import config, table5_cells, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        tmp_path_factory.mktemp("runs") / "demo",
        config(lengths=(4096, 8192, 16384)),
        skill=lambda c: 0.9 if c.model == "gated" else 0.4,
    )


def test_every_format_is_what_it_says(run: Path, tmp_path: Path) -> None:
    files = save_figures(run, tmp_path)
    assert {f.stem for f in files} == {
        "score_vs_length",
        "tasks_1",
        "tasks_2",
        "difference_2",
        "tasks_3",
        "tasks_4",
        "difference_4",
    }
    heads = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}
    assert all(f.read_bytes().startswith(heads[f.suffix]) for f in files)
    assert save_figures(run, formats=("svg",))[0] == run / "figures" / "score_vs_length.svg"


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    for a, b in zip(
        save_figures(run, tmp_path / "a", ("svg", "pdf")),
        save_figures(run, tmp_path / "b", ("svg", "pdf")),
        strict=True,
    ):
        assert a.read_bytes() == b.read_bytes(), a.name


def test_text_stays_text_and_says_the_numbers(run: Path, tmp_path: Path) -> None:
    files = {f.stem: f for f in save_figures(run, tmp_path, ("svg",))}
    words = [e.text for e in ET.parse(files["tasks_1"]).iter() if e.tag.endswith("text")]
    score = Store.read(run).scores(Cell("baseline", "8k", "ruler", "vt", 4096)).scores.mean()
    assert f"{100 * score:.1f}" in words
    assert "niah_single_1" in words
    assert "16K" not in words, "the context does not reach it"


def test_lines_are_drawn_through_the_scores(run: Path) -> None:
    found = curves(Store.read(run))
    figure = length_figure(found, [4096, 8192, 16384], ["baseline", "gated"])
    assert figure.get_size_inches()[0] == pytest.approx(2 * COLUMN)
    lines = [bar.lines[0] for panel in figure.axes for bar in panel.containers]  # type: ignore[attr-defined]
    assert [list(line.get_ydata()) for line in lines] == [curve.scores for curve in found]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 2, "one look per model over all panels"


def test_a_run_without_averages_cannot_be_drawn(tmp_path: Path) -> None:
    settings = config(lengths=(4096,))
    Store.open(tmp_path / "r", {"config": settings}, cells=table5_cells(settings)).finish()
    with pytest.raises(GatedevalError, match="no RULER average to draw"):
        save_figures(tmp_path / "r")
    with pytest.raises(GatedevalError, match="unknown figure format 'bmp'"):
        save_figures(tmp_path / "r", formats=("bmp",))


def test_a_label_is_text_and_no_formula(tmp_path: Path) -> None:
    models = ("price $5_a$ & <b>", "b\u00e4r \u6a21\u578b", "bell \a")
    files = save_figures(write_run(tmp_path / "r", config(models=models)), tmp_path, ("svg",))
    words = [e.text for e in ET.parse(files[0]).iter() if e.tag.endswith("text")]
    assert {*models[:2], "bell \N{REPLACEMENT CHARACTER}"} <= set(words)


def test_every_model_of_many_has_one_line_in_the_legend(tmp_path: Path) -> None:
    models = [f"a model with a long label, number {i}" for i in range(7)]
    files = save_figures(write_run(tmp_path / "r", config(models=models), n=3), tmp_path, ("svg",))
    root = ET.parse(files[0]).getroot()
    width = float(root.attrib["width"])
    legend = [e for e in root.iter() if e.tag.endswith("text") and e.text in models]
    assert [e.text for e in legend] == models
    places = [re.search(r"translate\(([-\d.]+)", e.attrib.get("transform", "")) for e in legend]
    lefts = [float(p.group(1)) if p else float(e.attrib["x"]) for p, e in zip(places, legend, strict=True)]
    assert all(0 <= left < width for left in lefts)


def test_matplotlib_is_imported_only_when_drawing() -> None:
    code = "import sys; import harness.figures, harness.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
