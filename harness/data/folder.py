"""Where a benchmark's files come from: a folder, explicit files, or a download with a pinned source; and their hashes.

A data folder has one sub-folder per benchmark (`essays/`, `squad/`, `hotpotqa/`, `nltk_data/`, `mmlu/`, `gsm8k/`,
`english_words/`) with upstream's own files in it, JSON or JSON lines, gzipped or not. It is named by `--data DIR` or
by the environment variable GATEDEVAL_DATA. Without one, files are downloaded once into a cache. What was read is
recorded with its sha256, because a score is only as comparable as its data.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.data.catalog import MMLU_SUBJECTS, WANTED
from harness.data.files import read_json, read_json_lines, read_text, sha256_of
from harness.types import GatedevalError


@dataclass(frozen=True)
class DataFile:
    """A file (or folder) that was found: what it is called here, where it is, its hash and where it came from."""

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
            if name not in WANTED:
                raise GatedevalError(f"no data set is called {name!r}; there are: {', '.join(WANTED)}")
            if not path.exists():
                raise GatedevalError(f"--{name.replace('_', '-')} {path}: no such file")

    def locate(self, name: str) -> tuple[Path, str] | None:
        """(path, source) of a data set that is on this machine, or None. No hashing, no network."""
        wanted = WANTED[name]
        if name in self.overrides:
            return self.overrides[name], "option"
        for base, source in ((self.root, "--data"), (None if self.root else cache_folder(), "download")):
            for found in [] if base is None else _matches(base, wanted.patterns):
                return found, source
        if name == "punkt":
            for base in _nltk_paths():
                for found in _matches(base, ("tokenizers/punkt_tab/english",)):
                    return found, "nltk"
        return None

    def find(self, name: str) -> DataFile:
        """The data set `name`, downloaded if there is no data folder. Raises GatedevalError naming what to bring."""
        located = self.locate(name)
        why = ""
        if located is None and (self.root is None or name == "punkt"):
            try:
                located = fetch_one(name), "download"
            except (OSError, ValueError, ImportError) as error:
                why = f" (download failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
        if located is None:
            raise GatedevalError(self._absent(name) + why)
        path, source = located
        return DataFile(name, path, sha256_of(path), source, WANTED[name].revision if source == "download" else None)

    def _absent(self, name: str) -> str:
        wanted = WANTED[name]
        where = f"not in {self.root / wanted.folder()}" if self.root else "no data folder given (--data DIR)"
        option = f" or name it with --{name.replace('_', '-')} FILE" if name in ("essays", "squad", "hotpotqa") else ""
        return f"data for {wanted.used_by} is missing: {where}; bring {wanted.bring} to DIR/{wanted.folder()}/{option}"

    def missing(self, names: Iterable[str]) -> list[str]:
        """One message per data set that is neither here nor can be downloaded; none means all there. For plan time."""
        messages = []
        for name in dict.fromkeys(names):
            if self.locate(name) is None:
                try:
                    self.find(name)
                except GatedevalError as error:
                    messages.append(str(error))
        return messages

    def check(self) -> list[dict[str, str]]:
        """Rows for `gatedeval data check`, without network: name, state (here, missing, broken), used_by, path, ..."""
        rows = []
        for name, wanted in WANTED.items():
            located = self.locate(name)
            row = {"name": name, "state": "missing", "used_by": wanted.used_by, "path": "", "sha256": "", "remedy": ""}
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
        """Open one data set far enough to see that it is what it should be."""
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
        path = self.find("mmlu").path
        name = f"{split}/{subject}_{split}.csv"
        return list(_mmlu_rows(_mmlu_file(path, name), f"{path}: {name}"))

    def gsm8k_rows(self, split: str) -> list[dict[str, str]]:
        """GSM8k's rows in file order: question, answer (which ends in `#### NUMBER`). `split` is train or test."""
        path = self.find(f"gsm8k_{split}").path
        rows = read_json_lines(path)
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict) or not {"question", "answer"} <= row.keys():
                raise GatedevalError(
                    f"{path}, line {number}: a GSM8k row has `question` and `answer`; this one does not"
                )
        return rows

    def fetch(self, names: Iterable[str] = ()) -> Iterator[tuple[str, Path]]:
        """Download what is not on this machine (all data sets, or `names`); yields each name and its path."""
        for name in names or WANTED:
            located = self.locate(name)
            yield name, located[0] if located else fetch_one(name, self.root)


def cache_folder() -> Path:
    """Where downloads are kept: GATEDEVAL_CACHE, else the user's cache folder."""
    base = os.environ.get("GATEDEVAL_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gatedeval"
    )
    return Path(base) / "data"


def _matches(base: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        for path in sorted(base.glob(pattern)):
            if pattern == "mmlu" and not (path / "test").is_dir():
                continue  # an `mmlu` folder without test/ holds something else
            yield path


def _nltk_paths() -> list[Path]:
    """Where nltk itself would look, in its order, without importing it (its import takes more than a second)."""
    given = [p for p in os.environ.get("NLTK_DATA", "").split(os.pathsep) if p]
    fixed = [f"{sys.prefix}/nltk_data", f"{sys.prefix}/share/nltk_data", f"{sys.prefix}/lib/nltk_data"]
    system = [f"/usr/{part}nltk_data" for part in ("share/", "local/share/", "lib/", "local/lib/")]
    return [Path(p) for p in (*given, os.path.expanduser("~/nltk_data"), *fixed, *system)]


def _mmlu_file(path: Path, name: str) -> str:
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


def _mmlu_rows(text: str, where: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if len(row) != 6 or row[5].strip() not in ("A", "B", "C", "D"):
            raise GatedevalError(
                f"{where}, row {number}: expected question,A,B,C,D,answer (a letter), got {row!r:.200}"
            )
        yield {"question": row[0], "choices": row[1:5], "answer": "ABCD".index(row[5].strip())}


def fetch_one(name: str, root: Path | None = None) -> Path:
    """Download one data set into `root` (None: the cache) and return its path. Raises OSError or ValueError."""
    wanted = WANTED[name]
    folder = (root or cache_folder()) / wanted.folder()
    url = wanted.url or ""
    if url.startswith("nltk:"):
        import nltk

        if not nltk.download(url.removeprefix("nltk:"), download_dir=str(folder), quiet=True):
            raise OSError("nltk could not download punkt_tab")
        return folder / "tokenizers" / "punkt_tab" / "english"
    if url.startswith("hf:"):
        from huggingface_hub import hf_hub_download

        repo, rest = url.removeprefix("hf:").split("@", 1)
        revision, file = rest.split("/", 1)
        raw = Path(hf_hub_download(repo, file, revision=revision, repo_type="dataset")).read_bytes()
    else:
        with urllib.request.urlopen(url, timeout=30) as answer:
            raw = answer.read()
        file = url.rsplit("/", 1)[1]
    if wanted.sha256 and (got := hashlib.sha256(raw).hexdigest()) != wanted.sha256:
        raise ValueError(f"{url} has sha256 {got}, expected {wanted.sha256}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as temporary:  # never a half file under the real name
        temporary.write(raw)
    os.replace(temporary.name, folder / file)
    return folder / file
