"""RULER's scores, and the scoring of prediction files of other harnesses."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.data.files import json_lines, read_text
from harness.text import well_formed
from harness.types import GatedevalError
from tasks.ruler.protocol import SETTINGS, TASKS

_CONTROL = re.compile(r"[\x00-\x1f]")
_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_ALIASES = {"qa_squad": "qa_1", "qa_hotpot": "qa_2", "squad": "qa_1", "hotpotqa": "qa_2"}
_COLUMNS = {
    "task": ("task", "task_name", "subset"),
    "references": ("references", "outputs", "answer", "answers", "targets", "output"),
    "prediction": ("prediction", "predicted_answer", "pred", "response", "model_output"),
}


def clean(prediction: str) -> str:
    """A prediction as upstream scores it: control characters become newlines, both ends are stripped."""
    return _CONTROL.sub("\n", prediction.strip()).strip()


def score(task: str, references: Sequence[str], prediction: str) -> float:
    """One sample's score, 0..1: the share of references that the prediction contains, letter case aside.

    QA: 1 if it contains any of them. Raises GatedevalError for an unknown task or without references.
    """
    name = task_name(task)
    if isinstance(references, str) or not references:
        raise GatedevalError(f"RULER {task}: references must be a list of at least one string, not {references!r}")
    text = clean(prediction).lower()
    contained = [str(reference).lower() in text for reference in references]
    return float(any(contained)) if SETTINGS[name]["family"] == "qa" else sum(contained) / len(contained)


WORD_BOUNDED = "word_bounded"


def scores(task: str, references: Sequence[str], prediction: str) -> dict[str, float]:
    """One sample's scores, 0..1: upstream's as `score`, and `word_bounded` beside it, which is ours.

    Upstream looks for a reference anywhere in the prediction, so "Not found" contains "no" and "airbag" contains "bag".
    `word_bounded` counts a reference only where no letter or digit touches its ends; it is never above `score`, and it
    is the stricter one: "tomatoes" does not contain "tomato". Raises GatedevalError as `score`.
    """
    official = score(task, references, prediction)
    text = clean(prediction).lower()
    whole = [_contains_whole(text, str(reference).lower()) for reference in references]
    bounded = float(any(whole)) if SETTINGS[task_name(task)]["family"] == "qa" else sum(whole) / len(whole)
    return {"score": official, WORD_BOUNDED: bounded}


def _contains_whole(text: str, reference: str) -> bool:
    """Whether `reference` stands in `text` with no letter or digit beside an end of it that is a letter or a digit."""
    at = text.find(reference)
    while at >= 0:
        end = at + len(reference)
        starts = not (at and text[at - 1].isalnum() and reference[:1].isalnum())
        ends = not (end < len(text) and text[end].isalnum() and reference[-1:].isalnum())
        if starts and ends:
            return True
        at = text.find(reference, at + 1)
    return False


def task_name(task: str) -> str:
    """RULER's name of a task that another harness may write differently (ruler_vt, gatedeval_ruler_qa_1, ...)."""
    name = task.removeprefix("gatedeval_").removeprefix("ruler_")
    name = _ALIASES.get(name, name)
    if name not in TASKS:
        raise GatedevalError(f"RULER has no task {task!r}; its tasks: {', '.join(TASKS)}")
    return name


def parse_references(value: Any, where: str) -> list[str]:
    """References from a list, JSON, a printed Python list, or a printed NumPy array (no commas, may span lines).

    Anything that cannot be read without guessing is refused: a list misread is a wrong score.
    """
    if isinstance(value, list | tuple):
        if value and all(isinstance(v, str | int) and str(v).strip() for v in value):
            return [well_formed(str(v)) for v in value]  # an empty reference would be contained in every prediction
        raise GatedevalError(f"{where}: references must be a list of strings that are not empty, got {value!r:.120}")
    text = str(value).strip()
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        parsed = None
    if isinstance(parsed, list):
        return parse_references(parsed, where)
    if text.startswith(("[", "array(")):
        return parse_references(_parse_printed(text, where), where)
    if not text or re.search(r"[,;|\n\t]", text):
        raise GatedevalError(
            f"{where}: cannot tell where one reference ends in {text!r:.120}; write them as a JSON list"
        )
    return [text]


def _parse_printed(text: str, where: str) -> list[str]:
    inside = re.fullmatch(r"(?:array\(\s*)?\[(.*)\](?:\s*,\s*dtype=[^)]*)?\)?", text, re.DOTALL)
    literals, rest, end = [], [], 0
    for match in _LITERAL.finditer(inside[1] if inside else ""):
        rest.append(inside[1][end : match.start()] if inside else "")
        end = match.end()
        literals.append(ast.literal_eval(match[0].replace("\n", "\\n")))
    # Between two strings there must be a comma or white space, and nothing else anywhere.
    glued = any(not gap for gap in rest[1:])
    if inside is None or not literals or glued or re.sub(r"[,\s]", "", "".join(rest) + inside[1][end:]):
        raise GatedevalError(f"{where}: cannot read the references {text!r:.120}; write them as a JSON list of strings")
    return literals


@dataclass(frozen=True)
class Prediction:
    """One row of a prediction file."""

    task: str
    references: list[str]
    prediction: str


def read_predictions(path: Path, task: str | None = None) -> Iterator[Prediction]:
    """Rows of a prediction file: JSON lines or CSV, gzipped or not. Raises GatedevalError naming file and row.

    `task` is for rows without a task column; without it, the file's name is tried. A row that names another task than
    `task` is an error.
    """
    names = path.name.removesuffix(".gz")
    rows_are_json = not names.endswith(".csv")  # a CSV field can only be text; a JSON value says what it is
    rows = _json_rows(path) if rows_are_json else _csv_rows(path)
    fallback = task or names.split(".")[0]
    for number, row in rows:
        where = f"{path}, line {number}"
        picked = {key: next((row[c] for c in columns if c in row), None) for key, columns in _COLUMNS.items()}
        name = picked["task"] if picked["task"] is not None else fallback
        if task is not None and task_name(str(name)) != task_name(task):
            raise GatedevalError(f"{where}: the row is of task {name!r}, not {task!r}; leave --task out")
        for key in ("references", "prediction"):
            if picked[key] is None or picked[key] != picked[key]:  # absent, null or NaN
                raise GatedevalError(f"{where}: no {key}; expected one of the columns {', '.join(_COLUMNS[key])}")
        written = picked["references"]
        if rows_are_json and isinstance(written, str) and not written.strip().startswith(("[", "array(")):
            raise GatedevalError(f"{where}: references must be a list of strings, got the string {written!r:.120}")
        text = picked["prediction"]
        if isinstance(text, list) and len(text) == 1:
            text = text[0]
        if not isinstance(text, str):
            raise GatedevalError(f"{where}: the prediction is not a string: {text!r:.80}")
        yield Prediction(task_name(str(name)), parse_references(picked["references"], where), well_formed(text))


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(1 << 30)  # a column may hold a whole prompt
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    for row in reader:
        yield reader.line_num, row


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, row in json_lines(read_text(path), path):
        if not isinstance(row, dict):
            raise GatedevalError(f"{path}, line {number}: expected an object")
        yield number, row


@dataclass(frozen=True)
class TaskScore:
    """The score of one task in a prediction file, 0..100."""

    task: str
    samples: int
    score: float
    empty: int  # predictions without any text
    word_bounded: float  # beside upstream's score: see `scores`


def score_predictions(rows: Iterable[Prediction]) -> list[TaskScore]:
    """Scores per task, in RULER's order; only tasks that occur."""
    by_task: dict[str, list[dict[str, float]]] = {}
    empty: dict[str, int] = {}
    for row in rows:
        by_task.setdefault(row.task, []).append(scores(row.task, row.references, row.prediction))
        empty[row.task] = empty.get(row.task, 0) + (not clean(row.prediction))

    def mean(task: str, metric: str) -> float:
        return 100 * math.fsum(one[metric] for one in by_task[task]) / len(by_task[task])

    return [
        TaskScore(t, len(by_task[t]), mean(t, "score"), empty[t], mean(t, WORD_BOUNDED)) for t in TASKS if t in by_task
    ]


def average(scores: Sequence[TaskScore]) -> float | None:
    """The mean of the 13 tasks with equal weight; None where a task is missing or has only empty predictions."""
    if {s.task for s in scores} != set(TASKS) or any(s.empty == s.samples for s in scores):
        return None
    return math.fsum(s.score for s in scores) / len(TASKS)
