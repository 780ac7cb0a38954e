"""Where a benchmark's files come from: a folder, files named one by one, or a download of a fixed revision.

A data folder has one sub-folder per benchmark (`essays/`, `squad/`, `hotpotqa/`, `nltk_data/`, `mmlu/`, `gsm8k/`,
`english_words/`) with upstream's own files in it, JSON or JSON lines, gzipped or not. It is named by `--data DIR` or
by the environment variable GATEDEVAL_DATA. Without one, files are downloaded once into a cache. The manifest of a run
records the sha256 of every file that was read, because a score is only as comparable as its data.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.data.catalog import DATASETS, MMLU_SUBJECTS
from harness.data.download import cache_folder, fetch_one
from harness.data.files import read_json, read_rows, sha256_of, text_in
from harness.data.mmlu import read_mmlu
from harness.data.network import OUT_OF_REACH, Unreachable
from harness.types import GatedevalError, first_line


@dataclass(frozen=True)
class DataFile:
    """A data set on this machine: its name, its file (or folder), the sha256 of its bytes, and its origin."""

    name: str
    path: Path
    sha256: str
    source: str  # "--data", "option", "download", "nltk"
    revision: str | None = None

    def manifest(self) -> dict[str, Any]:
        """What a run's manifest keeps: name, file name, sha256, source, revision."""
        return {
            "name": self.name, "file": self.path.name, "sha256": self.sha256, "source": self.source,
            "revision": self.revision,
        }  # fmt: skip


@dataclass(frozen=True)
class DataFolder:
    """Where files are looked for: explicit files first, then a folder, then (only without a folder) downloads.

    `root` None means: the folder in GATEDEVAL_DATA if set, else the download cache.
    """

    root: Path | None = None
    overrides: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        root = self.root if self.root is not None else os.environ.get("GATEDEVAL_DATA") or None
        if root is not None and not Path(root).is_dir():
            raise GatedevalError(
                f"the data folder {root} is not a folder; give --data DIR or set GATEDEVAL_DATA to one"
            )
        object.__setattr__(self, "root", None if root is None else Path(root))
        object.__setattr__(self, "overrides", {k: Path(v) for k, v in self.overrides.items() if v is not None})
        for name, path in self.overrides.items():
            if name not in DATASETS:
                raise GatedevalError(f"no data set is called {name!r}; there are: {', '.join(DATASETS)}")
            if not path.exists():
                raise GatedevalError(f"--{name.replace('_', '-')} {path}: no such file")

    def locate(self, name: str) -> tuple[Path, str] | None:
        """(path, source) of a data set that is on this machine, or None. No hashing, no network."""
        dataset = DATASETS[name]
        if name in self.overrides:
            return self.overrides[name], "option"
        for base, source in ((self.root, "--data"), (None if self.root else cache_folder(), "download")):
            for path in [] if base is None else _matches(base, dataset.patterns):
                return path, source
        if name == "punkt":
            for base in _nltk_paths():
                for path in _matches(base, ("tokenizers/punkt_tab/english",)):
                    return path, "nltk"
        return None

    def find(self, name: str) -> DataFile:
        """The data set `name`, downloaded if there is no data folder. Raises GatedevalError naming what to bring."""
        located, error = self._locate_or_fetch(name)
        if located is None:
            raise GatedevalError(self._absent(name) + ("" if error is None else _failed(error)))
        path, source = located
        return DataFile(name, path, sha256_of(path), source, DATASETS[name].revision if source == "download" else None)

    def _locate_or_fetch(self, name: str) -> tuple[tuple[Path, str] | None, Exception | None]:
        """(path, source) of a data set, downloaded where that is allowed; and why it could not be downloaded."""
        located = self.locate(name)
        if located is not None or (self.root is not None and name != "punkt"):
            return located, None
        try:
            return (fetch_one(name), "download"), None
        except (OSError, ValueError, ImportError) as error:
            return None, error

    def _absent(self, name: str) -> str:
        dataset = DATASETS[name]
        where = f"not in {self.root / dataset.folder()}" if self.root else "no data folder given (--data DIR)"
        bring = f"bring {dataset.bring} to DIR/{dataset.folder()}/"
        return f"data for {dataset.used_by} is missing: {where}; {bring}"

    def missing(self, names: Iterable[str]) -> list[str]:
        """One message for each data set that is neither on this machine nor can be downloaded. Used by the plan.

        The network's own error is not in each of them: `harness.data.network.errors` has it once.
        """
        messages = []
        for name in dict.fromkeys(names):
            located, error = self._locate_or_fetch(name)
            if located is None:
                unreachable = isinstance(error, Unreachable)
                why = f" ({OUT_OF_REACH})" if unreachable else "" if error is None else _failed(error)
                messages.append(self._absent(name) + why)
        return messages

    def check(self) -> list[dict[str, str]]:
        """Rows for `gatedeval data check`, without network: name, state (here, missing, broken), used_by, path, ..."""
        rows = []
        for name, dataset in DATASETS.items():
            located = self.locate(name)
            row = {"name": name, "state": "missing", "used_by": dataset.used_by, "path": "", "sha256": "", "remedy": ""}
            if located is None:
                row["remedy"] = self._absent(name)
            else:
                row.update(state="here", path=str(located[0]), sha256=sha256_of(located[0]))
                try:
                    self._try(name)
                except GatedevalError as error:
                    row.update(state="broken", remedy=str(error))
            rows.append(row)
        return rows

    def _try(self, name: str) -> None:
        """Read one data set. Raises GatedevalError where it is not in the expected form."""
        if name == "mmlu":
            absent = [s for s in MMLU_SUBJECTS if not self.mmlu_rows("test", s) or not self.mmlu_rows("dev", s)]
            if absent:
                raise GatedevalError(f"{self.find(name).path}: no questions for {', '.join(absent)}")
        elif name.startswith("gsm8k"):
            self.gsm8k_rows(name.removeprefix("gsm8k_"))
        elif name != "punkt":
            read_json(self.find(name).path)

    def mmlu_rows(self, split: str, subject: str) -> list[dict[str, Any]]:
        """MMLU's questions in file order: question, choices (4), answer (0-3). `split` is test or dev."""
        if subject not in MMLU_SUBJECTS:
            raise GatedevalError(f"MMLU has no subject {subject!r}; its 57 subjects: {', '.join(MMLU_SUBJECTS)}")
        return read_mmlu(self.find("mmlu").path, split, subject)

    def gsm8k_rows(self, split: str) -> list[dict[str, str]]:
        """GSM8k's rows in file order: question, answer (which ends in `#### NUMBER`). `split` is train or test."""
        rows = []
        for where, row in read_rows(self.find(f"gsm8k_{split}").path):
            for key in ("question", "answer"):
                text_in(row, key, where, "a GSM8k row has `question` and `answer`")
            if not re.search(r"#### -?[0-9][0-9.,]*\s*$", row["answer"]):
                raise GatedevalError(
                    f"{where}: a GSM8k answer ends in `#### NUMBER`, this one in {row['answer'][-40:]!r}. Mend the file"
                )
            rows.append(row)
        return rows

    def fetch(self, names: Iterable[str] = ()) -> Iterator[tuple[str, Path]]:
        """Download what is not on this machine (all data sets, or `names`); yields each name and its path."""
        for name in names or DATASETS:
            located = self.locate(name)
            yield name, located[0] if located else fetch_one(name, self.root)


def _failed(error: Exception) -> str:
    return f" (download failed: {type(error).__name__}: {first_line(error)})"


def _matches(base: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        for path in sorted(base.glob(pattern)):
            if pattern == "mmlu" and not (path / "test").is_dir():
                continue  # an `mmlu` folder without test/ holds something else
            yield path


def _nltk_paths() -> list[Path]:
    """The folders in which nltk looks for its data, in its order. nltk itself is not needed."""
    given = [p for p in os.environ.get("NLTK_DATA", "").split(os.pathsep) if p]
    fixed = [f"{sys.prefix}/nltk_data", f"{sys.prefix}/share/nltk_data", f"{sys.prefix}/lib/nltk_data"]
    system = [f"/usr/{part}nltk_data" for part in ("share/", "local/share/", "lib/", "local/lib/")]
    return [Path(p) for p in (*given, os.path.expanduser("~/nltk_data"), *fixed, *system)]
