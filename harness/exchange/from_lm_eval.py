"""lm-eval's results as samples: `samples_TASK_DATE.jsonl`, with `results_DATE.json` of the same evaluation beside them.

lm-eval writes them with `--log_samples --output_path DIR`. They have every prompt as text, so that prompts can be
compared with a run's. Scores are lm-eval's own; RULER is scored again, because lm-eval's qa tasks are not RULER's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.data.files import json_lines, read_json, read_text
from harness.engine.encoding import generation_request
from harness.engine.requests import SampleRequest
from harness.exchange.matching import Imported
from harness.types import GatedevalError
from tasks.ruler.protocol import TASKS as RULER_TASKS
from tasks.ruler.scoring import scores, task_name

_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[0-9.-]+)\.jsonl")
_RESULTS = re.compile(r"results_(?P<date>\d{4}-\d\d-\d\dT[0-9.-]+)\.json")
_FIELDS = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
    "target_hash",
}  # fmt: skip
_MEANS = ("acc", "acc_norm", "exact_match")  # metrics whose result is the plain mean over documents


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The files of one evaluation. `samples`: task -> file. `results`: lm-eval's results object, or empty."""

    samples: dict[str, Path]
    results: dict[str, Any]
    files: list[Path]

    @property
    def facts(self) -> dict[str, Any]:
        """What lm-eval recorded about the model and itself."""
        config = self.results.get("config") or {}
        found = {k: config.get(k) for k in ("model", "model_args", "num_fewshot", "limit", "random_seed")}
        found |= {k: self.results.get(k) for k in ("git_hash", "transformers_version", "lm_eval_version", "date")}
        return {k: v for k, v in found.items() if v is not None}


def is_lm_eval(path: Path) -> bool:
    """Whether `path` is a results file of lm-eval, or a folder with samples of it."""
    if path.is_dir():
        return any(_SAMPLES.fullmatch(p.name) for p in _files(path))
    return _RESULTS.fullmatch(path.name) is not None


def find_evaluation(path: Path) -> Evaluation:
    """The evaluation at `path`: a results file, or a folder that has one evaluation, at most one folder further down.

    Raises:
        GatedevalError: the folder has none or several, or a results file has no samples beside it.
    """
    files = _files(path) if path.is_dir() else _files(path.parent)
    dates = {m["date"] for p in files if (m := _SAMPLES.fullmatch(p.name))}
    if not path.is_dir() and (match := _RESULTS.fullmatch(path.name)):
        dates &= {match["date"]}
    if len(dates) != 1:
        several = f"{len(dates)} evaluations ({', '.join(sorted(dates))}); name the results_DATE.json of one of them"
        none = "no samples_TASK_DATE.jsonl of an lm-eval evaluation; run lm_eval with --log_samples"
        raise GatedevalError(f"{path} has {several if dates else none}")
    [date] = dates
    found = [p for p in files if (m := _RESULTS.fullmatch(p.name)) and m["date"] == date]
    results = read_json(found[0]) if found else {}
    if not isinstance(results, dict):
        raise GatedevalError(f"{found[0]}: not lm-eval's results: expected an object")
    # File names have every character of a task's name that is no letter, digit or underscore replaced.
    names: dict[str, str] = {re.sub(r"\W", "-", name): name for name in results.get("configs") or {}}
    samples = {}
    for p in files:
        if (m := _SAMPLES.fullmatch(p.name)) and m["date"] == date:
            samples[names.get(m.group("task"), m.group("task"))] = p
    return Evaluation(samples=samples, results=results, files=[*samples.values(), *found])


def _files(folder: Path) -> list[Path]:
    try:
        return sorted([*folder.glob("*.json*"), *folder.glob("*/*.json*")])
    except OSError as error:
        raise GatedevalError(f"{folder}: cannot be read ({error})") from error


@dataclass(frozen=True, kw_only=True)
class LmEvalTask:
    """The samples of one task at one length. `ruler`: RULER's name of the task; None for any other task."""

    name: str
    length: int
    ruler: str | None
    samples: list[Imported]
    rescored: int = 0  # samples whose score by RULER is not lm-eval's


def read_evaluation(evaluation: Evaluation) -> Iterator[LmEvalTask]:
    """The tasks of an evaluation, RULER's once per length.

    Raises:
        GatedevalError: a line that is not lm-eval's, a document that occurs twice, a task without a number per
            document, or samples whose mean is not the score in the results file.
    """
    for name, file in evaluation.samples.items():
        rows = _by_document(file)
        ruler = _ruler_name(name, rows)
        if ruler is not None:
            yield from _ruler(name, ruler, rows)
            continue
        samples = [_sample(name, lines) for lines in rows.values()]
        _check_means(name, file, samples, evaluation.results)
        yield LmEvalTask(name=name, length=0, ruler=None, samples=samples)


@dataclass(frozen=True)
class _Line:
    where: str
    row: dict[str, Any]


def _by_document(file: Path) -> dict[int, list[_Line]]:
    """doc_id -> its lines, one per filter, in the order of the documents."""
    found: dict[int, list[_Line]] = {}
    for number, row in json_lines(read_text(file), file):
        line = _Line(f"{file}, line {number}", row)
        absent = [k for k in ("doc_id", "arguments", "resps", "target") if not isinstance(row, dict) or k not in row]
        if absent:
            raise GatedevalError(f"{line.where}: not a sample of lm-eval: it has no {', '.join(absent)}")
        lines = found.setdefault(int(row["doc_id"]), [])
        if any(other.row.get("filter") == row.get("filter") for other in lines):
            raise GatedevalError(
                f"{line.where}: document {row['doc_id']} occurs twice; the file has more than one evaluation"
            )
        lines.append(line)
    if not found:
        raise GatedevalError(f"{file} has no samples")
    return dict(sorted(found.items()))


def _arguments(line: _Line) -> list[list[Any]]:
    """The arguments of each request of a document: [prompt, settings], or [context, continuation] per option."""
    given = line.row["arguments"]
    requests = list(given.values()) if isinstance(given, dict) else given
    parts = [list(r.values()) if isinstance(r, dict) else list(r) for r in requests]
    if not parts or any(len(p) < 2 for p in parts):
        raise GatedevalError(f"{line.where}: its arguments are not those of a prompt or of options")
    return parts


def _sample(task: str, lines: list[_Line]) -> Imported:
    first = lines[0]
    number, arguments = int(first.row["doc_id"]), _arguments(first)
    scores = _scores(lines)
    if not scores:
        raise GatedevalError(f"{first.where}: task {task!r} has no number per document, so that it cannot be compared")
    target = first.row["target"]
    references = [str(t) for t in target] if isinstance(target, list) else [str(target)]
    label = f"{task}, document {number}"
    if isinstance(arguments[0][1], dict):
        return Imported(
            where=first.where,
            number=number,
            references=references,
            response=_text(first),
            scores=scores,
            identity=str(arguments),
            asked=_prompt_requests(label, arguments[0]),
        )
    logprobs = [_logprob(first, response) for response in first.row["resps"]]
    options = tuple((str(context), str(continuation)) for context, continuation in (a[:2] for a in arguments))
    return Imported(
        where=first.where,
        number=number,
        references=references,
        response=str(max(range(len(logprobs)), key=logprobs.__getitem__)),
        scores=scores,
        identity=str(arguments),
        finish_reason="choose",
        asked=[SampleRequest(id=str(number), label=label, options=options)],
        extra={"options": [continuation for _, continuation in options], "logprobs": logprobs},
    )


def _prompt_requests(label: str, arguments: list[Any]) -> list[SampleRequest]:
    """The request for [prompt, generation settings]; none where a run never has such settings."""
    prompt, settings = arguments[:2]
    try:
        return [generation_request("0", label, str(prompt), settings)] if isinstance(settings, dict) else []
    except GatedevalError:
        return []


def _scores(lines: list[_Line]) -> dict[str, float]:
    """lm-eval's metrics of one document; `metric,filter` where the task has several filters, as a run names them."""
    found: dict[str, float] = {}
    for line in lines:
        # Older versions did not list the metrics: they are what is no field of lm-eval's own.
        for metric in line.row.get("metrics") or [key for key in line.row if key not in _FIELDS]:
            value = line.row.get(metric)
            if isinstance(value, int | float):
                found[metric if len(lines) == 1 else f"{metric},{line.row.get('filter')}"] = float(value)
    return found


def _text(line: _Line) -> str:
    """The response: the innermost string of `resps`."""
    value = line.row["resps"]
    while isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str):
        raise GatedevalError(f"{line.where}: its response is not a text: {value!r:.80}")
    return value


def _logprob(line: _Line, response: Any) -> float:
    """An option's log-likelihood: the first number of [log-likelihood, is greedy], which lm-eval writes as text."""
    value = response
    while isinstance(value, list | tuple) and value:
        value = value[0]
    try:
        return float(value)
    except (TypeError, ValueError):
        raise GatedevalError(f"{line.where}: {value!r:.80} is not a log-likelihood") from None


def _check_means(task: str, file: Path, samples: list[Imported], results: dict[str, Any]) -> None:
    """The scores of the results file must be the means of these samples: else they are of two evaluations."""
    stated = (results.get("results") or {}).get(task) or {}
    for key, value in stated.items():
        metric, _, extraction = key.partition(",")
        if metric not in _MEANS or not isinstance(value, int | float):
            continue
        of_each = [s.scores.get(key, s.scores.get(metric)) for s in samples]
        there = [v for v in of_each if v is not None]
        if there and not math.isclose(mean := math.fsum(there) / len(there), value, abs_tol=1e-6):
            raise GatedevalError(
                f"{file}: the mean of its {len(there)} samples is {mean:.6f} ({metric} {extraction}), and the results "
                f"file beside it says {value:.6f}: the two are not of one evaluation, or the file is not complete"
            )


# --------------------------------------------------------------------------------------------------------- RULER


def _ruler_name(task: str, rows: dict[int, list[_Line]]) -> str | None:
    """RULER's name of a task whose documents are RULER's; None for any other task."""
    doc = next(iter(rows.values()))[0].row.get("doc")
    if not isinstance(doc, dict) or "outputs" not in doc or "max_length" not in doc:
        return None
    try:
        name = task_name(task)
    except GatedevalError:
        return None
    return name if name in RULER_TASKS else None


def _ruler(task: str, name: str, rows: dict[int, list[_Line]]) -> Iterator[LmEvalTask]:
    """RULER's samples, a task per length, scored as RULER scores them."""
    lengths: dict[int, list[tuple[Imported, bool]]] = {}
    for number, lines in rows.items():
        line = lines[0]
        doc, arguments, response = line.row["doc"], _arguments(line), _text(line)
        references, length = [str(o) for o in doc["outputs"]], int(doc["max_length"])
        ours = scores(name, references, response)
        theirs = line.row.get(str(length))
        there = lengths.setdefault(length, [])
        sample = Imported(
            where=line.where,
            number=len(there),
            references=references,
            response=response,
            scores=ours,
            identity=str(arguments),
            asked=_prompt_requests(f"{task}, document {number}", arguments[0]),
        )
        there.append(
            (sample, isinstance(theirs, int | float) and theirs >= 0 and not math.isclose(theirs, ours["score"]))
        )
    for length, samples in sorted(lengths.items()):
        yield LmEvalTask(
            name=task,
            length=length,
            ruler=name,
            samples=[s for s, _ in samples],
            rescored=sum(differs for _, differs in samples),
        )
