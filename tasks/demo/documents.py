"""Training documents of the demo: needle questions, multiple choice and word problems, as token ids with marks.

A document says which tokens are learned (the answers, with the full stop and the end token, since that is what a
model must produce on its own), and where a model that looks an answer up would look: from each number to its key and
from each digit of an answer to the needle's digit that comes next; from an option to its letter, from "Answer:" to the
kind that is asked for and to the option of that kind. The trainer's attention loss is made of these marks. Every
document is drawn from a random generator that is given.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from tasks.demo.prose import sentences
from tasks.demo.questions import (
    CHOICE_INTRO,
    Choice,
    choice,
    choice_answer,
    choice_body,
    problem,
    problem_answer,
    problem_body,
)
from tasks.ruler.protocol import FAMILIES, NOISE
from tasks.ruler.words import word_list

TRAIN_PROSE = 1
"""Seed of the prose in training documents; the shipped haystack has another."""

Span = tuple[int, int]


class Head(NamedTuple):
    """An attention head: layer and query head, from 0."""

    layer: int
    head: int


PREVIOUS = Head(0, 0)
"""Looks at the token before, everywhere: needs no marks."""

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
    """Token ids and what is to be learned of them.

    `answer[i]`: whether token i is to be predicted. `looks`: for a taught head, the pairs (token that looks, token that
    it should look at).
    """

    ids: list[int]
    answer: list[bool]
    looks: dict[Head, list[tuple[int, int]]]


@dataclass
class _Number:
    key: Span
    span: Span
    needle: _Number | None


@dataclass
class _Draft:
    """Text in the making, with the character spans of what matters in it."""

    parts: list[str] = field(default_factory=list)
    length: int = 0
    numbers: list[_Number] = field(default_factory=list)
    answers: list[Span] = field(default_factory=list)
    looks: list[tuple[Head, int, int]] = field(default_factory=list)  # in characters

    def add(self, text: str) -> Span:
        self.parts.append(text)
        start, self.length = self.length, self.length + len(text)
        return start, self.length

    def number(self, key: Span, value: str, needle: _Number | None = None) -> _Number:
        self.numbers.append(_Number(key, self.add(f" {value}"), needle))
        return self.numbers[-1]


class Documents:
    """Draws documents for one tokenizer (`tokenizers.Tokenizer`; id 0 ends a text).

    `stopping`: after an answer the text ends, or nothing is learned of what follows; without it, that another question
    follows is learned too, which gives more to learn but makes a model that goes on asking.
    """

    def __init__(self, tokenizer: Any, *, stopping: bool = True) -> None:
        self._tokenizer, self._stopping = tokenizer, stopping
        self._adjectives, self._nouns = word_list("adjective"), word_list("noun")
        self._prose = list(islice(sentences(TRAIN_PROSE), 20_000))
        self._costs: dict[str, int] = {}
        self._makers: Mapping[str, Callable[[random.Random, int], Document]] = {
            "list": self._list,
            "short": lambda rng, length: self._needles(rng, length, digits=rng.choice((1, 2, 3))),
            "long": lambda rng, length: self._needles(rng, length, digits=7),
            "full": self._full,
            "choice": self._choices,
            "words": self._problems,
        }

    def draw(self, rng: random.Random, length: int, kinds: Sequence[str]) -> Document:
        """A document of at most `length` tokens of one of the kinds, all equally likely."""
        while True:
            document = self._makers[rng.choice(kinds)](rng, length)
            if len(document.ids) <= length:
                return document

    def cost(self, text: str) -> int:
        """Tokens of `text`."""
        if text not in self._costs:
            if len(self._costs) > 200_000:
                self._costs.clear()
            self._costs[text] = len(self._tokenizer.encode(text).ids)
        return self._costs[text]

    # --- kinds -------------------------------------------------------------------------------------------------------

    def _list(self, rng: random.Random, length: int) -> Document:
        """Lines "key: value.", then keys again, to be answered."""
        count = rng.choice((2, 3, 4, 6, 8)) * rng.randint(1, max(1, length // 256))
        size, draft = rng.choice((1, 2, 3, 7)), _Draft()
        values = {key: _digits(rng, size) for key in self._keys(rng, count)}
        found = {}
        for key, value in values.items():
            span = draft.add(key)
            draft.add(":")
            found[key] = draft.number(span, value)
            draft.add(".\n")

        def ask(key: str) -> None:
            span = draft.add(key)
            draft.add(":")
            _answer(draft, span, values[key], found[key])

        return self._asked(draft, rng, length, list(values), ask, 18 + size, joint="\n")

    def _needles(self, rng: random.Random, length: int, digits: int) -> Document:
        """Needle sentences and nothing between them; the question in full or its answer prefix alone."""
        count = rng.choice((1, 2, 3, 4, 5)) * rng.randint(1, max(1, length // 256))
        draft, values = _Draft(), {key: _digits(rng, digits) for key in self._keys(rng, count)}
        found = _place(draft, list(values.items()), [], rng.choice(("\n", " ")), rng)
        draft.add("\n")
        whole = rng.random() < 0.5

        def ask(key: str) -> None:
            _ask(draft, key, values[key], found[key], QUESTION.lstrip("\n") if whole else None)

        return self._asked(draft, rng, length, list(values), ask, 62 if whole else 34, joint="\n")

    def _full(self, rng: random.Random, length: int) -> Document:
        """RULER's whole prompt in noise, prose or further needles, and its question (sometimes a second one)."""
        haystack, asked = rng.choice(("noise", "prose", "needles")), rng.choice((1, 1, 2))
        room = length - self.cost(HEAD) - 62 * asked - 4
        most = max(1, room // 27)
        count = rng.randint(1, most) if haystack == "needles" else min(rng.choice((1, 2, 4, 4)), most)
        room -= 27 * count
        filler: list[str] = []
        if haystack == "noise":
            filler = [NOISE] * max(0, room // (self.cost(NOISE) + 1))
        elif haystack == "prose":
            at = rng.randrange(len(self._prose))
            while room > (tokens := self.cost(self._prose[at % len(self._prose)]) + 1):
                filler.append(self._prose[at % len(self._prose)])
                room, at = room - tokens, at + 1
        draft, values = _Draft(), {key: _digits(rng, 7) for key in self._keys(rng, count)}
        draft.add(HEAD)
        found = _place(draft, list(values.items()), filler, " " if haystack == "prose" else "\n", rng)

        def ask(key: str) -> None:
            _ask(draft, key, values[key], found[key], QUESTION)

        return self._asked(draft, rng, length, list(values), ask, 62, most=asked)

    def _choices(self, rng: random.Random, length: int) -> Document:
        """Multiple-choice questions one after another, every letter to be answered."""
        draft = _Draft()
        draft.add(CHOICE_INTRO)
        for _ in range(min(8, (length - self.cost(CHOICE_INTRO)) // 29)):
            question = choice(rng)
            start, _ = draft.add(choice_body(question))
            self._look(draft, start, question)
            draft.answers.append(draft.add(choice_answer(question)))
            draft.add("\n\n")
        return self._finish(draft)

    def _problems(self, rng: random.Random, length: int) -> Document:
        """Word problems one after another, every solution to be answered, up to where lm-eval stops reading."""
        draft = _Draft()
        following = "Question:" if self._stopping else ""
        draft.add(following)
        for _ in range(min(6, length // 43)):
            question = problem(rng)
            draft.add(problem_body(question).removeprefix(following))
            draft.answers.append(draft.add(f"{problem_answer(question)}\n\n{following}"))
        return self._finish(draft)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _keys(self, rng: random.Random, count: int) -> list[str]:
        """Distinct "adjective-noun" keys; half of the time they share adjectives and nouns, so that both must match."""
        adjectives: Sequence[str] = self._adjectives
        nouns: Sequence[str] = self._nouns
        if count > 1 and rng.random() < 0.5:
            few = max(2, int(count**0.5) + 1)
            adjectives, nouns = rng.sample(adjectives, few), rng.sample(nouns, few)
        found: dict[str, None] = {}
        for _ in range(50 * count):
            found[f"{rng.choice(adjectives)}-{rng.choice(nouns)}"] = None
            if len(found) == count:
                return list(found)
        return self._keys(rng, count)

    def _asked(
        self,
        draft: _Draft,
        rng: random.Random,
        length: int,
        keys: list[str],
        ask: Callable[[str], None],
        tokens: int,
        most: int = 1 << 30,
        joint: str = "",
    ) -> Document:
        """The document with as many questions of about `tokens` each as there is room for, each key at most twice."""
        room = (length - self.cost("".join(draft.parts))) // tokens
        order = [*rng.sample(keys, len(keys)), *rng.sample(keys, len(keys))]
        asked = order[: max(1, min(room, most))]
        for i, key in enumerate(asked):
            ask(key)
            if i + 1 < len(asked) or not self._stopping:
                draft.add(joint)
        return self._finish(draft)

    @staticmethod
    def _look(draft: _Draft, start: int, question: Choice) -> None:
        """The marks of a multiple-choice question whose text starts at character `start`."""
        colon = draft.length - 1
        draft.looks.append((LETTER, colon, start + len(question.question) - 2))  # the kind stands before "?"
        end = start + len(question.question)
        for i, option in enumerate(question.options):
            letter, end = end + 1, end + len(f"\nA. {option}")
            draft.looks.append((LETTER, end - 1, letter))
            if i == question.answer:
                draft.looks.append((OPTION, colon, end - 1))

    def _finish(self, draft: _Draft) -> Document:
        encoding = self._tokenizer.encode("".join(draft.parts))
        starts = [start for start, _ in encoding.offsets]

        def token(character: int) -> int:
            return bisect_right(starts, character) - 1

        ids, looks = [*encoding.ids, 0], defaultdict(list)
        answer = [False] * len(ids)
        for head, start, end in draft.looks:
            looks[head].append((token(start), token(end)))
        for number in draft.numbers:
            first, last = token(number.span[0]), token(number.span[1] - 1)
            for head, key in ((KEY_START, token(number.key[0])), (KEY_END, token(number.key[1] - 1))):
                looks[head] += [(at, key) for at in range(first, last + 1)]
            if number.needle is not None:
                needle = token(number.needle.span[0])
                for head in (DIGIT, DIGIT_TOO):
                    looks[head] += [(first + i, needle + i + 1) for i in range(last - first)]
        for start, end in draft.answers:
            last = token(end - 1)
            if not self._stopping or end == draft.length:  # what follows: the next line, or the end
                last += 1
            for at in range(token(start), last + 1):
                answer[at] = True
        return Document(ids, answer, dict(looks))


def _digits(rng: random.Random, size: int) -> str:
    return str(rng.randint(10 ** (size - 1), 10**size - 1))


def _place(
    draft: _Draft, pairs: list[tuple[str, str]], filler: list[str], joint: str, rng: random.Random
) -> dict[str, _Number]:
    """Needle sentences at drawn places of the filler; where each one's number is, by its key."""
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


def _ask(draft: _Draft, key: str, value: str, needle: _Number, question: str | None) -> None:
    """The question for a key (None: only the sentence that is to be completed) and its answer."""
    if question is not None:
        draft.add(question.replace("{query}", key))
    before, after = PREFIX.split("{query}")
    draft.add(before if question is not None else before.lstrip())
    span = draft.add(key)
    draft.add(after)
    _answer(draft, span, value, needle)


def _answer(draft: _Draft, key: Span, value: str, needle: _Number) -> None:
    number = draft.number(key, value, needle)
    draft.answers.append((number.span[0], draft.add(".")[1]))
