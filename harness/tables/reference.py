"""Published numbers beside ours: tidy CSV files in results/reference/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.tables.layout import Entry, Table
from harness.types import GatedevalError, first_line

DIRECTORY = Path(__file__).resolve().parents[2] / "results" / "reference"
FILES = {"paper": "gated_attention_table5.csv"}
COLUMNS = ("model", "context", "benchmark", "task", "length", "samples", "score", "extended", "source")
PROBE_FILES = {"paper": "gated_attention_table4.csv"}
PROBE_NUMBERS = ("first_token_attention", "largest_activation", "gate_mean", "perplexity")
PROBE_COLUMNS = ("model", "gate", *PROBE_NUMBERS, "source")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Published rows.

    `frame`: columns `COLUMNS`; score on 0-100, length in tokens, means over tasks have the task "average". `source`:
    citation. `extended`: context labels that stretch positions.
    """

    name: str
    source: str
    frame: pd.DataFrame
    extended: frozenset[str]

    def benchmarks(self) -> list[str]:
        """Benchmarks with published numbers."""
        return [str(name) for name in self.frame.benchmark.unique()]

    def lengths(self, benchmark: str) -> list[int]:
        """Lengths that the benchmark has published numbers at, ascending."""
        return sorted(int(n) for n in self.frame.loc[self.frame.benchmark == benchmark, "length"].unique())


@dataclass(frozen=True, kw_only=True)
class ProbeReference:
    """Published numbers of what attention, gates and activations do: columns `PROBE_COLUMNS`, one row per model."""

    name: str
    source: str
    frame: pd.DataFrame

    def rows(self) -> list[dict[str, Any]]:
        """The rows in the file's order; a number that is not published is None."""
        records = self.frame.astype(object).where(self.frame.notna(), None).to_dict("records")
        return [{str(key): value for key, value in record.items()} for record in records]


def load_probe_reference(name: str) -> ProbeReference:
    """The reference of a probe table by its name ("paper": Table 4) or by a CSV's path.

    Raises:
        GatedevalError: there is no such file, or it has not the columns.
    """
    path, frame = _read(name, PROBE_FILES, PROBE_COLUMNS)
    for column in PROBE_NUMBERS:
        numbers = pd.to_numeric(frame[column], errors="coerce")
        if bool((numbers.isna() & frame[column].notna()).any()):
            raise GatedevalError(f"{path}: column {column} has something that is no number")
        frame[column] = numbers
    for column in ("model", "gate", "source"):
        frame[column] = frame[column].fillna("").astype(str)
    return ProbeReference(
        name=name if name in PROBE_FILES else path.stem, source=str(frame["source"].iloc[0]), frame=frame
    )


def _read(name: str, files: Mapping[str, str], columns: Sequence[str]) -> tuple[Path, pd.DataFrame]:
    """The path of a reference, and its table, which has `columns` and at least one row."""
    path = DIRECTORY / files[name] if name in files else Path(name)
    try:
        frame = pd.read_csv(path)
    except FileNotFoundError:
        raise GatedevalError(f"no reference {name!r}: no file {path}; known names: {', '.join(files)}") from None
    except (OSError, ValueError) as error:
        raise GatedevalError(f"{path} cannot be read as CSV ({first_line(error)}); give a CSV file") from error
    absent = [column for column in columns if column not in frame.columns]
    if absent:
        raise GatedevalError(f"{path} has no column {', '.join(absent)}; a reference has {', '.join(columns)}")
    if frame.empty:
        raise GatedevalError(f"{path} has no row; a reference has one for each published number")
    return path, frame


def load_reference(name: str) -> Reference:
    """The reference by its name ("paper") or by a CSV's path. Raises GatedevalError when there is no such file."""
    path, frame = _read(name, FILES, COLUMNS)
    return Reference(
        name=name if name in FILES else path.stem,
        source=str(frame["source"].iloc[0]),
        frame=frame,
        extended=frozenset(frame.loc[frame["extended"].astype(bool), "context"]),
    )


def with_reference(table: Table, reference: Reference, columns: list[tuple[str, int] | None], digits: int = 2) -> Table:
    """Add the published rows below ours.

    `columns`: for each score column the benchmark and length whose published mean belongs there, or None.
    """
    frame = reference.frame[reference.frame.benchmark.isin([key[0] for key in columns if key is not None])]
    records = frame.to_dict("records")
    scores = {(r["model"], r["context"], (r["benchmark"], int(r["length"]))): float(r["score"]) for r in records}
    native = next((c for c in frame.context.unique() if c not in reference.extended), None)
    table.breaks.add(len(table.rows))
    for model, context in dict.fromkeys((str(r["model"]), str(r["context"])) for r in records):
        row = [Entry(text=f"{reference.name}: {model}"), Entry(text=context)]
        for key in columns:
            value, base = (None if key is None else scores.get((model, c, key)) for c in (context, native))
            drop = value - base if context in reference.extended and value is not None and base is not None else None
            row.append(Entry(value=value, drop=drop, decimals=digits))
        if table.rows and context in reference.extended and table.rows[-1][1].text != context:
            table.breaks.add(len(table.rows))
        table.rows.append(row)
    table.caption.append(f"{reference.name}: published numbers, {reference.source}.")
    return table


def reference_frame(frame: pd.DataFrame, reference: Reference) -> pd.DataFrame:
    """The tidy frame with the published rows appended, models labelled "paper: ..."."""
    rows = reference.frame.drop(columns=["extended", "source"]).assign(
        model=[f"{reference.name}: {m}" for m in reference.frame.model]
    )
    for column in frame.columns:
        if column not in rows:
            rows[column] = "" if frame[column].dtype == object else float("nan")
    rows["samples"] = rows["samples"].astype("Int64")
    return pd.concat([frame.assign(samples=frame["samples"].astype("Int64")), rows[frame.columns]], ignore_index=True)
