"""The run directory: the one source of truth about an evaluation.

results/<name>/run.json               manifest: resolved config, versions, fingerprints, plan, failures, state
               samples/<cell>.jsonl   append-only, one line a sample
               expected/<cell>.json   sample id -> content hash the current plan asks for
               cells.csv              derived; can always be rebuilt
               lock                   held by the one process that writes
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.store import manifest as manifests
from harness.store.arithmetic import key_of
from harness.store.files import Appender, RunLock, explain, to_line, write_atomic
from harness.store.manifest import MANIFEST
from harness.store.probes import Probes
from harness.store.rounds import Rounds, rounds_of
from harness.store.scores import CellScores, Expected, each_sample, read_scores, select, within_plan
from harness.store.stored import files_like
from harness.store.summary import CellSummary, summarise, to_csv
from harness.types import Cell, GatedevalError, Sample

_MAX_OPEN = 8  # sample files held open at once
_FIELDS = {f.name for f in dataclasses.fields(Sample)}


class Store:
    """One run directory, open for writing (`open`) or for reading only (`read`)."""

    def __init__(
        self, path: Path, manifest: dict[str, Any], cells: Mapping[Cell, int | None], lock: RunLock | None
    ) -> None:
        """Used by `open` and `read` only."""
        self.path = path
        self.manifest = manifest
        self.cells: Mapping[Cell, int | None] = dict(cells)
        self._lock = lock
        self._appenders: dict[Cell, Appender] = {}
        self._expected = Expected(path / "expected", manifest.get("unverified", ()))
        self._scores: dict[Cell, CellScores] = {}
        self._rounds: dict[Cell, Rounds] = {}
        self._set_rounds()
        self._earlier_files = sorted((path / "samples").glob("*.jsonl"))  # those of earlier sessions

    @classmethod
    def open(cls, path: Path, manifest: dict[str, Any], *, cells: Mapping[Cell, int | None]) -> Store:
        """Create the run, or resume it; takes the lock. `cells`: the plan, with samples per cell (None: unknown).

        A resumed run takes the facts and the plan given here, and keeps its first start, its earlier sessions and the
        failures of cells that are still planned.
        Raises GatedevalError when another process writes the run, when the directory cannot be written, or when two
        cells would share a file.
        """
        path = Path(path)
        manifests.check_file_names(cells)
        try:
            (path / "samples").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain(error, "create the run directory", path) from error
        lock = RunLock(path / "lock")
        try:
            for leftover in path.rglob(".*.tmp"):  # of a process that was killed between writing and renaming
                leftover.unlink(missing_ok=True)
            store = cls(path, manifests.start_session(path, manifest, cells), cells, lock)
            store._write_manifest()
            return store
        except BaseException:
            lock.release()
            raise

    @classmethod
    def read(cls, path: Path) -> Store:
        """Open a run for reading only, without the lock. Raises GatedevalError when `path` is not a run."""
        path = Path(path)
        if path.name == MANIFEST:
            path = path.parent
        if not path.is_dir():
            raise GatedevalError(f"no run at {path}: no such directory; `gatedeval runs` lists those there are")
        manifest = manifests.read_manifest(path)
        return cls(path, manifest, manifests.cells_of(manifest, path), None)

    def close(self) -> None:
        """Close the sample files and release the lock. Reading still works."""
        self._close_files()
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

    def earlier_files_like(self, cell: Cell) -> tuple[Path, ...]:
        """Sample files of the cell's task that an earlier session wrote under other labels of model and context.

        A label may have been changed since; the content hashes of the lines say whether they are the cell's answers.
        """
        return files_like(self._earlier_files, cell)

    def expect(self, cell: Cell, hashes: Mapping[str, str]) -> None:
        """Record which samples (id -> content hash) the plan asks for, once the prompts are known.

        From then on, lines with another id or another hash (other weights behind the same path, other seed, other
        prompt) count nowhere, also for a reader of a run that is half redone. The lines stay in the file, so going back
        to the old setting finds them again. Without it the last line of every id counts; but after a session with other
        inputs (`unverified` in the manifest) none does.
        """
        self._writable()
        unverified = cell.key in self._expected.unverified
        self._expected.set(cell, hashes)
        self._scores.pop(cell, None)
        if unverified:
            self.update_manifest(unverified=sorted(self._expected.unverified))

    def done(self, cell: Cell) -> dict[str, str]:
        """id -> content hash of every finished sample, by the last line of an id. A torn line is not finished.

        While writing, hashes that an earlier session recorded do not filter: a session that was killed before it called
        `expect` has written lines too, and they count.
        """
        current = self._lock is None or self._expected.set_in_this_session(cell)
        records = select(self.samples_path(cell), self._expected.get(cell) if current else None)
        return {id: record["hash"] for id, record in records.items()}

    def known(self, cell: Cell) -> dict[str, set[str]]:
        """id -> every content hash that any line of the cell has.

        None of these samples is asked for again, also when a setting goes back to an earlier one.
        """
        hashes: dict[str, set[str]] = {}
        each_sample(self.samples_path(cell), None, lambda id, record: hashes.setdefault(id, set()).add(record["hash"]))
        return hashes

    def append(self, cell: Cell, sample: Sample) -> None:
        """Write one finished sample as one line, at once.

        Raises GatedevalError when the cell is not in the plan or the write fails; the file is then as it was.
        """
        self._writable()
        if cell not in self.cells:
            raise GatedevalError(f"{cell.key} is not a planned cell of the run {self.path}")
        appender = self._appenders.get(cell)
        if appender is None:
            while len(self._appenders) >= _MAX_OPEN:
                self._appenders.pop(next(iter(self._appenders))).close()
            appender = self._appenders[cell] = Appender(self.samples_path(cell))
        record = dataclasses.asdict(sample)
        if not sample.arithmetic:
            del record["arithmetic"]
        appender.append(to_line(record))
        self._scores.pop(cell, None)

    def samples(self, cell: Cell) -> Iterator[Sample]:
        """The cell's samples, one per id, in natural id order, only those that the plan asks for."""
        records = select(self.samples_path(cell), self._expected.get(cell))
        for id in within_plan(list(records), self._first(cell)):
            record = records.pop(id)
            record["scores"] = {k: float("nan") if v is None else v for k, v in record["scores"].items()}
            yield Sample(**{k: v for k, v in record.items() if k in _FIELDS})

    def scores(self, cell: Cell) -> CellScores:
        """The cell's samples as columns, without the texts; kept in memory once read."""
        if cell not in self._scores:
            expected = self._expected.get(cell)
            self._scores[cell] = read_scores(self.samples_path(cell), self._first(cell), expected)
        return self._scores[cell]

    def planned(self, cell: Cell) -> int | None:
        """How many samples the plan asks of the cell; None where it is not known."""
        expected = self._expected.get(cell)
        n = self.cells.get(cell)
        return n if n is not None or expected is None else len(expected)

    def summary(self, cell: Cell) -> CellSummary:
        """The cell's row of cells.csv."""
        return summarise(cell, self.scores(cell), self.planned(cell), self.failures.get(cell.key))

    def finished(self) -> tuple[int, int]:
        """(finished samples that the plan asks for, samples that it asks for where that is known)."""
        done = 0
        for cell, planned in self.cells.items():
            n = len(within_plan(list(self.done(cell)), self._first(cell)))
            done += n if planned is None else min(n, planned)
        return done, sum(self.planned(cell) or 0 for cell in self.cells)

    # ------------------------------------------------------------------ rounds

    def rounds(self, cell: Cell) -> Rounds | None:
        """The rounds that decided how many samples the cell has; None where its plan is a plain count."""
        return self._rounds.get(cell)

    def replan(self, counts: Mapping[Cell, int], rounds: Sequence[Rounds]) -> None:
        """Another round is planned: `counts` are the samples of these cells from now on, `rounds` all that is known."""
        self._writable()
        self.cells = {cell: counts.get(cell, planned) for cell, planned in self.cells.items()}
        self.manifest["cells"] = manifests.planned_cells(self.cells)
        self.manifest["rounds"] = [entry.to_dict() for entry in rounds]
        self._set_rounds()
        self._scores.clear()
        self._write_manifest()

    def _set_rounds(self) -> None:
        self._rounds = rounds_of(self.manifest)

    def _first(self, cell: Cell) -> int | None:
        """How many samples count, the first ones by id; None: all that are expected, because ids were drawn."""
        drawn = cell in self._rounds and self._rounds[cell].population is not None
        return None if drawn else self.cells.get(cell)

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

    def arithmetic(self, cells: Iterable[Cell] | None = None) -> Counter[str]:
        """How many answers each key of the manifest's `arithmetic` computed; "": not recorded. `cells`: None: all."""
        found: Counter[str] = Counter()
        for cell in self.cells if cells is None else cells:
            found.update(self.scores(cell).arithmetic)
        return found

    def record_arithmetic(self, facts: Mapping[str, Any]) -> str:
        """Put what an engine computes with into the manifest; returns the key by which samples name it."""
        key = key_of(facts)
        if key not in (known := self.manifest.setdefault("arithmetic", {})):
            self.update_manifest(arithmetic={**known, key: dict(facts)})
        return key

    def update_manifest(self, **facts: Any) -> None:
        """Put facts into run.json, atomically."""
        self.manifest.update(facts)
        self._write_manifest()

    def write_derived(self) -> str:
        """Write cells.csv, remove the failures of cells that are complete by now; returns the run's state.

        A run is complete where all its samples have a score and all its planned probes are stored.
        """
        for cell in self.cells:
            if cell.key in self.failures and self.summary(cell).complete:
                del self.failures[cell.key]
        rows = [self.summary(cell) for cell in self.cells]
        write_atomic(self.path / "cells.csv", to_csv(rows))
        probes = {probe["hash"] for probe in self.manifest.get("probes") or ()}
        probed = not probes or probes <= Probes(self.path).hashes()
        ended = probed and all(entry.ended for entry in self._rounds.values())
        return "complete" if ended and all(row.complete for row in rows) and not self.failures else "incomplete"

    def finish(self, **facts: Any) -> str:
        """End the session: write derived files, state and end time, release the lock.

        Returns "complete" or "incomplete".
        """
        self._writable()
        self._close_files()
        self.manifest.update(facts)
        state = self.write_derived()
        self.manifest["state"] = state
        self.manifest["end"] = manifests.now()
        if self.manifest.get("sessions"):
            self.manifest["sessions"][-1]["end"] = self.manifest["end"]
        self._write_manifest()
        self.close()
        return state

    def _writable(self) -> None:
        if self._lock is None:
            raise GatedevalError(f"the run {self.path} is open for reading only")

    def _write_manifest(self) -> None:
        self._writable()
        manifests.write_manifest(self.path, self.manifest)

    def _close_files(self) -> None:
        for appender in self._appenders.values():
            appender.close()
        self._appenders.clear()
