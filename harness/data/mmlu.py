"""MMLU's own CSV files, in a folder or in its data.tar."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.data.files import read_text
from harness.types import GatedevalError


def read_mmlu(path: Path, split: str, subject: str) -> list[dict[str, Any]]:
    """The questions of one subject in file order: question, choices (4 strings), answer (0-3).

    `path`: MMLU's folder or tar file. `split`: test or dev.

    Raises:
        GatedevalError: the file is missing or not in MMLU's form.
    """
    name = f"{split}/{subject}_{split}.csv"
    return list(_rows(_file(path, name), f"{path}: {name}"))


def _file(path: Path, name: str) -> str:
    if path.is_dir():
        return read_text(path / name)
    members = _tar_members(path, path.stat().st_mtime_ns)
    if name not in members:
        raise GatedevalError(f"{path}: has no data/{name}; bring MMLU's own data.tar")
    return members[name]


@lru_cache(maxsize=2)
def _tar_members(path: Path, mtime_ns: int) -> dict[str, str]:
    """The CSV files of a tar by their name below data/. One pass: seeking in a gzipped tar inflates it each time."""
    try:
        with tarfile.open(path) as tar:
            streams = ((m.name, tar.extractfile(m)) for m in tar if m.isfile() and m.name.endswith(".csv"))
            return {n.removeprefix("./").removeprefix("data/"): s.read().decode("utf-8-sig") for n, s in streams if s}
    except (OSError, EOFError, tarfile.TarError) as error:
        raise GatedevalError(f"{path}: not a readable tar file ({error}); bring MMLU's own data.tar") from error


def _rows(text: str, where: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if len(row) != 6 or row[5].strip() not in ("A", "B", "C", "D"):
            raise GatedevalError(
                f"{where}, row {number}: expected question,A,B,C,D,answer (a letter), got {row!r:.200}"
            )
        if not all(field.strip() for field in row[:5]):
            raise GatedevalError(f"{where}, row {number}: the question or a choice is empty: {row!r:.200}")
        yield {"question": row[0], "choices": row[1:5], "answer": "ABCD".index(row[5].strip())}
