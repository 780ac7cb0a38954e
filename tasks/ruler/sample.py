"""One RULER sample: upstream's line, the prompt as sent, and the record of what was checked about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Validity:
    """What was checked about one sample. Token numbers are of the ids as sent, special tokens included."""

    prompt_tokens: int
    answer_tokens: int  # the answer budget
    length: int  # what prompt and answer may take together
    overshoot: int  # tokens beyond `length`; upstream does not count special tokens, so it may exceed it
    evidence_tokens: list[int]  # offset of each needle, assignment or gold document, in prompt order
    depth: float | None  # of the first evidence, as a fraction of the prompt; None where the whole text is the evidence
    evidence_present: bool  # every needle, assignment or gold document is in the prompt
    answers_elsewhere: int  # gold answers outside the evidence, where they would give the answer away
    counted: str  # "pieces", "whole", or "pieces, checked": how the tokens were counted
    document_position: int | None = None  # of the gold document, counted from 1
    documents: int | None = None


@dataclass(frozen=True, kw_only=True)
class RulerSample:
    """One sample. The fields up to `token_position_answer` are upstream's."""

    task: str
    row: int  # row number from 0: the unique id within (task, length, seed, profile)
    index: int  # upstream's: the row number, in needle tasks the character offset of the first answer
    input: str
    outputs: list[str]
    length: int  # tokens of input + answer prefix without special tokens, plus the tokens to generate
    answer_prefix: str
    token_position_answer: int | None  # needle tasks: tokens of `input` before the first answer
    profile: str = "nvidia"
    prefix_sent: bool = True
    validity: Validity

    @property
    def length_w_model_temp(self) -> int:
        """Upstream's field of that name; equal to `length`, as no chat template is counted."""
        return self.length

    @property
    def prompt(self) -> str:
        """The text that is sent to a base model."""
        return self.input + self.answer_prefix if self.prefix_sent else self.input

    def record(self) -> dict[str, Any]:
        """Upstream's fields, in upstream's order (with the prefix left out: an empty answer_prefix)."""
        line: dict[str, Any] = {
            "index": self.index,
            "input": self.input,
            "outputs": self.outputs,
            "length": self.length,
            "length_w_model_temp": self.length_w_model_temp,
            "answer_prefix": self.answer_prefix if self.prefix_sent else "",
        }
        if self.token_position_answer is not None:
            line["token_position_answer"] = self.token_position_answer
        return line

    def to_json(self) -> str:
        """Upstream's line without its newline, byte for byte."""
        return json.dumps(self.record())
