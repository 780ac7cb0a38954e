"""An answer -> the line that is stored; a stored line -> the same line as today's scorer, references and tags give it.

Scores are no part of an answer's hash. Every session computes the scores of stored answers again and stores the line
anew where they differ, so that a score in a run is always the one that a fresh run would give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from harness.benchmarks.protocol import Setup
from harness.engine.requests import Answer, Choice, Completion, Question, SampleRequest
from harness.models.thinking import Thinking, after_thought
from harness.run.answers import answer_text, with_tags
from harness.types import GatedevalError, Sample, first_line


class ScoreError(GatedevalError):
    """An answer that cannot be scored. Its cell fails: leaving the sample out would give a wrong number silently."""


def scored_sample(sample: SampleRequest, answer: Answer, setup: Setup, arithmetic: str = "") -> Sample:
    """The line that is stored for one answered sample. Raises ScoreError when there is no finite score.

    `setup`: what the model's samples are made from: its tokenizer, and whether it may think. `arithmetic`: the key of
    what the engine computed with, in the manifest's `arithmetic`; empty: not known.
    """
    extra = {
        "prompt_hash": sample.prompt_hash,
        "prompt": sample.excerpt,
        **sample.extra,
        "cached_tokens": answer.cached_tokens,
    }
    if isinstance(answer, Choice) and isinstance(sample.request, Question) and sample.request.rolling:
        tokens, reason = 0, "scored"
        response = f"{math.fsum(answer.logprobs):.6f}"
        extra["windows"] = list(answer.logprobs)
    elif isinstance(answer, Choice):
        tokens, reason = 0, "choose"
        response = str(max(range(len(answer.logprobs)), key=answer.logprobs.__getitem__))
        extra |= {"logprobs": list(answer.logprobs), "greedy": list(answer.greedy)}
    else:
        response = with_tags(answer.text, answer.token_ids, setup.tokenizer, setup.thinking.tags)
        tokens, reason = answer.tokens, answer.finish_reason
        if setup.thinking.allowed:
            extra["thought_opened"] = opened = sample.thought_opened
            if not after_thought(response, setup.thinking.tags, opened).strip():
                extra["nothing_scored"] = True  # else the response would not count as an empty answer
    return Sample(
        id=sample.id,
        hash=sample.hash,
        prompt_tokens=sample.prompt_tokens,
        references=sample.references,
        response=response,
        response_tokens=tokens,
        finish_reason=reason,
        scores=_scores(sample, answer, response, setup.thinking),
        seconds=round(answer.seconds, 4),
        extra=extra,
        arithmetic=arithmetic,
    )


def _scores(sample: SampleRequest, answer: Answer, response: str, thinking: Thinking) -> dict[str, float]:
    """Metric -> score. Raises ScoreError when the scorer fails, or has no finite score.

    `response`: the stored one, with the tags of its thought written out.
    """
    try:
        text = ""
        if not isinstance(answer, Choice):
            text = answer_text(response, thinking, sample.thought_opened, sample.stop, sample.label)
        scores = sample.score(answer, text)
    except GatedevalError as error:
        message = str(error)
        raise ScoreError(message if message.startswith(sample.label) else f"{sample.label}: {message}") from error
    except Exception as error:  # whatever a scorer of lm-eval's raises: one answer must not end the run
        what = f"its scorer failed with {type(error).__name__}: {first_line(error)}"
        raise ScoreError(f"{sample.label}: {what}") from error
    if not scores or any(not math.isfinite(value) for value in scores.values()):
        raise ScoreError(f"{sample.label}: no finite score ({scores})")
    return scores


class NotStoredWhole(Exception):
    """A stored line lacks something that today's scorer needs, so its sample has to be answered again."""


def scored_again(sample: SampleRequest, record: Mapping[str, Any], thinking: Thinking) -> Sample:
    """The stored line `record` of an answer to `sample`, with the references and scores of today.

    `sample` has its content hash, and needs no excerpt: the line has one.

    Raises:
        ScoreError: today's scorer has no score for the answer.
        NotStoredWhole: the line lacks a part of the answer.
    """
    try:
        scores = _scores_of_record(sample, record, thinking)
        extra = {**record["extra"], **sample.extra} if record.get("extra") else dict(sample.extra)
        return Sample(
            id=sample.id,
            hash=sample.hash,
            prompt_tokens=int(record["prompt_tokens"]),
            references=sample.references,
            response=record["response"],
            response_tokens=int(record["response_tokens"]),
            finish_reason=record["finish_reason"],
            scores=scores,
            seconds=float(record.get("seconds") or 0.0),
            extra=extra,
            arithmetic=str(record.get("arithmetic") or ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotStoredWhole(str(error)) from error


def says_the_same(line: Sample, record: Mapping[str, Any]) -> bool:
    """Whether references and scores of `line` are those of the stored `record`, metrics in their order."""
    stored = record.get("scores")
    same_scores = isinstance(stored, Mapping) and list(line.scores.items()) == list(stored.items())
    return same_scores and line.references == record.get("references") and line.id == record.get("id")


def _scores_of_record(sample: SampleRequest, record: Mapping[str, Any], thinking: Thinking) -> dict[str, float]:
    if record["finish_reason"] == "scored":
        windows = tuple(float(value) for value in record["extra"]["windows"])
        if sample.request is not None and len(windows) != len(getattr(sample.request, "options", ())):
            raise NotStoredWhole("another number of windows")
        return _scores(sample, Choice(sample.label, windows, (False,) * len(windows), 0.0), "", thinking)
    if record["finish_reason"] != "choose":
        answer = Completion(
            key=sample.label,
            text=str(record["response"]),
            tokens=int(record["response_tokens"]),
            finish_reason=record["finish_reason"],
            seconds=0.0,
        )
        return _scores(sample, answer, answer.text, thinking)
    logprobs = tuple(float(value) for value in record["extra"]["logprobs"])
    if sample.request is not None and len(logprobs) != len(getattr(sample.request, "options", ())):
        raise NotStoredWhole("another number of options")
    if (greedy := record["extra"].get("greedy")) is not None:
        return _scores(sample, Choice(sample.label, logprobs, tuple(map(bool, greedy)), 0.0), "", thinking)
    # Older lines do not say which options greedy decoding would produce. Few metrics ask for it: where the scores are
    # the same either way, they are known; else those that were stored count as long as one of the two ways gives them.
    either = [
        _scores(sample, Choice(sample.label, logprobs, (way,) * len(logprobs), 0.0), "", thinking)
        for way in (False, True)
    ]
    if either[0] == either[1]:
        return either[0]
    for scores in either:
        if scores == record.get("scores"):
            return scores
    raise NotStoredWhole("it does not say which options greedy decoding would produce")
