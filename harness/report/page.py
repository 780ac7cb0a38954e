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
from harness.figures.wavelengths import described as in_words
from harness.figures.wavelengths import screen_figure
from harness.report.charts import charts
from harness.report.facts import Facts, facts_of
from harness.report.heat import heat_table, legend
from harness.report.html import asset, render, samples_link, script
from harness.report.links import of_model
from harness.report.pairs import pair_counts
from harness.report.probe import probe_section
from harness.report.rounds import rounds_rows
from harness.report.samples import Browser, browser_data
from harness.report.table import comparison_table
from harness.report.training import training_section
from harness.report.verdict import Verdict, verdicts
from harness.stats import RULER_THRESHOLD
from harness.store import Store
from harness.store.files import write_atomic
from harness.tables import sweep as sweeps
from harness.tables import table5
from harness.tables.arms import arms_of, checkpoint_view
from harness.tables.arms_view import names_checkpoints
from harness.tables.curves import Grid, grids_of, needle_grid, scored_over_length
from harness.tables.frames import labels
from harness.tables.view import viewed
from harness.tables.wavelengths import caption as wavelength_caption
from harness.tables.wavelengths import wavelengths


class Section(NamedTuple):
    """A part of the page; `key` is its id and what links name."""

    key: str
    title: str
    content: Markup


def write_report(
    path: Path | str,
    out: Path | str | None = None,
    *,
    baseline: str | None = None,
    candidate: str | None = None,
    infer: str | None = None,
) -> Path:
    """Write the run's report; returns the file (RUN/report.html unless `out` says where).

    `baseline` and `candidate` choose whose verdict and difference are shown, where the run has more than two models.
    `infer`: "files" or "recipe", in place of the run's own choice.
    """
    path = Path(path)
    file = Path(out) if out is not None else path / "report.html"
    write_atomic(file, report(Store.read(path), baseline, candidate, infer))
    return file


def report(store: Store, baseline: str | None = None, candidate: str | None = None, infer: str | None = None) -> str:
    """The page as text. Labels, captions and responses are escaped or enter the page as text nodes.

    Models and contexts have the names that the run's own section `table` gives them. Where a checkpoint of an arm is
    named, the arms are taken apart.
    """
    apart = names_checkpoints(store, baseline, candidate)
    store, view = viewed(store, infer=infer, arms="off" if apart else None)
    if arms_of(store) is not None:  # a row per checkpoint too, which the page folds
        store, view = viewed(store, arms="expanded")
    single, _ = checkpoint_view(store, ())
    facts = facts_of(single)
    told, untold = verdicts(store, baseline, candidate)
    counts = pair_counts(single)
    browser = browser_data(single, counts)
    sections = [
        Section("verdict", "Verdict", render("verdict", verdicts=told, untold=untold) if told or untold else Markup()),
        Section("comparison", "Comparison", _comparison(store, baseline, facts)),
        Section("rounds", "Where the samples went", _rounds(store)),
        Section("sweep", "RoPE base and YaRN factor", _sweep(store)),
        Section("curves", "Score over length", _curves(store)),
        Section("training", "Score over training", training_section(store, view, baseline, candidate)),
        Section("wavelengths", "Wavelengths of the context settings", _wavelengths(store)),
        Section("tasks", "Tasks and lengths", _tasks(store, baseline, candidate, told)),
        Section("needles", "Needle depth and length", _needles(store)),
        Section("probe", "Attention, gates, activations", probe_section(store)),
        Section("pairs", "Pairs", render("pairs") if counts else Markup()),
        Section("samples", "Samples", _samples(browser) if store.cells else Markup()),
    ]
    shown = [section for section in sections if section.content]
    return render(
        "page",
        name=str(store.manifest.get("name") or store.path.name),
        facts=facts,
        sections=shown,
        config_after=next((key for key in ("comparison", "probe") if any(s.key == key for s in shown)), ""),
        data=Markup(browser.packed),  # base64: no character of it is special in HTML
        style=asset("page.css"),
        script=script(),
        colours=list(zip(MODELS, MODELS_DARK, strict=True)),
    )


def _comparison(store: Store, baseline: str | None, facts: Facts) -> Markup:
    """Table 5 as the terminal prints it; empty for a run of probes alone."""
    if not store.cells:
        return Markup()
    table = table5(store, baseline=baseline)
    if [column.title for column in table.columns[:2]] == ["model", "context"]:
        drawn = comparison_table(table, labels(store, "models"), facts.contexts, arms_of(store))
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


def _wavelengths(store: Store) -> Markup:
    """The rotary encoding under each setting; empty where the run has recorded one setting alone, or none."""
    found = wavelengths(store)
    if not found:
        return Markup()
    with drawing(SCREEN):
        charts = [
            (", ".join(one.models), Markup(inline(screen_figure(one), f"wave{i}", in_words(one))))
            for i, one in enumerate(found)
        ]
    return render("wavelengths", charts=charts, caption=wavelength_caption(found))


def _tasks(store: Store, baseline: str | None, candidate: str | None, told: list[Verdict]) -> Markup:
    """Per context, task x length of every model, then the differences, which share one scale on the page."""
    benchmark = scored_over_length(store) or ""
    every = list(grids_of(store, baseline, candidate))
    differences = [grid for _, _, grids in every for grid in grids]
    largest = largest_difference(differences)
    marks = {(v.baseline, v.candidate): v.marks for v in told}
    maps = []
    for context, grids, changes in every:
        own = [heat_table(grid, link=_link(store, benchmark, grid.model, context)) for grid in grids.values()]
        changed = [_difference(store, change, context, benchmark, marks, largest) for change in changes]
        if own:
            maps.append((context, own, changed))
    if not maps:
        return Markup()
    return render(
        "tasks", maps=maps, scores=legend(), differences=legend(largest=largest) if differences else None, tested=told
    )


def _difference(
    store: Store,
    change: Grid,
    context: str,
    benchmark: str,
    marks: dict[tuple[str, str], dict[tuple[str, str, int], str]],
    largest: float,
) -> Markup:
    pair = marks.get((change.baseline, change.model), {})
    own = {(task, length): mark for (name, task, length), mark in pair.items() if name == context}
    pairs = {"against": f"model:{change.baseline}", "change": "differ"}
    if {change.model, change.baseline} - set(labels(checkpoint_view(store, ())[0], "models")):
        pairs = {}  # samples are of checkpoints: two arms have no pair of samples
    link = _link(store, benchmark, change.model, context, **pairs)
    return heat_table(change, difference=True, largest=largest, marks=own, link=link)


def _link(store: Store, benchmark: str, model: str, context: str, **more: str) -> Callable[[str, int], str]:
    """(task, length) -> the address of a model's samples there."""
    return lambda task, length: samples_link(
        **of_model(store, model), context=context, task=f"{benchmark}/{task}", length=length, **more
    )


def _needles(store: Store) -> Markup:
    """A fold per needle task with its models x contexts grids; grids without a loss are one line."""
    tasks = dict.fromkeys(c.task for c in store.cells if c.benchmark == "ruler" and c.task.startswith("niah_"))
    maps = []
    for task in tasks:
        keys = product(labels(store, "contexts"), labels(store, "models"))
        grids = [grid for context, model in keys if (grid := needle_grid(store, model, context, task)) is not None]
        informing = [grid for grid in grids if _informs(grid)]
        tables = [heat_table(grid, decimals=0, fold=True, link=_depth_link(store, grid, task)) for grid in informing]
        if grids:
            maps.append((task, tables, [grid.title for grid in grids if not _informs(grid)]))
    return render("needles", maps=maps) if maps else Markup()


def _depth_link(store: Store, grid: Grid, task: str) -> Callable[[str, int], str]:
    return lambda row, length: samples_link(
        **of_model(store, grid.model), context=grid.context, task=f"ruler/{task}", length=length, depth=row.rstrip("%")
    )


def _informs(grid: Grid) -> bool:
    """Whether any field of the grid has a score below 100."""
    return bool((grid.values[grid.counts > 0] < 100).any())


def _samples(browser: Browser) -> Markup:
    return render("samples", browser=browser)
