"""Text under construction for a training document, with the character spans that matter in it, and RULER's wording.

A head of attention is trained to look from one token to another (`Head`). While a document is written, positions are
counted in characters; `tasks.demo.documents` turns them into tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from tasks.ruler.protocol import FAMILIES

Span = tuple[int, int]


class Head(NamedTuple):
    """An attention head: layer and query head, from 0."""

    layer: int
    head: int


PREVIOUS = Head(0, 0)
"""Looks at the previous token, everywhere; documents need no marks for it."""

KEY_START, KEY_END, LETTER = Head(1, 0), Head(1, 2), Head(1, 1)
"""From a number to its key's first and last token; from an option's last token to its letter, and from the colon of
"Answer:" to the kind that is asked for."""

DIGIT, DIGIT_TOO, OPTION = Head(2, 0), Head(2, 2), Head(2, 1)
"""From before a digit of an answer to the needle's digit (two heads); from the colon to the right option."""


def niah_strings() -> tuple[str, str, str, str]:
    """RULER's wording for one number for one key: what precedes the text, the question, its answer prefix, a needle.

    `{query}` stands for the key asked for; a needle has `{key}` and `{value}`.
    """
    strings = FAMILIES["niah"]
    template, prefix = strings["template"], strings["answer_prefix"]
    for many, one in strings["singular"]:
        template, prefix = template.replace(many, one), prefix.replace(many, one)
    head, question = template.replace("{type_needle_v}", "number").split("{context}")
    needle = strings["needle"].replace("{type_needle_v}", "numbers")
    return head, question, prefix.replace("{type_needle_v}", "number"), needle


HEAD, QUESTION, PREFIX, NEEDLE = niah_strings()


@dataclass(frozen=True)
class Document:
    """Token ids, and what the model learns from them.

    `answer[i]`: whether the model learns to predict token i. `looks`: for each supervised head, the pairs (query
    position, key position) that its attention should connect.
    """

    ids: list[int]
    answer: list[bool]
    looks: dict[Head, list[tuple[int, int]]]


@dataclass
class Number:
    """A number in the text, its key, and the needle that it repeats (None in the needle itself)."""

    key: Span
    span: Span
    needle: Number | None


@dataclass
class Draft:
    """Text under construction: its parts, and where its numbers, its answers and its attention targets are."""

    parts: list[str] = field(default_factory=list)
    length: int = 0
    numbers: list[Number] = field(default_factory=list)
    answers: list[Span] = field(default_factory=list)
    looks: list[tuple[Head, int, int]] = field(default_factory=list)  # head, from, to: character positions

    def add(self, text: str) -> Span:
        """Append text; returns its characters."""
        self.parts.append(text)
        start, self.length = self.length, self.length + len(text)
        return start, self.length

    def number(self, key: Span, value: str, needle: Number | None = None) -> Number:
        """Append a space and the number `value`, which belongs to `key`."""
        self.numbers.append(Number(key, self.add(f" {value}"), needle))
        return self.numbers[-1]


def place_needles(
    draft: Draft, pairs: list[tuple[str, str]], filler: list[str], joint: str, rng: random.Random
) -> dict[str, Number]:
    """Add needle sentences at random places among the filler; returns each needle's number by its key."""
    before, rest = NEEDLE.split("{key}")
    between, after = rest.split(" {value}")
    places = set(rng.sample(range(len(pairs) + len(filler)), len(pairs)))
    needles, lines, found = iter(pairs), iter(filler), {}
    for i in range(len(pairs) + len(filler)):
        if i:
            draft.add(joint)
        if i not in places:
            draft.add(next(lines))
            continue
        key, value = next(needles)
        draft.add(before)
        span = draft.add(key)
        draft.add(between)
        found[key] = draft.number(span, value)
        draft.add(after)
    return found


def add_question(draft: Draft, key: str, value: str, needle: Number, question: str | None) -> None:
    """Add the question for a key and its answer. `question` None: only the sentence that the answer completes."""
    if question is not None:
        draft.add(question.replace("{query}", key))
    before, after = PREFIX.split("{query}")
    draft.add(before if question is not None else before.lstrip())
    span = draft.add(key)
    draft.add(after)
    add_answer(draft, span, value, needle)


def add_answer(draft: Draft, key: Span, value: str, needle: Number) -> None:
    """Add the number that answers for a key, and a full stop; both are learned."""
    number = draft.number(key, value, needle)
    draft.answers.append((number.span[0], draft.add(".")[1]))
