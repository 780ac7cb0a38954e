"""What the page shows of one prompt and its answer: parts that never overlap and are never cut inside a word."""

from __future__ import annotations

from typing import Any

from harness.tables.choices import option_text
from harness.text import between_words
from harness.types import Sample

RESPONSE_LIMIT, PART_LIMIT = 800, 640  # characters that are kept of a response, and of a reference or part
_MOST_REFERENCES, _MOST_NEEDLES = 12, 8
_SEAM = 20  # characters that two parts must share to be one text: fewer may be chance

Part = list[str]  # what it is ("prompt", "head", "needle" or "tail"), its text


def prompt_parts(sample: Sample) -> list[Part]:
    """The stored pieces of the sample's prompt in their order; one piece "prompt" where together they are all of it.

    Head and tail that overlap are joined; a needle that another piece shows is left out, one that overlaps with
    another piece is joined to it. Empty where the run has no excerpt.
    """
    stored = sample.extra.get("prompt")
    stored = stored if isinstance(stored, dict) else {}
    head, tail = str(stored.get("head") or ""), str(stored.get("tail") or "")
    if not head:
        return []
    if not tail:
        return [["prompt", head]]
    if (whole := _joined(head, tail)) is not None:
        return [["prompt", whole]]
    pieces: list[Part] = [["head", head]]
    for text in map(str, (stored.get("needles") or [])[:_MOST_NEEDLES]):
        if text in tail or any(text in piece for _, piece in pieces):
            continue
        if (longer := _joined(pieces[-1][1], text)) is not None:
            pieces[-1][1] = longer
        elif (longer := _joined(text, tail)) is not None:
            tail = longer
        else:
            pieces.append(["needle", text])
    if (longer := _joined(pieces[-1][1], tail)) is not None:
        pieces[-1][1] = longer
    else:
        pieces.append(["tail", tail])
    if len(pieces) == 1:
        return [["prompt", pieces[0][1]]]
    last = len(pieces) - 1
    return [[kind, between_words(text, start=i > 0, end=i < last)] for i, (kind, text) in enumerate(pieces)]


def _joined(first: str, second: str) -> str | None:
    """Both texts as one where the end of the first is the beginning of the second; None where they do not overlap."""
    for size in range(min(len(first), len(second)), _SEAM - 1, -1):
        if first.endswith(second[:size]):
            return first + second[size:]
    return None


def shortened(text: str, limit: int) -> str:
    """The text with its middle left out, between two words, if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    first = between_words(text[: limit // 2], start=False, end=True)
    return f"{first} […] {between_words(text[-limit // 2 :], start=True, end=False)}"


def options_of(sample: Sample) -> list[str]:
    """The options of a multiple-choice question in words, such as "C. milk"; empty for other samples."""
    options = sample.extra.get("options")
    if sample.finish_reason != "choose" or not isinstance(options, list):
        return []
    return [shortened(option_text(sample, str(number)), PART_LIMIT) for number in range(len(options))]


def question_texts(sample: Sample) -> list[Any]:
    """What all models share of one sample: references, parts of the prompt, options, and the needle's depth (0..1)."""
    depth = (sample.extra.get("ruler") or {}).get("depth", sample.extra.get("depth"))
    references = [shortened(text, PART_LIMIT) for text in sample.references[:_MOST_REFERENCES]]
    parts = [[kind, shortened(text, PART_LIMIT)] for kind, text in prompt_parts(sample)]
    return [references, parts, options_of(sample), depth if isinstance(depth, int | float) else None]


def answer_texts(sample: Sample) -> Any:
    """One model's own part: its response; for a choice, the option's index and the options' log-probabilities."""
    values = sample.extra.get("logprobs")
    if sample.finish_reason == "choose" and isinstance(values, list) and sample.response.isdecimal():
        return [int(sample.response), [round(v, 3) if isinstance(v, int | float) else None for v in values]]
    return shortened(sample.response, RESPONSE_LIMIT)
