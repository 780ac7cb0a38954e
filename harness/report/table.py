"""The run's Table 5 as the page shows it: a section per context setting, intervals drawn below the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from harness.export.text import groups
from harness.report.html import render
from harness.tables.layout import Entry, Table


@dataclass(frozen=True)
class Field:
    """One number of the table; `low`, `high` and `at`: its 95% interval and itself on 0-100, where they are drawn."""

    entry: Entry
    track: tuple[float, float, float] | None

    @property
    def title(self) -> str:
        """What a reader sees on hovering."""
        if self.entry.interval is None:
            return ""
        return f"95% interval {self.entry.interval[0]:.2f} to {self.entry.interval[1]:.2f}"


def comparison_table(table: Table, models: list[str], contexts: Mapping[str, str]) -> Markup:
    """Table 5 (columns model, context, then scores) as an HTML table. `contexts`: label -> definition.

    `models`: all models of the run, whose order fixes their colours.
    """
    sections: list[tuple[str, str, list[tuple[str, int, list[Field]]]]] = []
    for model, context, *scores in table.rows:
        label = str(context.text)
        if not sections or sections[-1][0] != label:
            sections.append((label, contexts.get(label, ""), []))
        colour = models.index(str(model.text)) if model.text in models else 0
        sections[-1][2].append((str(model.text), colour, [_field(e) for e in scores]))
    columns = table.columns[2:]
    return render("table", groups=groups(columns), columns=columns, sections=sections, characters=_characters(table))


def _field(entry: Entry) -> Field:
    track = None
    if entry.interval is not None and entry.value is not None and 0 <= entry.value <= 100:
        low, high = entry.interval
        track = (round(low, 2), round(high, 2), round(entry.value, 2))
    return Field(entry, track)


def _characters(table: Table) -> int:
    """About how many characters a row is wide: on paper, the size of the letters follows from it."""
    widest = max((len(str(row[0].text)) for row in table.rows), default=0)
    fields = [
        max([len(c.title), *(len(row[i].number) + len(row[i].marks) + 2 for row in table.rows)])
        for i, c in enumerate(table.columns)
        if i > 1
    ]
    return widest + sum(fields) + 4
