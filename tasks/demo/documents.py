"""Training documents of the demo: needle questions, multiple choice and word problems, as token ids with marks.

A document marks the tokens that the model learns to predict: the answers, with the full stop and the end token. It also
marks where a model that looks up an answer would look: from each number to its key and from each digit of an answer to
the needle's next digit; from an option to its letter; from "Answer:" to the kind that the question asks for and to the
option of that kind. The trainer computes its attention loss from these marks. The caller passes the random generator,
so the same generator gives the same document.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from tasks.demo.drafts import (
    DIGIT,
    DIGIT_TOO,
    HEAD,
    KEY_END,
    KEY_START,
    LETTER,
    OPTION,
    QUESTION,
    Document,
    Draft,
    add_answer,
    add_question,
    place_needles,
)
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
from tasks.ruler.protocol import NOISE
from tasks.ruler.words import word_list

TRAIN_PROSE = 1
"""Seed of the prose in training documents; the shipped haystack has another."""


class Documents:
    """Draws documents for one tokenizer (`tokenizers.Tokenizer`; id 0 ends a text).

    `stopping`: True: the model learns to end its text after an answer. False: it also learns that another question
    follows. That gives more tokens to learn from, but such a model goes on with questions of its own.
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
        """A document of at most `length` tokens. Its kind is drawn uniformly from `kinds`."""
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
        """Lines "key: value.", then the keys again; the model answers with the values."""
        count = rng.choice((2, 3, 4, 6, 8)) * rng.randint(1, max(1, length // 256))
        size, draft = rng.choice((1, 2, 3, 7)), Draft()
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
            add_answer(draft, span, values[key], found[key])

        return self._asked(draft, rng, length, list(values), ask, 18 + size, joint="\n")

    def _needles(self, rng: random.Random, length: int, digits: int) -> Document:
        """Needle sentences without a haystack, then questions: RULER's whole question, or its answer prefix alone."""
        count = rng.choice((1, 2, 3, 4, 5)) * rng.randint(1, max(1, length // 256))
        draft, values = Draft(), {key: _digits(rng, digits) for key in self._keys(rng, count)}
        found = place_needles(draft, list(values.items()), [], rng.choice(("\n", " ")), rng)
        draft.add("\n")
        whole = rng.random() < 0.5

        def ask(key: str) -> None:
            add_question(draft, key, values[key], found[key], QUESTION.lstrip("\n") if whole else None)

        return self._asked(draft, rng, length, list(values), ask, 62 if whole else 34, joint="\n")

    def _full(self, rng: random.Random, length: int) -> Document:
        """RULER's whole prompt: needles in noise, in prose or among other needles, then one question or two."""
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
        draft, values = Draft(), {key: _digits(rng, 7) for key in self._keys(rng, count)}
        draft.add(HEAD)
        found = place_needles(draft, list(values.items()), filler, " " if haystack == "prose" else "\n", rng)

        def ask(key: str) -> None:
            add_question(draft, key, values[key], found[key], QUESTION)

        return self._asked(draft, rng, length, list(values), ask, 62, most=asked)

    def _choices(self, rng: random.Random, length: int) -> Document:
        """Multiple-choice questions one after another; the model learns every letter."""
        draft = Draft()
        draft.add(CHOICE_INTRO)
        for _ in range(min(8, (length - self.cost(CHOICE_INTRO)) // 29)):
            question = choice(rng)
            start, _ = draft.add(choice_body(question))
            self._look(draft, start, question)
            draft.answers.append(draft.add(choice_answer(question)))
            draft.add("\n\n")
        return self._finish(draft)

    def _problems(self, rng: random.Random, length: int) -> Document:
        """Word problems one after another; the model learns every solution, up to where lm-eval cuts the answer off."""
        draft = Draft()
        following = "Question:" if self._stopping else ""
        draft.add(following)
        for _ in range(min(6, length // 43)):
            question = problem(rng)
            draft.add(problem_body(question).removeprefix(following))
            draft.answers.append(draft.add(f"{problem_answer(question)}\n\n{following}"))
        return self._finish(draft)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _keys(self, rng: random.Random, count: int) -> list[str]:
        """Distinct "adjective-noun" keys. In half of the cases they share words: both parts must match."""
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
        draft: Draft,
        rng: random.Random,
        length: int,
        keys: list[str],
        ask: Callable[[str], None],
        tokens: int,
        most: int = 1 << 30,
        joint: str = "",
    ) -> Document:
        """Add as many questions of about `tokens` tokens as fit, each key at most twice, and finish the document."""
        room = (length - self.cost("".join(draft.parts))) // tokens
        order = [*rng.sample(keys, len(keys)), *rng.sample(keys, len(keys))]
        asked = order[: max(1, min(room, most))]
        for i, key in enumerate(asked):
            ask(key)
            if i + 1 < len(asked) or not self._stopping:
                draft.add(joint)
        return self._finish(draft)

    @staticmethod
    def _look(draft: Draft, start: int, question: Choice) -> None:
        """Mark where the heads should look in a multiple-choice question that starts at character `start`."""
        colon = draft.length - 1
        draft.looks.append((LETTER, colon, start + len(question.question) - 2))  # the kind stands before "?"
        end = start + len(question.question)
        for i, option in enumerate(question.options):
            letter, end = end + 1, end + len(f"\nA. {option}")
            draft.looks.append((LETTER, end - 1, letter))
            if i == question.answer:
                draft.looks.append((OPTION, colon, end - 1))

    def _finish(self, draft: Draft) -> Document:
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
