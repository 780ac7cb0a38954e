"""What a run's probes measured, as a table in the style of the paper's Table 4."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.store import Store
from harness.store.probes import Probes
from harness.tables.layout import Column, Entry, Table, length_title
from harness.types import GatedevalError


def probe_table(store: Store) -> Table:
    """One row per model, context setting and length.

    Raises:
        GatedevalError: the run has no probes.
    """
    records = Probes(store.path).records(store.manifest.get("probes"))
    if not records:
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
    rows = [_row(record) for record in records]
    table = Table(
        style="probe",
        title=store.manifest.get("name") or store.path.name,
        columns=columns,
        rows=rows,
        make_frame=lambda: _frame(records),
        caption=_caption(records),
    )
    table.breaks = {i for i in range(1, len(records)) if records[i]["model"] != records[i - 1]["model"]}
    return table


def _row(record: dict[str, Any]) -> list[Entry]:
    def number(value: float | None, decimals: int, note: str | None = None) -> Entry:
        return Entry() if value is None else Entry(value=value, decimals=decimals, note=note)

    error = record["first_token_attention_error"]
    after = record["small_after"]
    return [
        Entry(text=record["model"]),
        Entry(text=record["gate"]),
        Entry(text=record["context"]),
        Entry(text=length_title(record["length"])),
        number(record["first_token_attention"], 3, None if record["exact"] else f"(±{1.96 * error:.4f})"),
        number(record["sink_rate"], 3),
        number(record["largest_activation"], 0 if record["largest_activation"] >= 100 else 1),
        number(record["gate_mean"], 3),
        number(record["gate_low"], 3),
        number(record["perplexity"], 2),
        number(record["small_before"][0], 3),
        number(after[0] if after else None, 3),
    ]


def _caption(records: list[dict[str, Any]]) -> list[str]:
    texts = " · ".join(dict.fromkeys(r["text"] for r in records))
    begin = "queries from position 0 on" if records[0]["first_query"] else "queries from position 1 on"
    lines = [
        f"text: {texts}; all numbers depend on the text",
        f"F-Attn: attention weight on the first token, mean over layers, heads and {begin}, before the gate;"
        " sink heads: share of heads whose own mean is above 0.3",
        "M-Act: largest absolute value of the residual stream after each layer (of the last layer: after the final"
        " norm), mean over layers",
        "gate score: mean over layers, heads, dimensions and tokens; outputs < 0.01: share of the attention output's"
        " values that are below 0.01 in absolute value, before and after the gate",
        "PPL: perplexity of the text, each token predicted from all tokens before it",
    ]
    if not all(r["exact"] for r in records):
        lines.append("±: 95% interval of the mean over query positions, where a random sample of them was computed")
    return lines


def _frame(records: list[dict[str, Any]]) -> pd.DataFrame:
    """The tidy frame: one row per probe, every headline number."""
    rows = []
    for record in records:
        row = {k: v for k, v in record.items() if not isinstance(v, list)}
        for name in ("small_before", "small_after", "small_scaled"):
            for i, threshold in enumerate(("1e-2", "1e-3")):
                row[f"{name}_{threshold}"] = None if record[name] is None else record[name][i]
        rows.append(row)
    return pd.DataFrame(rows)
