"""Figures: real files, the run's numbers in them, the same bytes every time."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from harness.figures import save_figures
from harness.figures.colours import BAR, MODELS, PAGE
from harness.figures.curves import drawn, length_figure
from harness.figures.style import COLUMN, SCREEN, drawing
from harness.figures.svg import inline
from harness.figures.sweep import sweep_figure
from harness.stats import RULER_THRESHOLD
from harness.store import Store
from harness.tables.curves import curves
from harness.tables.sweep import Panel
from harness.types import Cell, GatedevalError
from tests.support.sample_runs import answer, config, table5_cells, write_run


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
        "ruler_vs_length",
        *(f"ruler_vs_length_{context}" for context in ("8k", "yarn")),
        *(f"ruler_tasks_{model}_{context}" for model in ("baseline", "gated") for context in ("8k", "yarn")),
        *(f"ruler_difference_gated_minus_baseline_{context}" for context in ("8k", "yarn")),
    }, "names say what a figure shows"
    heads = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}
    assert all(f.read_bytes().startswith(heads[f.suffix]) for f in files)
    assert save_figures(run, formats=("svg",))[0] == run / "figures" / "ruler_vs_length.svg"


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    for a, b in zip(
        save_figures(run, tmp_path / "a", ("svg", "pdf")),
        save_figures(run, tmp_path / "b", ("svg", "pdf")),
        strict=True,
    ):
        assert a.read_bytes() == b.read_bytes(), a.name


def test_text_stays_text_and_says_the_numbers(run: Path, tmp_path: Path) -> None:
    files = {f.stem: f for f in save_figures(run, tmp_path, ("svg",))}
    words = [e.text for e in ET.parse(files["ruler_tasks_baseline_8k"]).iter() if e.tag.endswith("text")]
    score = Store.read(run).scores(Cell("baseline", "8k", "ruler", "vt", 4096)).scores.mean()
    assert f"{100 * score:.1f}" in words
    assert "niah_single_1" in words
    assert "16K" not in words, "the context does not reach it"


def test_lines_are_drawn_through_the_scores(run: Path) -> None:
    store = Store.read(run)
    found = curves(store)
    figure = length_figure(drawn(store))
    assert figure.get_size_inches()[0] == pytest.approx(2.1 * COLUMN)
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


def test_axes_say_what_they_show(run: Path, tmp_path: Path) -> None:
    settings = config(lengths=(4096, 8192), tasks=("vt", "cwe"))
    path = write_run(tmp_path / "r", settings, n=12, skill=lambda c: 0.9 if c.model == "gated" else 0.7)
    found = drawn(Store.read(path))
    panel = length_figure(found).axes[0]
    assert panel.get_ylabel() == "RULER (2 of 13 tasks) score"
    assert panel.get_xlabel() == "length, tokens"
    low, high = panel.get_ylim()
    assert low == pytest.approx(10 * ((min(v for c in found.lines for v in c.lows) - 1) // 10)), "from the data"
    assert high == 100
    assert length_figure(found, full=True).axes[0].get_ylim() == (0, 100)
    bars = [line for line in panel.get_lines() if set(line.get_ydata()) == {RULER_THRESHOLD}]
    assert len(bars) == 1, "the bar of the effective length"


def test_few_samples_look_different_and_are_told(tmp_path: Path) -> None:
    settings = config(models=("a", "b"), lengths=(4096, 8192), tasks=("vt",))
    cells: dict[Cell, int | None] = {c: 20 if c.length == 4096 else 5 for c in table5_cells(settings) if c.length}
    with Store.open(tmp_path / "r", {"config": settings}, cells=cells) as store:
        for cell, n in cells.items():
            for i in range(n or 0):
                store.append(cell, answer(cell, i, 0.7))
        store.finish()
    found = drawn(Store.read(tmp_path / "r"))
    assert [c.counts for c in found.lines] == [[20, 5]] * 4
    panel = length_figure(found).axes[0]
    assert [t.get_text() for t in panel.get_xticklabels()] == ["4K\nn=20", "8K\nn=5"]
    hollow = [line for line in panel.get_lines() if line.get_markerfacecolor() == PAGE]
    assert len(hollow) == 2
    assert all(len(line.get_xdata()) == 1 for line in hollow)


def test_a_model_keeps_its_colour_and_one_without_a_curve_is_named(tmp_path: Path) -> None:
    settings = config(models=("short", "long"), lengths=(4096, 8192), tasks=("vt",))
    cells: dict[Cell, int | None] = {
        c: 12 for c in table5_cells(settings) if c.length and (c.model == "long" or c.length == 4096)
    }
    with Store.open(tmp_path / "r", {"config": settings}, cells=cells) as store:
        for cell in cells:
            for i in range(12):
                store.append(cell, answer(cell, i, 0.7))
        store.finish()
    found = drawn(Store.read(tmp_path / "r"))
    assert found.models == ["short", "long"]
    assert found.without == ["short (4K only)"]
    assert {line.get_color() for p in length_figure(found).axes for line in p.get_lines()} == {MODELS[1], BAR}


def test_difference_maps_share_one_scale_with_a_colour_bar(run: Path, tmp_path: Path) -> None:
    files = {f.stem: f for f in save_figures(run, tmp_path, ("svg",))}
    bars = []
    for context in ("8k", "yarn"):
        root = ET.parse(files[f"ruler_difference_gated_minus_baseline_{context}"]).getroot()
        words = [e.text for e in root.iter() if e.tag.endswith("text")]
        assert "difference, points" in words
        bars.append([w for w in words if w and re.fullmatch(r"[\N{MINUS SIGN}\d]+", w)])
    assert bars[0] == bars[1]
    assert bars[0]


def test_significant_differences_are_marked(tmp_path: Path) -> None:
    settings = config(lengths=(4096, 8192), tasks=("niah_single_1", "vt"))
    path = write_run(
        tmp_path / "r", settings, n=60, skill=lambda c: 0.9 if c.model == "gated" and c.task == "vt" else 0.4
    )
    (file,) = (
        f for f in save_figures(path, tmp_path, ("svg",)) if f.stem.startswith("ruler_difference_") and "8k" in f.stem
    )
    words = [e.text or "" for e in ET.parse(file).iter() if e.tag.endswith("text")]
    marked = [w for w in words if w.endswith("\N{BLACK UP-POINTING TRIANGLE}")]
    assert len(marked) == 2, "vt at both lengths, and no field of the task without a difference"


def test_two_contexts_with_like_names_have_two_files(tmp_path: Path) -> None:
    settings = config(models=("a",), lengths=(4096, 8192), tasks=("vt",))
    settings["contexts"][0]["label"], settings["contexts"][1]["label"] = "YaRN x4", "yarn/x4"
    files = save_figures(write_run(tmp_path / "r", settings, n=3), tmp_path, ("svg",))
    assert len({f.name for f in files}) == len(files)
    assert {f.stem for f in files} >= {"ruler_vs_length_yarn_x4", "ruler_vs_length_yarn_x4_2"}


def test_a_sweep_map_has_digits_that_can_be_read_on_their_colour(tmp_path: Path) -> None:
    root = ET.fromstring(sweep_inline())
    fills = [re.search(r"fill: (#\w+)", e.attrib.get("style", "")) for e in root.iter() if e.tag.endswith("text")]
    assert {m.group(1) for m in fills if m} >= {"#ffffff"}, "white digits on dark fields stay white on every page"


def sweep_inline() -> str:
    """The map of a made-up sweep as the report holds it."""
    values = np.array([[0.0, 50.0], [75.0, 100.0]])
    panel = Panel(
        model="m", length=4096, bases=["1e4", "1e6"], factors=["1", "4"], values=values,
        planned=np.ones((2, 2), dtype=bool), native=40.0, half_width=3.0, samples=20,
    )  # fmt: skip
    with drawing(SCREEN):
        return inline(sweep_figure([panel]), "sweep", "words")
