"""The report's sections and the page around them. The words are in templates/."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from harness.export.text import html_table
from harness.figures.colours import MODELS, MODELS_DARK
from harness.figures.heat import largest_difference
from harness.figures.style import SCREEN, drawing
from harness.figures.svg import inline
from harness.figures.sweep import described, sweep_figure
from harness.report.charts import charts
from harness.report.facts import Facts, facts_of
from harness.report.heat import heat_table, legend
from harness.report.html import asset, render, samples_link, script
from harness.report.pairs import pair_counts
from harness.report.rounds import rounds_rows
from harness.report.samples import Browser, browser_data
from harness.report.table import comparison_table
from harness.report.verdict import Verdict, verdicts
from harness.stats import RULER_THRESHOLD
from harness.store import Store
from harness.store.files import write_atomic
from harness.tables import sweep as sweeps
from harness.tables import table5
from harness.tables.curves import Grid, grids_of, needle_grid, scored_over_length
from harness.tables.frames import labels
from harness.tables.view import viewed


class Section(NamedTuple):
    """A part of the page; `key` is its id and what links name."""

    key: str
    title: str
    content: Markup


def write_report(
    path: Path | str, out: Path | str | None = None, *, baseline: str | None = None, candidate: str | None = None
) -> Path:
    """Write the run's report; returns the file (RUN/report.html unless `out` says where).

    `baseline` and `candidate` choose whose verdict and difference are shown, where the run has more than two models.
    """
    path = Path(path)
    file = Path(out) if out is not None else path / "report.html"
    write_atomic(file, report(Store.read(path), baseline, candidate))
    return file


def report(store: Store, baseline: str | None = None, candidate: str | None = None) -> str:
    """The page as text. Labels, captions and responses are escaped or enter the page as text nodes.

    Models and contexts have the names that the run's own section `table` gives them.
    """
    store, _ = viewed(store)
    facts = facts_of(store)
    told, untold = verdicts(store, baseline, candidate)
    counts = pair_counts(store)
    browser = browser_data(store, counts)
    sections = [
        Section("verdict", "Verdict", render("verdict", verdicts=told, untold=untold) if told or untold else Markup()),
        Section("comparison", "Comparison", _comparison(store, baseline, facts)),
        Section("rounds", "Where the samples went", _rounds(store)),
        Section("sweep", "RoPE base and YaRN factor", _sweep(store)),
        Section("curves", "Score over length", _curves(store)),
        Section("tasks", "Tasks and lengths", _tasks(store, baseline, candidate, told)),
        Section("needles", "Needle depth and length", _needles(store)),
        Section("pairs", "Pairs", render("pairs") if counts else Markup()),
        Section("samples", "Samples", _samples(browser)),
    ]
    return render(
        "page",
        name=str(store.manifest.get("name") or store.path.name),
        facts=facts,
        sections=[section for section in sections if section.content],
        data=Markup(browser.packed),  # base64: no character of it is special in HTML
        style=asset("page.css"),
        script=script(),
        colours=list(zip(MODELS, MODELS_DARK, strict=True)),
    )


def _comparison(store: Store, baseline: str | None, facts: Facts) -> Markup:
    """Table 5 as the terminal prints it."""
    table = table5(store, baseline=baseline)
    if [column.title for column in table.columns[:2]] == ["model", "context"]:
        drawn = comparison_table(table, labels(store, "models"), facts.contexts)
    else:  # the run's own choices transpose it
        drawn = Markup(html_table(table))
    return render("comparison", table=drawn, caption=table.caption)


def _rounds(store: Store) -> Markup:
    """How samples were chosen; empty where all numbers of samples are plain counts."""
    rows = rounds_rows(store)
    return render("rounds", rows=rows) if rows else Markup()


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


def _tasks(store: Store, baseline: str | None, candidate: str | None, told: list[Verdict]) -> Markup:
    """Per context, task x length of every model, then the differences, which share one scale on the page."""
    benchmark = scored_over_length(store) or ""
    every = list(grids_of(store, baseline, candidate))
    differences = [grid for _, _, grids in every for grid in grids]
    largest = largest_difference(differences)
    marks = {(v.baseline, v.candidate): v.marks for v in told}
    maps = []
    for context, grids, changes in every:
        own = [heat_table(grid, link=_link(benchmark, grid.model, context)) for grid in grids.values()]
        changed = [_difference(change, context, benchmark, marks, largest) for change in changes]
        if own:
            maps.append((context, own, changed))
    if not maps:
        return Markup()
    return render(
        "tasks", maps=maps, scores=legend(), differences=legend(largest=largest) if differences else None, tested=told
    )


def _difference(
    change: Grid,
    context: str,
    benchmark: str,
    marks: dict[tuple[str, str], dict[tuple[str, str, int], str]],
    largest: float,
) -> Markup:
    pair = marks.get((change.baseline, change.model), {})
    own = {(task, length): mark for (name, task, length), mark in pair.items() if name == context}
    link = _link(benchmark, change.model, context, against=f"model:{change.baseline}", change="differ")
    return heat_table(change, difference=True, largest=largest, marks=own, link=link)


def _link(benchmark: str, model: str, context: str, **more: str) -> Callable[[str, int], str]:
    """(task, length) -> the address of a model's samples there."""
    return lambda task, length: samples_link(
        model=model, context=context, task=f"{benchmark}/{task}", length=length, **more
    )


def _needles(store: Store) -> Markup:
    """A fold per needle task with its models x contexts grids; grids without a loss are one line."""
    tasks = dict.fromkeys(c.task for c in store.cells if c.benchmark == "ruler" and c.task.startswith("niah_"))
    maps = []
    for task in tasks:
        keys = product(labels(store, "contexts"), labels(store, "models"))
        grids = [grid for context, model in keys if (grid := needle_grid(store, model, context, task)) is not None]
        informing = [grid for grid in grids if _informs(grid)]
        tables = [heat_table(grid, decimals=0, fold=True, link=_depth_link(grid, task)) for grid in informing]
        if grids:
            maps.append((task, tables, [grid.title for grid in grids if not _informs(grid)]))
    return render("needles", maps=maps) if maps else Markup()


def _depth_link(grid: Grid, task: str) -> Callable[[str, int], str]:
    return lambda row, length: samples_link(
        model=grid.model, context=grid.context, task=f"ruler/{task}", length=length, depth=row.rstrip("%")
    )


def _informs(grid: Grid) -> bool:
    """Whether any field of the grid has a score below 100."""
    return bool((grid.values[grid.counts > 0] < 100).any())


def _samples(browser: Browser) -> Markup:
    return render("samples", browser=browser)
