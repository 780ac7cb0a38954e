"""The run directory: the one source of truth about an evaluation.

results/<name>/run.json               manifest: resolved config, versions, fingerprints, plan, failures, state
               samples/<cell>.jsonl   append-only, one line a sample
               expected/<cell>.json   sample id -> content hash the current plan asks for
               cells.csv              derived; can always be rebuilt
               lock                   held by the one process that writes
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import __version__
from harness.store.derived import write_derived
from harness.store.files import Appender, RunLock, each_record, explain, finite, to_line, write_atomic
from harness.store.scores import CellScores, read_scores, select, within_plan
from harness.types import Cell, GatedevalError, Sample

MANIFEST = "run.json"
_MAX_OPEN = 8  # sample files held open at once
_FIELDS = {f.name for f in dataclasses.fields(Sample)}


def now() -> str:
    """The time as it is written in a manifest: UTC, seconds, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Store:
    """One run directory, open for writing (`open`) or for reading only (`read`)."""

    def __init__(
        self, path: Path, manifest: dict[str, Any], cells: Mapping[Cell, int | None], lock: RunLock | None
    ) -> None:
        """Not for callers: use `open` or `read`."""
        self.path = path
        self.manifest = manifest
        self.cells: Mapping[Cell, int | None] = dict(cells)
        self._lock = lock
        self._appenders: dict[Cell, Appender] = {}
        self._expected: dict[Cell, dict[str, str] | None] = {}
        self._said: set[Cell] = set()  # cells whose expectation was said in this session
        self._scores: dict[Cell, CellScores] = {}

    # ------------------------------------------------------------------ opening

    @classmethod
    def open(cls, path: Path, manifest: dict[str, Any], *, cells: Mapping[Cell, int | None]) -> Store:
        """Create the run, or resume it; takes the lock. `cells`: the plan, with samples per cell (None: unknown).

        A resumed run takes the new manifest's facts and plan, and keeps its first start, its earlier sessions and the
        failures of cells that are still planned. Raises GatedevalError when another process writes the run, when the
        directory cannot be written, or when two cells would share a file.
        """
        path = Path(path)
        _check_names(cells)
        try:
            (path / "samples").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain(error, "create the run directory", path) from error
        lock = RunLock(path / "lock")
        try:
            for leftover in path.rglob(".*.tmp"):  # of a process that was killed between writing and renaming
                leftover.unlink(missing_ok=True)
            old = _read_manifest(path) if (path / MANIFEST).exists() else {}
            session = {"start": now(), "pid": os.getpid(), "host": socket.gethostname()}
            keys = {cell.key for cell in cells}
            merged = {
                "gatedeval": __version__,
                "name": path.name,
                **manifest,
                "start": old.get("start") or manifest.get("start") or session["start"],
                "end": None,
                "state": "running",
                "sessions": [*old.get("sessions", []), session],
                "failures": {k: v for k, v in old.get("failures", {}).items() if k in keys},
                "cells": [_cell_record(cell, n) for cell, n in cells.items()],
            }
            store = cls(path, merged, cells, lock)
            store._write_manifest()
            return store
        except BaseException:
            lock.release()
            raise

    @classmethod
    def read(cls, path: Path) -> Store:
        """Open a run for reading only, with no lock. Raises GatedevalError naming what is missing when it is no run."""
        path = Path(path)
        if path.name == MANIFEST:
            path = path.parent
        if not path.is_dir():
            raise GatedevalError(f"no run at {path}: no such directory; `gatedeval runs` lists those there are")
        manifest = _read_manifest(path)
        try:
            cells = {
                Cell(c["model"], c["context"], c["benchmark"], c["task"], int(c.get("length") or 0)): c.get("planned")
                for c in manifest["cells"]
            }
        except (KeyError, TypeError) as error:
            raise GatedevalError(
                f"{path / MANIFEST}: its list of cells is damaged ({error!r}): no gatedeval run, or edited by hand"
            ) from error
        return cls(path, manifest, cells, None)

    def close(self) -> None:
        """Close sample files and give the lock back. Reading goes on working."""
        for appender in self._appenders.values():
            appender.close()
        self._appenders.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ samples

    def samples_path(self, cell: Cell) -> Path:
        """The cell's sample file; it exists once a sample is finished."""
        return self.path / "samples" / f"{cell.key}.jsonl"

    def expect(self, cell: Cell, hashes: Mapping[str, str]) -> None:
        """Say which samples (id -> content hash) the plan asks for, once the prompts are known.

        From then on, lines with another id or another hash (other weights behind the same path, other seed, other
        prompt) count for nothing anywhere, at once and also for a reader of a half-redone run; the lines stay, so
        going back to the old setting finds them again. Optional: without it every id's last line counts.
        """
        self._writable()
        if self._expectation(cell) != dict(hashes):
            write_atomic(self._expected_path(cell), json.dumps(dict(hashes), separators=(",", ":")))
        self._expected[cell] = dict(hashes)
        self._said.add(cell)
        self._scores.pop(cell, None)

    def done(self, cell: Cell) -> dict[str, str]:
        """id -> content hash of every finished sample, the last line of an id. A torn line is not finished.

        While writing, what an earlier session expected is no filter: a session killed before it could say what it
        expects has written lines too, and they are to be found.
        """
        expected = self._expectation(cell) if self._lock is None or cell in self._said else None
        records, _ = select(self.samples_path(cell), expected)
        return {id: record["hash"] for id, record in records.items()}

    def known(self, cell: Cell) -> dict[str, set[str]]:
        """id -> every content hash that any line of the cell has: what need not be asked again, also when a setting
        goes back to an earlier one.
        """
        hashes: dict[str, set[str]] = {}

        def use(record: dict[str, Any]) -> None:
            if isinstance(record.get("id"), str) and isinstance(record.get("hash"), str):
                hashes.setdefault(record["id"], set()).add(record["hash"])

        each_record(self.samples_path(cell), use)
        return hashes

    def append(self, cell: Cell, sample: Sample) -> None:
        """Write one finished sample: one line, handed to the system at once.

        Raises GatedevalError when the cell is not in the plan or the disk refuses; the file is then as it was.
        """
        self._writable()
        if cell not in self.cells:
            raise GatedevalError(f"{cell.key} is not a planned cell of the run {self.path}")
        appender = self._appenders.get(cell)
        if appender is None:
            while len(self._appenders) >= _MAX_OPEN:
                self._appenders.pop(next(iter(self._appenders))).close()
            appender = self._appenders[cell] = Appender(self.samples_path(cell))
        appender.append(to_line(dataclasses.asdict(sample)))
        self._scores.pop(cell, None)

    def samples(self, cell: Cell) -> Iterator[Sample]:
        """The cell's samples, one per id, in natural id order, only those that the plan asks for."""
        records, _ = select(self.samples_path(cell), self._expectation(cell))
        for id in within_plan(list(records), self.cells.get(cell)):
            record = records.pop(id)
            record["scores"] = {k: float("nan") if v is None else v for k, v in record["scores"].items()}
            yield Sample(**{k: v for k, v in record.items() if k in _FIELDS})

    def scores(self, cell: Cell) -> CellScores:
        """The cell's samples as columns, without the texts; kept in memory once read."""
        if cell not in self._scores:
            self._scores[cell] = read_scores(self.samples_path(cell), self.cells.get(cell), self._expectation(cell))
        return self._scores[cell]

    def planned(self, cell: Cell) -> int | None:
        """How many samples the plan asks of the cell; None where it is not known."""
        expected = self._expectation(cell)
        n = self.cells.get(cell)
        return n if n is not None or expected is None else len(expected)

    def finished(self) -> tuple[int, int]:
        """How many samples that the plan asks for are finished, and how many it asks for where that is known."""
        done = sum(len(within_plan(list(self.done(cell)), self.cells[cell])) for cell in self.cells)
        return done, sum(self.planned(cell) or 0 for cell in self.cells)

    # ------------------------------------------------------------------ manifest

    @property
    def failures(self) -> dict[str, str]:
        """Cell key -> the error that ended it."""
        return self.manifest.setdefault("failures", {})

    def fail(self, cell: Cell, error: str) -> None:
        """Record that a cell could not be finished, and why. Cleared by `clear_failure`, or once it is complete."""
        self.failures[cell.key] = error
        self._write_manifest()

    def clear_failure(self, cell: Cell) -> None:
        """Forget a cell's failure."""
        if self.failures.pop(cell.key, None) is not None:
            self._write_manifest()

    def update_manifest(self, **facts: Any) -> None:
        """Put facts into run.json, atomically."""
        self.manifest.update(facts)
        self._write_manifest()

    def finish(self, **facts: Any) -> str:
        """End the session: derived files, state, end time; gives the lock back. Returns "complete" or "incomplete"."""
        self._writable()
        for appender in self._appenders.values():
            appender.close()
        self._appenders.clear()
        self.manifest.update(facts)
        state = write_derived(self)
        self.manifest["state"] = state
        self.manifest["end"] = now()
        if self.manifest.get("sessions"):
            self.manifest["sessions"][-1]["end"] = self.manifest["end"]
        self._write_manifest()
        self.close()
        return state

    # ------------------------------------------------------------------ within

    def _writable(self) -> None:
        if self._lock is None:
            raise GatedevalError(f"the run {self.path} is open for reading only")

    def _write_manifest(self) -> None:
        self._writable()
        text = json.dumps(finite(self.manifest), indent=1, ensure_ascii=False, allow_nan=False, default=str)
        write_atomic(self.path / MANIFEST, text + "\n")

    def _expected_path(self, cell: Cell) -> Path:
        return self.path / "expected" / f"{cell.key}.json"

    def _expectation(self, cell: Cell) -> dict[str, str] | None:
        if cell not in self._expected:
            try:
                self._expected[cell] = json.loads(self._expected_path(cell).read_text(encoding="utf-8"))
            except FileNotFoundError:
                self._expected[cell] = None
            except OSError as error:
                raise explain(error, "read", self._expected_path(cell)) from error
            except ValueError as error:
                where = self._expected_path(cell)
                raise GatedevalError(f"{where} is damaged ({error}); remove it and run again") from error
        return self._expected[cell]


def last_words(path: Path, why: str, again: str) -> str:
    """What an interrupted run says: what is finished, where it is, and the command that goes on."""
    try:
        done, planned = Store.read(path).finished()
        kept = f"{done:,} of {planned:,} samples are finished and kept in {path}"
    except GatedevalError:
        kept = f"nothing was begun in {path} yet"
    return f"interrupted by {why}: {kept}. Go on with:\n  {again}"


def _cell_record(cell: Cell, planned: int | None) -> dict[str, Any]:
    return {**dataclasses.asdict(cell), "planned": planned}


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise GatedevalError(
            f"no run at {path}: it has no {MANIFEST}; give a directory that `gatedeval run` wrote"
        ) from None
    except OSError as error:
        raise explain(error, "read", file) from error
    except ValueError as error:
        raise GatedevalError(
            f"{file} is damaged ({error}); restore it from a copy, or remove it and run the config "
            "again: that goes on with the samples beside it"
        ) from error
    if not isinstance(manifest, dict) or "cells" not in manifest:
        raise GatedevalError(f"{file} is not a gatedeval run: it has no list of cells")
    return manifest


def _check_names(cells: Mapping[Cell, int | None]) -> None:
    """No two cells may share a file, also where the file system ignores case; no name may be too long for it."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.key.lower(), cell)
        if other is not cell:
            raise GatedevalError(f"two cells would share the file {cell.key}.jsonl: {other} and {cell}; change a label")
        if len(cell.key) > 240:
            raise GatedevalError(
                f"a cell's file name would be {len(cell.key)} characters long ({cell.key[:60]}...); "
                "use shorter labels for models and contexts (at most 240 characters altogether)"
            )
