"""The report's curves over training: an SVG per context setting, and how to read it."""

from __future__ import annotations

from markupsafe import Markup

from harness.config import TableOptions
from harness.export.text import html_table
from harness.figures.style import SCREEN, drawing
from harness.figures.svg import inline
from harness.figures.training import contexts_of, described, training_figure
from harness.report.html import render
from harness.store import Store
from harness.tables.arms import arms_of
from harness.tables.training import curved_arms, trainings
from harness.tables.training_table import table_of, training_lines


def training_section(store: Store, view: TableOptions, baseline: str | None, candidate: str | None) -> Markup:
    """The section; empty where the run is not read by arm, or no arm has two training steps.

    `baseline`, `candidate`: as the page's other sections have them; of those that have curves, the difference is shown.
    """
    curved = curved_arms(store)
    if arms_of(store) is None or not curved:
        return Markup()
    given = [name if name in curved else None for name in (baseline, candidate)]
    found = trainings(store, view, *given)
    with drawing(SCREEN):
        charts = [
            (context, Markup(inline(training_figure(store, found, context, screen=True), f"training{i}", words)))
            for i, context in enumerate(contexts_of(found))
            for words in [described(found, context)]
        ]
    table = Markup(html_table(table_of(store, found, view)))
    return render("training", charts=charts, caption=training_lines(found), table=table)
