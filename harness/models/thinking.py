"""Thoughts in answers: the tags around them, how many tokens they may take, and which part of a response is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TAGS = ("<think>", "</think>")
"""What opens and closes a thought, unless the config says otherwise (`thinking_tags`)."""


@dataclass(frozen=True)
class Thinking:
    """Whether a model may think before it answers.

    `tokens`: how many a thought may take, beside the answer's own; None: nobody said. `tags`: (opening, closing).
    """

    allowed: bool = False
    tokens: int | None = None
    tags: tuple[str, str] = TAGS

    def opened_by(self, prompt: str) -> bool:
        """Whether a rendered prompt ends inside a thought: the response then begins in it."""
        opening, closing = self.tags
        return prompt.rfind(opening) > prompt.rfind(closing)


def after_thought(text: str, tags: tuple[str, str], opened: bool) -> str:
    """The part of a response that is scored, when the model may think.

    That is the text after the last closing tag; nothing where a thought was opened and never closed; the whole text
    where none was opened. `text`: with its tags written out. `opened`: the prompt had opened a thought already.
    """
    opening, closing = tags
    if closing in text:
        return text.rpartition(closing)[2].lstrip()
    return "" if opened or opening in text else text


def cut(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first of the stop strings."""
    ends = [at for string in stop if (at := text.find(string)) >= 0]
    return text[: min(ends)] if ends else text
