"""The answers that a run holds, found by content hash: also those of a cell that had another label before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.store.files import explain
from harness.store.scores import each_sample
from harness.types import Cell

_HASH = re.compile(rb'"hash":"([^"\\]+)"')


def files_like(files: Sequence[Path], cell: Cell) -> tuple[Path, ...]:
    """Those of `files` that belong to the cell's benchmark, task and length, under whatever model and context label."""
    wanted = cell.key.split("__")[2:]  # labels cannot hold "__": `Cell.key` escapes "_"
    return tuple(file for file in files if file.stem.split("__")[2:] == wanted and file.stem != cell.key)


def count_ids(file: Path) -> int:
    """How many samples the file has a line of, whatever their content hashes."""
    ids: set[str] = set()
    each_sample(file, None, lambda id, record: ids.add(id))
    return len(ids)


class StoredAnswers:
    """The lines of one cell's sample file, and, for hashes that are not there, lines of `others`.

    A content hash covers everything that can change an answer, so a line that another label wrote is as good. Other
    files are searched for hashes first; only a file that has the hash is parsed.
    """

    def __init__(self, own: Path, others: Sequence[Path] = ()) -> None:
        self._own: dict[tuple[str, str], dict[str, Any]] = {}
        self._ids: set[str] = set()
        self._others = list(others)
        self._elsewhere: dict[bytes, Path] | None = None
        self._parsed: dict[Path, dict[str, dict[str, Any]]] = {}
        each_sample(own, None, self._add)

    def _add(self, id: str, record: dict[str, Any]) -> None:
        self._own[id, record["hash"]] = record  # of several lines, the last
        self._ids.add(id)

    def own(self, id: str, hash: str) -> Mapping[str, Any] | None:
        """The cell's own line with this id and content hash; None if there is none."""
        return self._own.get((id, hash))

    def other(self, hash: str) -> Mapping[str, Any] | None:
        """A line of another file with this content hash; None if there is none."""
        if self._elsewhere is None:
            self._elsewhere = {hash: file for file in self._others for hash in _hashes(file)}
        file = self._elsewhere.get(hash.encode())
        if file is None:
            return None
        if file not in self._parsed:
            records: dict[str, dict[str, Any]] = {}
            each_sample(file, None, lambda id, record: records.__setitem__(record["hash"], record))
            self._parsed[file] = records
        return self._parsed[file].get(hash)

    def has_id(self, id: str) -> bool:
        """Whether the cell has a line of this sample, whatever its content hash."""
        return id in self._ids


def _hashes(file: Path) -> list[bytes]:
    try:
        return _HASH.findall(file.read_bytes())
    except OSError as error:
        raise explain(error, "read", file) from error
