"""Probes in a run directory: probe/probes.jsonl has one line per probe, probe/<hash>.npz its arrays.

The arrays are written first and renamed into place, then the line is appended. A process that is killed in between
leaves a file that no line names. A probe is found again by its content hash.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.store.files import Appender, explain, to_line

FOLDER = "probe"
LINES = "probes.jsonl"


class Probes:
    """The probes of the run directory `run`. Reading needs no lock; only the process that holds the run's may `add`."""

    def __init__(self, run: Path) -> None:
        self.folder = Path(run) / FOLDER

    def records(self, planned: Sequence[Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
        """The probes of the run's present plan, in its order, under its labels.

        `planned`: run.json's `probes`: model, context, length and hash of each. A probe that was made under another
        label is found by its hash. None, for a run that recorded no plan: the last record of every model, context and
        length.
        """
        if planned is None:
            last = {(r["model"], r["context"], r["length"]): r for r in self._lines()}
            return list(last.values())
        by_hash = {r["hash"]: r for r in self._lines()}
        return [{**by_hash[p["hash"]], **p} for p in planned if p["hash"] in by_hash]

    def hashes(self) -> set[str]:
        """The content hashes of all finished probes."""
        return {r["hash"] for r in self._lines()}

    def add(self, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store a probe. `record`: JSON-able, with model, context, length and hash.

        Raises:
            GatedevalError: the directory cannot be written.
        """
        file = self.folder / f"{record['hash']}.npz"
        temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(buffer.getvalue())
            temporary.replace(file)
        except OSError as error:
            raise explain(error, "write", file) from error
        appender = Appender(self.folder / LINES)
        try:
            appender.append(to_line(record))
        finally:
            appender.close()

    def arrays(self, record: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """The arrays of a record."""
        with np.load(self._file(record)) as stored:
            return dict(stored)

    def _file(self, record: Mapping[str, Any]) -> Path:
        return self.folder / f"{record['hash']}.npz"

    def _lines(self) -> list[dict[str, Any]]:
        """Every whole line whose arrays are there."""
        try:
            text = (self.folder / LINES).read_text(encoding="utf-8", errors="replace")  # the last line may be torn
        except FileNotFoundError:
            return []
        found = []
        for line in text.split("\n"):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # torn: the probe is made again
            if isinstance(record, dict) and "hash" in record and zipfile.is_zipfile(self._file(record)):
                found.append(record)  # an empty or torn file of arrays, after a power cut, is no probe
        return found
