"""Multiple-choice answers in words: "C. milk" in place of the number of an option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.types import Sample


def response_text(sample: Sample) -> str:
    """The response; of a sample that compared options, the option with its letter and words."""
    return option_text(sample, sample.response)


def reference_text(sample: Sample) -> str:
    """The references with commas between them; of a sample that compared options, the options."""
    return ", ".join(option_text(sample, reference) for reference in sample.references)


def option_text(sample: Sample, answer: str) -> str:
    """Option number `answer` in words: "C. milk" where the question lists lettered options, else the option itself.

    Anything else, and every answer of a sample that compared no options, is returned as it is.
    """
    options = sample.extra.get("options")
    if sample.finish_reason != "choose" or not isinstance(options, list) or not answer.strip().isdecimal():
        return answer
    number = int(answer)
    if number >= len(options):
        return answer
    option = str(options[number]).strip()
    words = _lettered(_question(sample.extra), option) if re.fullmatch(r"[A-Z]", option) else None
    return option if words is None else f"{option}. {words}"


def _question(extra: Mapping[str, Any]) -> str:
    """The end of the stored prompt, where the question and its options are; a short prompt is stored whole as head."""
    prompt = extra.get("prompt")
    return str(prompt.get("tail") or prompt.get("head") or "") if isinstance(prompt, Mapping) else str(prompt or "")


def _lettered(question: str, letter: str) -> str | None:
    """The words beside a letter in the last list of options: "C. milk", "C) milk" or "(C) milk"."""
    found = re.findall(rf"^[ \t]*\(?{letter}[.):][ \t]*(\S.*?)[ \t]*$", question, flags=re.MULTILINE)
    return found[-1] if found else None
