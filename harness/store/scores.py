"""Reading a sample file: which lines count, and the columns that tables need, without the texts."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.rolling import ROLLING, combined
from harness.store.files import explain, write_atomic
from harness.text import well_formed_value
from harness.types import Cell, GatedevalError

FINISH = ("stop", "length", "choose", "scored")
EMPTY = 0  # the number of an empty answer in `CellScores.answers`
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class CellScores:
    """One cell's samples as columns, in natural id order; n rows in every column.

    `metrics`: name -> float64 (n,), NaN where a sample has no such score; the first is the headline.
    `prompts`: int64 (n,), equal where two samples have the same prompt. Comparable within one process only.
    `finish`: int8 (n,), an index into `FINISH`. `prompt_tokens`: int64 (n,). `unreadable`: lines that are not JSON.
    `arithmetic`: how many answers each key of the manifest's `arithmetic` computed; "" where none is recorded.
    `answers`, `references`: int64 (n,), equal where two samples have the same answer or the same references, within one
    process; an answer without a visible character, or with a thought alone, is `EMPTY`. `tied`: bool (n,), whether
    options were compared and two or more share the highest score exactly. `weights`: metric -> (n,) words or bytes of
    each text, for the metrics that are no mean over samples (`harness.benchmarks.rolling`).
    """

    ids: list[str]
    metrics: dict[str, NDArray[np.float64]]
    prompts: NDArray[np.int64]
    finish: NDArray[np.int8]
    prompt_tokens: NDArray[np.int64]
    answers: NDArray[np.int64]
    references: NDArray[np.int64]
    tied: NDArray[np.bool_]
    unreadable: int = 0
    arithmetic: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def capped(self) -> NDArray[np.bool_]:
        """Which answers were cut by their token budget, (n,)."""
        return self.finish == 1

    @property
    def headline(self) -> str | None:
        """The first metric's name; None where nothing was scored."""
        return next(iter(self.metrics), None)

    @property
    def scores(self) -> NDArray[np.float64]:
        """The headline metric's column, (n,)."""
        return self.metrics[self.headline] if self.headline is not None else np.full(len(self.ids), np.nan)

    def mean(self, metric: str | None = None) -> float:
        """The mean of a metric (None: the headline), or what stands for it over all texts; NaN where it has none."""
        name = metric or self.headline
        values = self.metrics.get(name) if name is not None else None
        if name is None or values is None or not values.size:
            return math.nan
        if (weights := self.weights.get(name)) is not None:
            return combined(name, values.tolist(), weights.tolist())
        return float(values.mean())


@dataclass(frozen=True)
class Pairing:
    """The samples that two cells have in common, by id, in the natural id order of the left cell; m rows.

    `left`, `right`: int64 (m,), row numbers in the two cells. `differing`: ids whose prompts differ.
    """

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    differing: list[str]


def pair(left: CellScores, right: CellScores) -> Pairing:
    """Pair the samples of two cells by id, and compare their prompts."""
    rows = {id: row for row, id in enumerate(right.ids)}
    common = [(row, rows[id]) for row, id in enumerate(left.ids) if id in rows]
    i, j = np.array(common, dtype=np.int64).reshape(-1, 2).T
    differing = [left.ids[row] for row in i[left.prompts[i] != right.prompts[j]]]
    return Pairing(i, j, differing)


# ----------------------------------------------------------------------------------------------- which lines count


class Expected:
    """expected/CELL.json of a run: sample id -> content hash that the plan asks for. Each file is read once."""

    def __init__(self, folder: Path, unverified: Iterable[str] = ()) -> None:
        """`unverified`: keys of cells whose record may be another plan's; until it is set, nothing is expected."""
        self.folder = folder
        self.unverified = set(unverified)
        self._cells: dict[Cell, dict[str, str] | None] = {}
        self._set: set[Cell] = set()

    def get(self, cell: Cell) -> dict[str, str] | None:
        """id -> content hash; None where no session has recorded it. Raises GatedevalError for a damaged file."""
        if cell.key in self.unverified:
            return {}
        if cell not in self._cells:
            file = self._file(cell)
            try:
                self._cells[cell] = json.loads(file.read_text(encoding="utf-8"))
            except FileNotFoundError:
                self._cells[cell] = None
            except OSError as error:
                raise explain(error, "read", file) from error
            except ValueError as error:
                raise GatedevalError(f"{file} is damaged ({error}); remove it and run again") from error
        return self._cells[cell]

    def set(self, cell: Cell, hashes: Mapping[str, str]) -> None:
        """Record the expected hashes of a cell, on disk where they have changed."""
        self.unverified.discard(cell.key)
        if self.get(cell) != dict(hashes):
            write_atomic(self._file(cell), json.dumps(dict(hashes), separators=(",", ":")))
        self._cells[cell] = dict(hashes)
        self._set.add(cell)

    def set_in_this_session(self, cell: Cell) -> bool:
        """Whether `set` was called for the cell by this process, so that an earlier session's record is outdated."""
        return cell in self._set

    def _file(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.json"


def each_record(path: Path, use: Callable[[dict[str, Any]], None]) -> int:
    """Call `use` with every whole line of a JSON-lines file, in order; returns how many lines could not be read.

    What follows the last newline is a torn line: its sample is pending again, and it is not counted. A whole line that
    is no JSON object (a block of zeros after a power cut) is counted, and its sample is pending again too. A missing
    file has no lines. Half a character, as JSON escapes can write it, is read as U+FFFD: nothing could print it.
    jsonlines has no notion of a torn or damaged line, so the lines are split here.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise explain(error, "read", path) from error
    data = data[: data.rfind(b"\n") + 1]
    try:
        text, damaged = data.decode(), False
    except UnicodeDecodeError:
        text, damaged = data.decode(errors="surrogateescape"), True
    lines = text.split("\n")[:-1]
    unreadable = 0
    loads = json.loads
    for line in lines:
        try:
            record = loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            use(well_formed_value(record) if damaged or "\\u" in line else record)
        else:
            unreadable += 1
    return unreadable


def each_sample(path: Path, expected: Mapping[str, str] | None, use: Callable[[str, dict[str, Any]], None]) -> int:
    """Call `use` with (id, record) of every line that counts, in order; returns how many lines could not be read.

    A line counts when it has an id and a content hash, and, where `expected` (id -> hash) is known, that id has that
    hash there: answers of other weights, or to another prompt, stay in the file and out of every number.
    """

    def check(record: dict[str, Any]) -> None:
        id, digest = record.get("id"), record.get("hash")
        if isinstance(id, str) and isinstance(digest, str) and (expected is None or expected.get(id) == digest):
            use(id, record)

    return each_record(path, check)


def select(path: Path, expected: Mapping[str, str] | None) -> dict[str, dict[str, Any]]:
    """id -> the record that counts; of several lines with one id, the last."""
    chosen: dict[str, dict[str, Any]] = {}
    each_sample(path, expected, chosen.__setitem__)
    return chosen


def natural(id: str) -> list[tuple[int, int, str]]:
    """Sort key that reads runs of digits as numbers: 2 before 10, q2 before q10."""
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in _DIGITS.split(id) if p]


def within_plan(ids: Sequence[str], planned: int | None) -> list[str]:
    """`ids` in natural order, only those a plan of `planned` samples asks for.

    Plain numbers count from 0, so a run lowered from 500 to 100 samples keeps 0..99 even while 0..50 alone are
    finished; ids of another kind are taken in their order.
    """
    numbers = all(i.isascii() and i.isdecimal() for i in ids)
    ordered = sorted(ids, key=int) if numbers else sorted(ids, key=natural)
    if planned is None or len(ordered) <= planned:
        return ordered
    return [i for i in ordered if int(i) < planned] if numbers else ordered[:planned]


# ---------------------------------------------------------------------------------------------------------- columns


def read_scores(path: Path, planned: int | None, expected: Mapping[str, str] | None) -> CellScores:
    """A cell's columns from its sample file; a missing file is a cell with no samples."""
    slim: dict[str, tuple[dict[str, float | None], int, int, int, int, int, bool, str]] = {}
    weights: dict[str, dict[str, float]] = {}
    names: dict[str, None] = {}  # an ordered set: the first metric seen is the headline

    def use(id: str, record: dict[str, Any]) -> None:
        scores = record.get("scores") or {}
        for name in scores:
            names.setdefault(name)
        slim[id] = (
            scores,
            _prompt_identity(record),
            FINISH.index(reason) if (reason := record.get("finish_reason")) in FINISH else 0,
            int(record.get("prompt_tokens") or 0),
            _answer_identity(record),
            hash(json.dumps(record.get("references"))),
            _tied((record.get("extra") or {}).get("logprobs")),
            str(record.get("arithmetic") or ""),
        )
        if isinstance(weight := (record.get("extra") or {}).get("weights"), dict):
            weights[id] = weight

    unreadable = each_sample(path, expected, use)
    ids = within_plan(list(slim), planned)
    rows = [slim[i] for i in ids]
    metrics = {
        name: np.array([np.nan if (v := row[0].get(name)) is None else v for row in rows], dtype=np.float64)
        for name in names
    }
    return CellScores(
        ids=ids,
        metrics=metrics,
        prompts=np.array([row[1] for row in rows], dtype=np.int64),
        finish=np.array([row[2] for row in rows], dtype=np.int8),
        prompt_tokens=np.array([row[3] for row in rows], dtype=np.int64),
        answers=np.array([row[4] for row in rows], dtype=np.int64),
        references=np.array([row[5] for row in rows], dtype=np.int64),
        tied=np.array([row[6] for row in rows], dtype=np.bool_),
        unreadable=unreadable,
        arithmetic=Counter(row[7] for row in rows),
        weights={
            name: np.array([weights[i][name] for i in ids], dtype=np.float64)
            for name in metrics
            if name in ROLLING and all(name in weights.get(i, ()) for i in ids)
        },
    )


def _tied(scores: Any) -> bool:
    """Whether two or more of an answer's option log-probabilities are the highest one; False where none are stored."""
    if not isinstance(scores, list) or not all(isinstance(score, int | float) for score in scores):
        return False
    return len(scores) > 1 and scores.count(max(scores)) > 1


def _answer_identity(record: Mapping[str, Any]) -> int:
    """A number that is equal where two responses are; `EMPTY` where nothing of a response was scored."""
    answer = str(record.get("response") or "").strip()
    if not answer or (record.get("extra") or {}).get("nothing_scored"):
        return EMPTY
    return hash(answer) or 1


def _prompt_identity(record: Mapping[str, Any]) -> int:
    """A number that is equal where two models were given the same prompt.

    The content hash covers the model too, so it cannot serve. The runner's `extra["prompt_hash"]` (prompt token ids
    alone) can; without it, the references and the prompt's token count are compared.
    """
    extra = record.get("extra") or {}
    if "prompt_hash" in extra:
        return hash(("hash", str(extra["prompt_hash"])))
    return hash(("weak", record.get("prompt_tokens"), json.dumps(record.get("references"))))
