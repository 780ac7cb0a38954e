"""What a run's probes measured, as a table in the style of the paper's Table 4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from harness.config import TableOptions
from harness.store import Store
from harness.store.probes import Probes
from harness.tables.caption import free_lines
from harness.tables.definitions import definition_lines
from harness.tables.layout import Column, Entry, Table, length_title
from harness.tables.reference import ProbeReference
from harness.tables.view import chosen, viewed
from harness.text import counted
from harness.types import GatedevalError


def probe_records(store: Store) -> list[dict[str, Any]]:
    """The records of the run's probes that its section `table` shows, in its order and under its names.

    Lengths choose among the probes' lengths; where the section names none of these, it speaks of benchmarks alone, and
    every length is shown.
    """
    store, view = viewed(store)
    found = Probes(store.path).records(store.manifest.get("probes"))
    lengths = set(view.lengths or ()) & {r["length"] for r in found}
    shown = [
        r
        for r in found
        if (view.models is None or r["model"] in view.models)
        and (view.contexts is None or r["context"] in view.contexts)
        and (not lengths or r["length"] in lengths)
    ]
    for key, given in (("length", view.lengths), ("context", view.contexts), ("model", view.models)):
        if given is not None and all(r[key] in given for r in shown):
            shown.sort(key=lambda r, key=key, given=given: given.index(r[key]))  # type: ignore[misc]
    return shown


def missing_probes(store: Store) -> list[str]:
    """One line that names the planned probes that are not made yet; none where all are."""
    planned = store.manifest.get("probes") or []
    there = Probes(store.path).hashes() if planned else set()
    lacking = [p for p in planned if p["hash"] not in there]
    if not lacking:
        return []
    names = "; ".join(f"{p['model']} / {p['context']} at {length_title(p['length'])}" for p in lacking[:4])
    more = f"; and {len(lacking) - 4} more" if len(lacking) > 4 else ""
    return [f"Missing: {len(lacking)} of {counted(len(planned), 'probe')}: {names}{more}."]


def probe_table(store: Store, reference: ProbeReference | None = None) -> Table:
    """One row per model, context setting and length, as the run's section `table` chooses them.

    `reference`: published rows that stand below the run's.

    Raises:
        GatedevalError: the run has no probes, or none of them is chosen.
    """
    store, view = viewed(store)
    records = probe_records(store)
    if not records:
        if Probes(store.path).records(store.manifest.get("probes")):
            raise GatedevalError("no probe is left: the chosen models, contexts and lengths were not probed together")
        raise GatedevalError(f"{store.path} has no probes: `gatedeval probe CONFIG` makes them")
    columns = [
        Column(title="Model", numeric=False),
        Column(title="Gate", numeric=False),
        Column(title="Context", numeric=False),
        Column(title="Length", numeric=False),
        *(Column(title=t, plain=True) for t in ("F-Attn", "Sink heads", "M-Act", "Gate score", "Gates < 0.1", "PPL")),
        Column(title="before", group="Outputs < 0.01", short="small before", plain=True),
        Column(title="after", group="Outputs < 0.01", short="small after", plain=True),
    ]
    missing = missing_probes(store)
    table = Table(
        style="probe",
        title=store.manifest.get("name") or store.path.name,
        headline="Attention on the first token, activations and gates.",
        columns=columns,
        rows=[_row(record) for record in records],
        make_frame=lambda: _frame(records, reference),
        caption=[*_caption(store, view, records), *missing],
        missing=missing,
    )
    table.breaks = {i for i in range(1, len(records)) if records[i]["model"] != records[i - 1]["model"]}
    if reference is not None:
        table.breaks.add(len(table.rows))
        table.rows += [_published(reference.name, row) for row in reference.rows()]
        table.caption.append(f"{reference.name}: published numbers, {reference.source}.")
    return table


def _number(value: float | None, decimals: int, note: str | None = None) -> Entry:
    return Entry() if value is None else Entry(value=value, decimals=decimals, note=note)


def _perplexity(value: float | None, decimals: int = 2) -> Entry:
    """Two decimals below 1,000, none below a million, powers of ten above."""
    return _number(value, 0 if value is not None and 1000 <= value < 1e6 else decimals)


def _row(record: dict[str, Any]) -> list[Entry]:
    error = record["first_token_attention_error"]
    after = record["small_after"]
    return [
        Entry(text=record["model"]),
        Entry(text=record["gate"]),
        Entry(text=record["context"]),
        Entry(text=length_title(record["length"])),
        _number(record["first_token_attention"], 3, None if record["exact"] else f"(±{1.96 * error:.4f})"),
        _number(record["sink_rate"], 3),
        _number(record["largest_activation"], 0 if record["largest_activation"] >= 100 else 1),
        _number(record["gate_mean"], 3),
        _number(record["gate_low"], 3),
        _perplexity(record["perplexity"]),
        _number(record["small_before"][0], 3),
        _number(after[0] if after else None, 3),
    ]


def _published(name: str, row: dict[str, Any]) -> list[Entry]:
    """A row of the reference: it has neither context nor length, and fewer columns."""
    return [
        Entry(text=f"{name}: {row['model']}"),
        Entry(text=row["gate"]),
        Entry(),
        Entry(),
        _number(row["first_token_attention"], 3),
        Entry(),
        _number(row["largest_activation"], 0),
        _number(row["gate_mean"], 3),
        Entry(),
        _perplexity(row["perplexity"], 3),
        Entry(),
        Entry(),
    ]


def _caption(store: Store, view: TableOptions, records: list[dict[str, Any]]) -> list[str]:
    texts = " · ".join(dict.fromkeys(r["text"] for r in records))
    begin = "queries from position 0 on" if records[0]["first_query"] else "queries from position 1 on"
    lines = [f"text: {texts}; all numbers depend on the text"]
    if view.caption == "full":
        models, contexts = ([r[key] for r in records] for key in ("model", "context"))
        order = chosen(list(dict.fromkeys(models)), view.models)
        lines += [
            f"F-Attn: attention weight on the first token, mean over layers, heads and {begin}, before the gate;"
            " sink heads: share of heads whose own mean is above 0.3",
            "M-Act: largest absolute value of the residual stream after each layer (of the last layer: after the"
            " final norm), mean over layers",
            "gate score: mean over layers, heads, dimensions and tokens; outputs < 0.01: share of the attention"
            " output's values that are below 0.01 in absolute value, before and after the gate",
            "PPL: perplexity of the text, each token predicted from all tokens before it",
            *definition_lines(store, order, dict.fromkeys(contexts), probes=True),
        ]
    if not all(r["exact"] for r in records):
        lines.append("±: 95% interval of the mean over query positions, where a random sample of them was computed")
    return [*lines, *free_lines(store)]


def _frame(records: Sequence[dict[str, Any]], reference: ProbeReference | None) -> pd.DataFrame:
    """The tidy frame: one row per probe, every headline number."""
    rows = []
    for record in records:
        row = {k: v for k, v in record.items() if not isinstance(v, list)}
        for name in ("small_before", "small_after", "small_scaled"):
            for i, threshold in enumerate(("1e-2", "1e-3")):
                row[f"{name}_{threshold}"] = None if record[name] is None else record[name][i]
        rows.append(row)
    for published in reference.rows() if reference is not None else ():
        rows.append({"model": f"{reference.name}: {published['model']}", **_known(published, rows[0])})  # type: ignore[union-attr]
    return pd.DataFrame(rows)


def _known(published: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a published row that the frame has a column for."""
    return {k: v for k, v in published.items() if k in columns and k != "model" and not _absent(v)}


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
