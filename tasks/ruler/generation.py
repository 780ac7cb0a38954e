"""Samples of one task at one length, made on demand: sample k never needs sample k+1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.data.files import read_json
from harness.data.folder import DataFolder
from harness.models.tokenizer import Tokenizer, load_tokenizer
from harness.types import GatedevalError
from tasks.ruler.common_words import FIRST, CommonWords
from tasks.ruler.counting import Counter
from tasks.ruler.family import Draws, Family, Rejected, Text, whole_tokens
from tasks.ruler.fit import TooShort, accepted, find_size
from tasks.ruler.frequent_words import FrequentWords
from tasks.ruler.haystack import load_essay
from tasks.ruler.needle import Niah
from tasks.ruler.protocol import ANSWER_TOKENS, NEEDS, SETTINGS, TASKS
from tasks.ruler.qa import QuestionAnswering, load_documents
from tasks.ruler.sample import RulerSample
from tasks.ruler.validity import validate
from tasks.ruler.variable_tracking import VariableTracking

PROFILES = ("nvidia", "fair")
Counting = Literal["auto", "piecewise", "whole"]
CHECK_EVERY = 100
"""Every so many samples, starting with the first, the whole prompt is encoded and its count compared."""


@dataclass(frozen=True)
class Request:
    """Everything that decides the samples of one task at one length."""

    task: str
    tokenizer: Tokenizer
    length: int
    samples: int
    seed: int
    data: DataFolder
    profile: str
    answer_prefix: str
    max_model_len: int | None
    counting: Counting
    answer_tokens: int


def generate(
    task: str,
    *,
    tokenizer: Any,
    length: int,
    samples: int,
    seed: int = 42,
    data: DataFolder | Path | str | None = None,
    profile: str = "nvidia",
    answer_prefix: str = "append",
    max_model_len: int | None = None,
    start: int = 0,
    counting: Counting = "auto",
    answer_tokens: int | None = None,
) -> Iterator[RulerSample]:
    """Samples `start` to `samples`-1 of a task, lazily.

    `length`: tokens that prompt and answer budget may take together. `tokenizer`: what `load_tokenizer` takes. `data`:
    the folder with essays, SQuAD and HotpotQA. `profile`: "nvidia" (upstream's bytes) or "fair" (independent draws per
    sample, budget on the ids as sent). `answer_prefix`: "append", or "drop" to leave it out of the prompt.
    `max_model_len`: a sample that takes more than that is an error. `start` resumes: earlier rows are drawn, not made.
    `answer_tokens`: the answer's budget inside `length`, instead of RULER's own for the task (for short lengths).

    Raises GatedevalError for an unknown task or option, missing data, or a length too small (naming the minimum).
    """
    request = _request(
        task, tokenizer, length, samples, seed, data, profile, answer_prefix, max_model_len, counting, start,
        answer_tokens,
    )  # fmt: skip
    if profile == "fair":
        from tasks.ruler.fair import fair_samples

        return fair_samples(request, start)
    return _checked(request, start)


def _request(
    task: str, tokenizer: Any, length: int, samples: int, seed: int, data: DataFolder | Path | str | None, profile: str,
    answer_prefix: str, max_model_len: int | None, counting: Counting, start: int, answer_tokens: int | None,
) -> Request:  # fmt: skip
    if task not in TASKS:
        raise GatedevalError(f"RULER has no task {task!r}; its tasks: {', '.join(TASKS)}")
    if profile not in PROFILES:
        raise GatedevalError(f"RULER profile {profile!r}: expected nvidia or fair")
    if answer_prefix not in ("append", "drop"):
        raise GatedevalError(f"RULER answer_prefix {answer_prefix!r}: expected append or drop")
    if samples < 0 or start < 0:
        raise GatedevalError(f"RULER {task}: samples ({samples}) and start ({start}) cannot be negative")
    if answer_tokens is not None and answer_tokens < 1:
        raise GatedevalError(f"RULER answer_tokens {answer_tokens}: should be at least 1")
    budget = ANSWER_TOKENS[task] if answer_tokens is None else answer_tokens
    if length <= budget:
        smaller = " or a smaller answer_tokens" if budget > 1 else ""
        raise GatedevalError(
            f"RULER {task} at length {length}: the answer alone may take {budget} tokens; use a larger one{smaller}"
        )
    if not isinstance(data, DataFolder):
        data = DataFolder(None if data is None else Path(data))
    return Request(
        task, load_tokenizer(tokenizer), length, samples, seed, data, profile, answer_prefix, max_model_len, counting,
        budget,
    )  # fmt: skip


def minimum_length(task: str, *, tokenizer: Any, data: DataFolder | Path | str | None = None, seed: int = 42) -> int:
    """The length from which a task's first sample fits, for this tokenizer: tokens of its smallest text plus answer."""
    try:
        next(
            generate(task, tokenizer=tokenizer, length=ANSWER_TOKENS[task] + 32, samples=1, seed=seed, data=data), None
        )
    except TooShort as error:
        if error.minimum is not None:
            return error.minimum
        raise
    return ANSWER_TOKENS[task] + 32


def check_possible(
    task: str, *, tokenizer: Any, length: int, samples: int = 1, seed: int = 42,
    data: DataFolder | Path | str | None = None, profile: str = "nvidia", answer_tokens: int | None = None,
) -> None:  # fmt: skip
    """Plan-time check: raises GatedevalError naming the missing data file, or the minimum length. Cheap.

    The first sample is made where the length is small enough to be in doubt, or long enough that common words needs
    the large word list.
    """
    request = _request(task, tokenizer, length, samples, seed, data, profile, "append", None, "auto", 0, answer_tokens)
    missing = request.data.missing(NEEDS[task])
    if missing:
        raise GatedevalError(missing[0])
    if length <= 16384 or (task == "cwe" and length > 131072):
        next(generate(task, tokenizer=request.tokenizer, length=length, samples=min(samples, 1), seed=seed,
                      data=request.data, profile=profile, answer_tokens=answer_tokens), None)  # fmt: skip


def make_family(request: Request, counter: Counter, draws: Draws, limit: int | None = None) -> Family:
    """The task's family at the request's length. `limit`: tokens a prompt may take."""
    task, settings, data = request.task, SETTINGS[request.task], request.data
    if limit is None:
        limit = request.length - request.answer_tokens
    match settings["family"]:
        case "niah":
            essay = load_essay(data) if settings["haystack"] == "essay" else None
            return Niah(settings, request.length, limit, counter, draws, essay)
        case "vt":
            return VariableTracking(settings["num_hops"], request.length, limit, counter, draws)
        case "cwe":
            return CommonWords(settings, request.length, limit, counter, draws, lambda: english_words(data))
        case "fwe":
            return FrequentWords(settings, limit, counter, draws)
        case _:
            documents = load_documents(settings["dataset"], data)
            if request.samples > len(documents.questions):
                raise GatedevalError(
                    f"RULER {task}: {request.samples} samples wanted, its data has {len(documents.questions)} questions"
                )
            return QuestionAnswering(documents, limit, counter, draws)


def english_words(data: DataFolder) -> list[str]:
    """Upstream's large English word list, which common words needs for more than 8,166 distinct words."""
    try:
        path = data.find("english_words").path
    except GatedevalError as error:
        raise GatedevalError(f"RULER cwe needs more than 8,166 distinct words at this length: {error}") from error
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise GatedevalError(f"{path}: expected NVIDIA/RULER's english_words.json, an object of words")
    return list(value.values())


def _checked(request: Request, start: int) -> Iterator[RulerSample]:
    """Upstream's rows; should a piecewise count ever differ from the whole one, all is done again with whole ones."""
    counter = Counter(request.tokenizer, request.counting)
    given: list[tuple[int, int]] = []  # what has been handed out: (row, hash of its line)
    try:
        for sample in _rows(request, counter, start):
            given.append((sample.row, hash(sample.to_json()))) if counter.piecewise else None
            yield sample
        return
    except _Miscounted as error:
        if request.counting == "piecewise":
            raise GatedevalError(f"RULER {request.task} at {request.length}: {error}") from error
        request.tokenizer.notes.append(f"whole prompts are encoded (slower, same samples): {error}")
        counter = Counter(request.tokenizer, "whole")
        counter.why_whole = str(error)
    handed = dict(given)
    for sample in _rows(request, counter, start):
        if sample.row not in handed:
            yield sample
        elif hash(sample.to_json()) != handed[sample.row]:
            raise GatedevalError(
                f"RULER {request.task} at {request.length}: sample {sample.row} was handed out with a wrong "
                "token count; start again with counting='whole' (--counting whole)"
            )


class _Miscounted(Exception):
    """A piecewise count differs from the whole one."""


def _rows(request: Request, counter: Counter, start: int) -> Iterator[RulerSample]:
    if request.samples <= start:
        return
    family = make_family(request, counter, Draws(request.seed))
    where = f"RULER {request.task} at length {request.length}"
    try:
        size = _search(request, family)
        for row in range(request.samples):
            draft, tokens = _accept(family, size, row)
            if row < start:
                continue  # only its draws were needed
            text = family.render(draft)
            checked = (row - start) % CHECK_EVERY == 0 and counter.piecewise
            if checked:
                whole = whole_tokens(counter, text)
                if whole != tokens:
                    raise _Miscounted(f"sample {row} takes {whole} tokens, its pieces make {tokens}")
            yield make_sample(request, family, counter, draft, text, tokens, row, "checked" if checked else "")
    except TooShort as error:
        raise too_short(request, error, where) from error
    except Rejected as error:
        raise GatedevalError(f"{where}: {error.args[0]}; use a larger length") from error


def too_short(request: Request, error: TooShort, where: str) -> GatedevalError:
    """The error a user sees: what does not fit, and the length that would."""
    if error.minimum is None:
        return GatedevalError(f"{where}: {error}; upstream never ends here; use a larger length")
    minimum = error.minimum + request.answer_tokens
    return TooShort(f"{where}: {error}; the length must be at least {minimum} with this tokenizer", minimum)


def _search(request: Request, family: Family) -> int:
    length = request.length
    if isinstance(family, FrequentWords):
        draft = family.draw(family.start, 0)
        size = family.start
        while family.tokens(family.with_total(draft, size)) < family.limit:
            size += family.step
        return size - family.step
    if isinstance(family, VariableTracking):
        return find_size(
            family.draw_searching, family.search_tokens,
            length=length, limit=family.limit, start=family.step, extra=family.example_tokens,
        )  # fmt: skip
    first = FIRST if isinstance(family, CommonWords) else None
    return find_size(
        lambda n: family.draw(n, 0), family.tokens,
        length=length, limit=family.limit, start=family.step, first=first, tight=first is not None,
    )  # fmt: skip


def _accept(family: Family, size: int, row: int) -> tuple[Any, int]:
    if not isinstance(family, FrequentWords):
        return accepted(family.draw, family.tokens, limit=family.limit, size=size, step=family.step, row=row)
    draft = family.draw(size, row)
    tokens = family.tokens(draft)
    while tokens > family.limit:
        size -= family.step
        if size < 1 or family.step < 1:
            raise TooShort(f"its smallest text takes {tokens} tokens, {family.limit} are left for it", tokens)
        draft = family.with_total(draft, size)
        tokens = family.tokens(draft)
    return draft, tokens


def make_sample(
    request: Request, family: Family, counter: Counter, draft: Any, text: Text, tokens: int, row: int, counted: str = ""
) -> RulerSample:
    """The sample of a rendered draft, with what was checked about it. Raises GatedevalError beyond `max_model_len`."""
    index, position = row, None
    if isinstance(family, Niah):
        index = text.input.find(text.outputs[0])
        position = family.position_tokens(draft, text)
    return RulerSample(
        task=request.task, row=row, index=index, input=text.input, outputs=text.outputs,
        length=tokens + request.answer_tokens, answer_prefix=text.answer_prefix, token_position_answer=position,
        profile=request.profile, prefix_sent=request.answer_prefix == "append",
        validity=validate(request, family, counter, draft, text, tokens, row, counted),
    )  # fmt: skip


__all__ = ["NEEDS", "Request", "generate", "make_family", "make_sample"]
