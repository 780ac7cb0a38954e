"""Results of other harnesses as a run, so that tables, tests and reports work on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.exchange import from_lm_eval, from_predictions
from harness.exchange.matching import Imported, Match, Matcher
from harness.store.importing import write_samples
from harness.tables.frames import labels
from harness.types import Cell, GatedevalError, Sample
from tasks.mmlu import SUBJECTS

_UNKNOWN = "as given"


@dataclass
class _Gathered:
    """What was read: the samples of each cell, their matches in the run, and lines for the caption."""

    cells: dict[Cell, list[tuple[Imported, Match | None]]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    caption: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return sum(map(len, self.cells.values()))

    @property
    def matched(self) -> int:
        return sum(match is not None for samples in self.cells.values() for _, match in samples)


def import_results(
    path: Path | str,
    out: Path | str,
    *,
    model: str = "imported",
    context: str | None = None,
    length: int = 0,
    task: str | None = None,
    like: Path | str | None = None,
) -> Path:
    """Write a run to `out` from lm-eval's results (a folder or a results file) or RULER predictions; returns its path.

    `like`: a run to compare with. Every sample whose prompt has the same token ids, answer budget and stop strings as
    one of that run gets its id, so that `merge` and `compare` pair the two; every other sample gets an id of its own
    and is never paired. `context`: the label of the run's context setting, or of one of your own without `like`.
    `length`: of RULER predictions, in tokens; 0 takes it from the folders' names where they have it.

    Raises:
        GatedevalError: a file that cannot be read (with its line), a label that the run has for another model, or no
            sample of the run has the prompt of any sample here.
    """
    path, out = Path(path), Path(out)
    if not path.exists():
        raise GatedevalError(f"{path}: no such file or folder; give lm-eval's results or RULER predictions")
    if length < 0:
        raise GatedevalError(f"--length must be 0 (not known) or a number of tokens, not {length}")
    matcher = None if like is None else Matcher(like, context)
    if matcher is not None and model in labels(matcher.store, "models"):
        raise GatedevalError(f"{matcher.store.path} has a model {model!r} already; give this one another --model")
    label = matcher.context if matcher is not None else context or _UNKNOWN
    read = _lm_eval if from_lm_eval.is_lm_eval(path) else _predictions
    gathered = read(path, Cell(model, label, "", task or "", length), matcher)
    if matcher is not None:
        _check_matched(path, gathered, matcher)
    _write(path, out, gathered, matcher, model, label)
    return out


def _lm_eval(path: Path, given: Cell, matcher: Matcher | None) -> _Gathered:
    evaluation = from_lm_eval.find_evaluation(path)
    found = _Gathered(files=evaluation.files)
    for task in from_lm_eval.read_evaluation(evaluation):
        theirs = None if matcher is None else matcher.cell(_in_tables(task.name, task.ruler), task.length)
        benchmark, name = (theirs.benchmark, theirs.task) if theirs is not None else _named(task.name, task.ruler)
        cell = Cell(given.model, given.context, benchmark, name, task.length)
        _add(found, cell, task.samples, matcher, theirs)
        if task.rescored:
            found.caption.append(
                f"{task.name} at {task.length}: scored as RULER scores it; lm-eval's own score differs in "
                f"{task.rescored} of {len(task.samples)} samples"
            )
    found.facts = evaluation.facts
    found.caption.append(f"imported from lm-eval's {path.name}; which answers their budget cut is not known")
    return found


def _in_tables(task: str, ruler: str | None) -> str:
    """lm-eval's name of a task as a run's presentations have it."""
    if ruler is None:
        return task
    from harness.benchmarks.presentation import presentation_of

    return presentation_of("ruler").lm_eval_task(ruler)


def _named(task: str, ruler: str | None) -> tuple[str, str]:
    """(benchmark, task) that a run would use for a task of lm-eval's."""
    if ruler is not None:
        return "ruler", ruler
    subject = task.removeprefix("mmlu_")
    return ("mmlu", subject) if subject != task and subject in SUBJECTS else (task, task)


def _predictions(path: Path, given: Cell, matcher: Matcher | None) -> _Gathered:
    found = _Gathered(files=from_predictions.prediction_files(path))
    length = given.length or from_predictions.length_of(path)
    stated = from_predictions.stated_scores(path)
    budgets = {} if matcher is None else _answer_tokens(matcher, length)
    by_task: dict[str, list[Imported]] = {}
    for file in found.files:
        for task, sample in from_predictions.read_samples(file, given.task or None, budgets):
            by_task.setdefault(task, []).append(sample)
    for task, samples in by_task.items():
        theirs = None
        if matcher is not None:
            theirs = next(
                (c for c in matcher.cells if (c.benchmark, c.task, c.length) == ("ruler", task, length)), None
            )
        _add(found, Cell(given.model, given.context, "ruler", task, length), samples, matcher, theirs)
        mean = 100 * sum(s.scores["score"] for s in samples) / len(samples)
        if task in stated and round(mean, 2) != round(stated[task], 2):
            found.caption.append(
                f"{task}: {mean:.2f} by RULER's scoring; metrics.json beside it says {stated[task]:.2f}"
            )
    found.caption.append(f"imported predictions: {path.name}; token counts are not known")
    return found


def _answer_tokens(matcher: Matcher, length: int) -> dict[str, int]:
    """task -> the answer's budget in the run's samples, which an option of its config may have changed."""
    found = {}
    for cell in matcher.cells:
        if (cell.benchmark, cell.length) == ("ruler", length):
            validity = next((s.extra.get("ruler") or {} for s in matcher.store.samples(cell)), {})
            if budget := validity.get("answer_tokens"):
                found[cell.task] = int(budget)
    return found


def _add(
    found: _Gathered, cell: Cell, samples: Iterable[Imported], matcher: Matcher | None, theirs: Cell | None
) -> None:
    there = found.cells.setdefault(cell, [])
    taken: set[str] = {match.id for _, match in there if match is not None}
    for sample in samples:
        match = None if matcher is None else matcher.find(theirs, sample)
        if match is not None and match.id in taken:  # a prompt that occurs twice is one sample of the run
            match = None
        if match is not None:
            taken.add(match.id)
        there.append((sample, match))


def _check_matched(path: Path, found: _Gathered, matcher: Matcher) -> None:
    """Say how much can be compared; nothing at all is an error."""
    if not found.matched:
        texts = any(sample.asked for samples in found.cells.values() for sample, _ in samples)
        why = (
            "no prompt is the same to the token (other data, shots, seed, chat template or tokenizer)"
            if texts
            else "its files do not have the prompts, so that nobody can tell whether they are the same"
        )
        raise GatedevalError(
            f"{path} cannot be compared with {matcher.store.path}: {why}; leave --like out to import it alone"
        )
    for cell, samples in found.cells.items():
        matched = sum(match is not None for _, match in samples)
        if matched < len(samples):
            at = f" at {cell.length}" if cell.length else ""
            found.caption.append(
                f"{cell.model}: {len(samples) - matched} of {len(samples)} samples of {cell.task}{at} have prompts "
                f"that {matcher.name} does not have; they are in no comparison"
            )


def _write(path: Path, out: Path, found: _Gathered, matcher: Matcher | None, model: str, context: str) -> None:
    cells = {cell: [_stored(cell, s, match) for s, match in samples] for cell, samples in found.cells.items()}
    config = dict(matcher.store.manifest.get("config") or {}) if matcher is not None else {}
    setting = next((c for c in config.get("contexts") or [] if c.get("label") == context), None)
    benchmarks = [b for b in config.get("benchmarks") or [] if _is_of(b, cells)] or _entries(cells)
    manifest = {
        "config": {
            "models": [{"label": model, "path": path.name}],
            "contexts": [setting or {"label": context, "max_length": None}],
            "benchmarks": benchmarks,
        },
        "seed": matcher.store.manifest.get("seed") if matcher is not None else None,
        "options": matcher.store.manifest.get("options") or {} if matcher is not None else {},
        "caption": found.caption,
        "imported": {
            "source": path.name,
            "facts": found.facts,
            "like": None if matcher is None else matcher.name,
            "samples": found.samples,
            "matched": found.matched,
        },
        "data": {p.name: {"sha256": hashlib.sha256(p.read_bytes()).hexdigest()} for p in found.files},
    }
    write_samples(out, manifest, cells)


def _stored(cell: Cell, sample: Imported, match: Match | None) -> Sample:
    """A sample with a match has its id and its prompt hash; any other has an id that no run uses."""
    question = hashlib.sha256(f"{cell.task}\0{sample.identity}".encode(errors="surrogatepass")).hexdigest()[:32]
    answer = f"{question}\0{cell.model}\0{sample.response}".encode(errors="surrogatepass")
    return Sample(
        id=match.id if match is not None else f"imported-{sample.number}",
        hash=hashlib.sha256(answer).hexdigest()[:32],
        prompt_tokens=match.tokens if match is not None else 0,
        references=sample.references,
        response=sample.response,
        response_tokens=0,
        finish_reason=sample.finish_reason,
        scores=sample.scores,
        extra={"prompt_hash": match.prompt_hash if match is not None else question, **sample.extra},
    )


def _is_of(entry: dict[str, Any], cells: Iterable[Cell]) -> bool:
    name = str(entry.get("lm_eval") or next(iter(entry), ""))
    return name in {cell.benchmark for cell in cells}


def _entries(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Config entries for what was imported: tasks and lengths; shots and profile are not known."""
    found: list[dict[str, Any]] = []
    for benchmark in dict.fromkeys(cell.benchmark for cell in cells):
        of = [cell for cell in cells if cell.benchmark == benchmark]
        if benchmark == "ruler":
            found.append({"ruler": sorted({c.task for c in of}), "lengths": sorted({c.length for c in of})})
        elif benchmark == "mmlu":
            found.append({"mmlu": {"subjects": [c.task for c in of]}})
        else:
            found.append({"gsm8k": {}} if benchmark == "gsm8k" else {"lm_eval": benchmark})
    return found
