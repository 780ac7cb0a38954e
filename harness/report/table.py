"""The run's Table 5 as the page shows it: a section per context setting, intervals drawn below the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from harness.export.text import groups
from harness.report.html import render
from harness.tables.arm_rows import TITLE as COUNTS
from harness.tables.arms import Arms
from harness.tables.layout import Entry, Table
from harness.text import counted


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


@dataclass(frozen=True)
class Row:
    """One row: `checkpoints` in words where it is an arm; `of`: the arm that it is a checkpoint of."""

    model: str
    colour: int
    fields: list[Field]
    checkpoints: str = ""
    of: str = ""


def comparison_table(table: Table, models: list[str], contexts: Mapping[str, str], arms: Arms | None = None) -> Markup:
    """Table 5 (columns model, context, then scores) as an HTML table. `contexts`: label -> definition.

    `models`: all models of the run, whose order fixes their colours. `arms`: those of a run that is read by arm; an
    arm's checkpoints are below it, and hidden until a reader opens it.
    """
    has_counts = table.columns[2].title == COUNTS
    arm_of = {} if arms is None else {c: row for row, own in arms.rows.items() for c in own if c != row}
    sections: list[tuple[str, str, list[Row]]] = []
    for model, context, *scores in table.rows:
        label, name = str(context.text), str(model.text)
        if not sections or sections[-1][0] != label:
            sections.append((label, contexts.get(label, ""), []))
        count = str(scores.pop(0).text) if has_counts else ""
        arm = arm_of.get(name, "")
        colour = models.index(arm or name) if (arm or name) in models else 0
        opens = arms is not None and arms.rows.get(name, (name,)) != (name,)
        number, _, step = count.partition(" ")
        words = f"{counted(number, 'checkpoint')} {step}".strip() if opens else ""
        sections[-1][2].append(Row(name, colour, [_field(e) for e in scores], words, arm))
    columns = table.columns[2 + has_counts :]
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
        if i > 1 and c.numeric
    ]
    return widest + sum(fields) + 4
