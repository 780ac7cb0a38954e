"""RULER's predictions of NVIDIA's code and of kvpress as samples.

NVIDIA's pred/TASK.jsonl have the prompt (`input`), so that it can be compared with a run's. kvpress' predictions.csv
has the question alone: such samples are compared with others of the same file format, never with a run's.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.data.files import json_lines, read_json, read_text
from harness.engine.requests import SampleRequest
from harness.exchange.matching import Imported
from harness.types import GatedevalError
from tasks.ruler.protocol import ANSWER_TOKENS
from tasks.ruler.scoring import read_predictions, scores

_ENDINGS = re.compile(r".*\.(jsonl|csv)(\.gz)?")


def prediction_files(path: Path) -> list[Path]:
    """The prediction files of a folder (also of its folder `pred`), or the file itself. Summaries are left out.

    Raises GatedevalError where there are none.
    """
    if not path.is_dir():
        return [path]
    folder = path / "pred" if (path / "pred").is_dir() else path
    found = sorted(p for p in folder.iterdir() if _ENDINGS.fullmatch(p.name) and not p.name.startswith("summary"))
    if not found:
        raise GatedevalError(
            f"{path} has neither samples of lm-eval (samples_TASK_DATE.jsonl) nor RULER predictions "
            "(pred/TASK.jsonl, predictions.csv)"
        )
    return found


def length_of(path: Path) -> int:
    """RULER's length in tokens by the folders' names (NVIDIA: 4096/, kvpress: ruler__4096__...); 0: not there."""
    for part in reversed(path.absolute().parts):
        if part.isdecimal() and int(part) >= 256:
            return int(part)
        if match := re.match(r"ruler__(\d+)__", part):
            return int(match[1])
    return 0


def read_samples(file: Path, task: str | None, answer_tokens: Mapping[str, int]) -> Iterator[tuple[str, Imported]]:
    """(RULER's task, sample) of every row; samples are numbered per task in the order of the file.

    `task`: for files without a task column. `answer_tokens`: the answer's budget where it is not RULER's own.
    Raises GatedevalError naming file and line.
    """
    counts: dict[str, int] = {}
    for prediction, (line, row) in zip(read_predictions(file, task), _rows(file), strict=True):
        number = counts.get(prediction.task, 0)
        counts[prediction.task] = number + 1
        prompts = _prompts(row)
        question = row.get("question") or ""
        budget = answer_tokens.get(prediction.task, ANSWER_TOKENS[prediction.task])
        yield (
            prediction.task,
            Imported(
                where=f"{file}, line {line}",
                number=number,
                references=prediction.references,
                response=prediction.prediction,
                scores=scores(prediction.task, prediction.references, prediction.prediction),
                identity=json.dumps(prompts[:1] or [number, question, prediction.references], ensure_ascii=False),
                asked=[
                    SampleRequest(id="0", label=f"{prediction.task}, line {line}", prompt=prompt, max_tokens=budget)
                    for prompt in prompts
                ],
            ),
        )


def _prompts(row: Mapping[str, Any]) -> list[str]:
    """What the model may have been sent: `input`, and with the answer prefix where the file has it apart."""
    text = row.get("input")
    if not isinstance(text, str) or not text:
        return []
    prefix = row.get("answer_prefix")
    return [text, text + prefix] if isinstance(prefix, str) and prefix else [text]


def _rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    text = read_text(file)
    if file.name.removesuffix(".gz").endswith(".csv"):
        reader = csv.DictReader(io.StringIO(text, newline=""))
        for row in reader:
            yield reader.line_num, row
    else:
        yield from json_lines(text, file)


def stated_scores(path: Path) -> dict[str, float]:
    """kvpress' metrics.json beside the predictions: task -> `string_match`, percent. Empty where there is none."""
    file = path / "metrics.json" if path.is_dir() else path.with_name("metrics.json")
    if not file.is_file():
        return {}
    content = read_json(file)
    if not isinstance(content, dict):
        return {}
    return {
        task: float(value["string_match"])
        for task, value in content.items()
        if isinstance(value, dict) and isinstance(value.get("string_match"), int | float)
    }
