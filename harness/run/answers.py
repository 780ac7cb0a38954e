"""Which part of a response is scored, with and without thinking."""

from __future__ import annotations

from harness.engine.requests import Completion
from harness.types import GatedevalError


def answer_text(answer: Completion, thinking: bool, what: object) -> str:
    """The part of a response that is scored. `what`: names the sample in the error.

    Thinking on: the text after the last `</think>`; empty where the response ends before it.

    Raises:
        GatedevalError: a response with `<think>` in a run that has thinking off: its score would not be the model's.
    """
    text = answer.text
    if thinking:
        return text.rpartition("</think>")[2].lstrip() if "</think>" in text else ""
    if "<think>" in text:
        raise GatedevalError(f"{what}: the response holds <think> although thinking is off; check the chat template")
    return text
