"""The change from a model's own context to an extended one, beside its attention sink: Table 5 against Table 4.

The paper's explanation of its Table 5 (section 4.4) is that models with an attention sink lose more when YaRN stretches
their positions. A run that has both scores and probes shows the two numbers of each of its models side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.benchmarks.presentation import presentation_of
from harness.store import Store
from harness.tables.aggregates import over_length, tasks_of
from harness.tables.frames import labels
from harness.tables.layout import Column, Entry, Table, length_title
from harness.tables.measures import measures_of
from harness.tables.probe import probe_records
from harness.tables.rows import Row, contexts_of, is_extended, rows_of
from harness.tables.view import viewed
from harness.text import counted
from harness.types import GatedevalError

FEW = (
    "proves nothing about sinks or gates: a difference between a few checkpoints may come from the gate, from the data,"
    " or from the training seed"
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One model under one extended context setting.

    `own`, `extended`: mean score over `lengths` (tokens, those that both settings have), 0-100. `first`: attention on
    the first token under the model's own setting, from the probe at `probed` tokens; `error`: its standard error.
    """

    model: str
    gate: str
    benchmark: str
    base: str
    context: str
    lengths: tuple[int, ...]
    own: float
    extended: float
    first: float
    error: float
    probed: int

    @property
    def change(self) -> float:
        """Extended minus own, points."""
        return self.extended - self.own


def changes(store: Store) -> list[Change]:
    """Every model and extended context setting with scores at a common length, and with a probe; empty for none.

    A model's own setting is its first one that does not stretch positions, as in Table 5.
    """
    store, view = viewed(store)
    probes = probe_records(store)
    benchmark = next(iter(over_length(store)), None)
    if not probes or benchmark is None:
        return []
    measures = measures_of(store, False, None)
    at = {m.length: i for i, m in enumerate(measures) if m.benchmark == benchmark and m.length}
    contexts = contexts_of(store)
    rows = rows_of(store, contexts, measures)
    found = []
    for row in rows:
        base = _base(row, rows, contexts)
        mine = [p for p in probes if base is not None and (p["model"], p["context"]) == (row.model, base.context)]
        if base is None or not mine or (view.contexts is not None and row.context not in view.contexts):
            continue
        pairs = {n: (_value(base, i), _value(row, i)) for n, i in sorted(at.items())}
        both = {n: pair for n, pair in pairs.items() if not any(map(math.isnan, pair))}
        if not both:
            continue
        longest = max(mine, key=lambda p: p["length"])
        found.append(
            Change(
                model=row.model,
                gate=longest["gate"],
                benchmark=benchmark,
                base=base.context,
                context=row.context,
                lengths=tuple(both),
                own=sum(a for a, _ in both.values()) / len(both),
                extended=sum(b for _, b in both.values()) / len(both),
                first=longest["first_token_attention"],
                error=longest["first_token_attention_error"],
                probed=longest["length"],
            )
        )
    order = labels(store, "models")
    return sorted(found, key=lambda c: (list(contexts).index(c.context), order.index(c.model)))


def _base(row: Row, rows: list[Row], contexts: dict[str, dict[str, Any]]) -> Row | None:
    """The row of the same model under its first un-extended setting; None for a row that is not extended."""
    if not is_extended(contexts[row.context]):
        return None
    return next((r for r in rows if r.model == row.model and not is_extended(contexts[r.context])), None)


def _value(row: Row, i: int) -> float:
    value = row.values[i]
    return math.nan if value is None else value.value


def words(found: list[Change], store: Store) -> list[str]:
    """How the changes were computed, and what they do not show."""
    models = len({c.model for c in found})
    shown = presentation_of(found[0].benchmark)
    title, _ = shown.titles(tasks_of(store, found[0].benchmark))
    return [
        f"{counted(models, 'model')}: this {FEW}. No correlation is computed",
        f"change: mean {title} score over the lengths that both context settings have, extended minus own, in points;"
        " a model's own setting is its first one that does not stretch positions",
        "F-Attn: attention weight on the first token under the own setting, from the longest probe there",
    ]


def sinks_table(store: Store) -> Table:
    """One row per model and extended context setting.

    Raises:
        GatedevalError: the run has no model with scores under both settings and a probe.
    """
    store, view = viewed(store)
    found = changes(store)
    if not found:
        raise GatedevalError(
            f"{store.path}: no model has a probe, and scores at one length under a context setting of its own and under"
            " an extended one (yarn, linear, dynamic); `gatedeval table RUN --style probe` shows the probes there are"
        )
    title = presentation_of(found[0].benchmark).title
    columns = [
        *(Column(title=t, numeric=False) for t in ("Model", "Gate", "Own", "Extended")),
        Column(title="F-Attn", plain=True),
        Column(title="probed at", numeric=False),
        Column(title="own", group=title, plain=True),
        Column(title="extended", group=title, plain=True),
        Column(title="change", group=title, plain=True),
        Column(title="lengths", group=title, numeric=False),
    ]
    return Table(
        style="sinks",
        title=store.manifest.get("name") or store.path.name,
        headline="Change under an extended context, and attention on the first token.",
        columns=columns,
        rows=[_row(change, view.digits) for change in found],
        make_frame=lambda: pd.DataFrame([_tidy(change) for change in found]),
        breaks={i for i in range(1, len(found)) if found[i].context != found[i - 1].context},
        caption=words(found, store),
    )


def _row(change: Change, digits: int) -> list[Entry]:
    note = f"(±{1.96 * change.error:.4f})" if change.error else None
    return [
        *(Entry(text=text) for text in (change.model, change.gate, change.base, change.context)),
        Entry(value=change.first, decimals=3, note=note),
        Entry(text=length_title(change.probed)),
        Entry(value=change.own, decimals=digits),
        Entry(value=change.extended, decimals=digits),
        Entry(value=change.change, decimals=digits, signed=True),
        Entry(text=span(change.lengths)),
    ]


def span(lengths: tuple[int, ...]) -> str:
    """ "512 to 2K", or the one length."""
    first, last = length_title(lengths[0]), length_title(lengths[-1])
    return first if first == last else f"{first} to {last}"


def _tidy(change: Change) -> dict[str, Any]:
    return {
        "model": change.model,
        "gate": change.gate,
        "own_context": change.base,
        "context": change.context,
        "first_token_attention": change.first,
        "first_token_attention_error": change.error,
        "probe_length": change.probed,
        "benchmark": change.benchmark,
        "lengths": " ".join(map(str, change.lengths)),
        "own": change.own,
        "extended": change.extended,
        "change": change.change,
    }
