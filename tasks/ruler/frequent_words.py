"""Frequent words: coded words whose counts follow a zeta distribution; which three are the most frequent?

The most frequent word of all is "...", which does not count. fwe, at 2048 tokens:

    Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared
    coded words. trjbri ... vspzra ... ... vgucww ... cohpsf ... ... ... ... gsayns ... ... vspzra ... gsayns ... vspzra
    vspzra vspzra ... ... ... ... vspzra ... ... ... ... vspzra ... ... gkrhit ... gsayns gsayns ... cohpsf [...]
    vspzra ... vspzra gywwje cohpsf ... gsayns ... ... ... ... gsayns ... ... vspzra
    Question: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently appeared
    words in the above coded text? Answer: According to the coded text above, the three most frequently appeared words
    are:

Answers: vspzra, cohpsf, gsayns.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.ruler.counting import Counter
from tasks.ruler.family import Draws, Family, Text, fixed_order, split_prompt, whole_tokens
from tasks.ruler.fit import TooShort
from tasks.ruler.protocol import FAMILIES

_STRINGS = FAMILIES["fwe"]
_ZETA_2 = math.pi**2 / 6


@dataclass(frozen=True)
class CodedDraft:
    """The draws of one text: the vocabulary by rank (rank 1 is the noise) and the total that scales the counts."""

    words: list[str]
    total: int
    order_seed: int | None = None  # of the order of the words; None: the fixed one


class FrequentWords(Family):
    """The task at one length. Unit: coded words in all, before rounding down. It searches in steps of its own."""

    def __init__(self, settings: Mapping[str, Any], limit: int, counter: Counter, draws: Draws) -> None:
        if settings["alpha"] != 2.0:
            raise ValueError("only alpha 2 is part of the protocol")
        self.limit, self.counter, self.draws = limit, counter, draws
        self.letters = settings["coded_wordlen"]
        self.start, self.step = limit // self.letters, limit // 32
        self.vocabulary = limit // 50
        self._head, question = _STRINGS["template"].split("{context}")
        self._prefix = _STRINGS["answer_prefix"]
        self._tail = question + self._prefix
        self._shares = [k**-2.0 for k in range(1, self.vocabulary + 1)]

    def draw(self, size: int, row: int) -> CodedDraft:
        """A vocabulary: distinct words, sorted, shuffled; the most frequent one is noise."""
        choices, vocabulary = self.draws.rng.choices, self.vocabulary
        if vocabulary < 4:
            raise TooShort(f"{self.limit} tokens make a vocabulary of {vocabulary} words, it needs 4", 200)
        letters = string.ascii_lowercase
        words = ["".join(choices(letters, k=self.letters)) for _ in range(vocabulary)]
        distinct = set(words)
        while len(distinct) < vocabulary:
            distinct.add("".join(choices(letters, k=self.letters)))
        ranked = self.draws.shuffled(sorted(distinct))
        ranked[0] = _STRINGS["noise_word"]
        return CodedDraft(ranked, size, None if self.draws.fixed else self.draws.rng.getrandbits(64))

    def with_total(self, draft: CodedDraft, total: int) -> CodedDraft:
        """The same vocabulary at another size."""
        return CodedDraft(draft.words, total, draft.order_seed)

    def _order(self, draft: CodedDraft, size: int) -> Sequence[int]:
        return self.draws.order(size) if draft.order_seed is None else fixed_order(size, draft.order_seed)

    def counts(self, total: int) -> list[int]:
        """How often each rank occurs in the text; the last ranks, which do not occur, are left out."""
        counts = []
        for share in self._shares:
            count = int(total * share / _ZETA_2)
            if count < 1:
                break
            counts.append(count)
        return counts

    def _sequence(self, draft: CodedDraft) -> list[str]:
        pool = [w for w, n in zip(draft.words, self.counts(draft.total), strict=False) for _ in range(n)]
        return [pool[i] for i in self._order(draft, len(pool))]

    def render(self, draft: CodedDraft) -> Text:
        """The prompt and the words of rank 2 to 4. No place holds the answer: the whole text does."""
        prompt = self._head + " ".join(self._sequence(draft)) + self._tail
        complete = len(self.counts(draft.total)) >= 4
        return Text(*split_prompt(prompt, self._prefix), draft.words[1:4], complete=complete)

    def smallest(self, row: int) -> int:
        """The fewest coded words of which the fourth rank occurs."""
        return 27

    def search(self, length: int) -> int:
        """One vocabulary at growing totals, up to the last that fits."""
        size = self.start
        draft = self.draw(size, 0)
        while self.tokens(self.with_total(draft, size)) < self.limit:
            size += self.step
        return size - self.step

    def accept(self, size: int, row: int) -> tuple[CodedDraft, int]:
        """One vocabulary at shrinking totals, down to the first that fits."""
        draft = self.draw(size, row)
        tokens = self.tokens(draft)
        while tokens > self.limit:
            size -= self.step
            if size < 1 or self.step < 1:
                raise TooShort(f"its smallest text takes {tokens} tokens, {self.limit} are left for it", tokens)
            draft = self.with_total(draft, size)
            tokens = self.tokens(draft)
        return draft, tokens

    def tokens(self, draft: CodedDraft) -> int:
        """Tokens of the prompt: each coded word once, and the last one where the text ends."""
        if not self.counter.piecewise:
            return whole_tokens(self.counter, self.render(draft))
        counts = self.counts(draft.total)
        if not counts:
            return self.counter.text(self._head + self._tail)
        last_place = self._order(draft, sum(counts))[-1]
        rank = 0
        while last_place >= counts[rank]:
            last_place -= counts[rank]
            rank += 1
        words = [f" {w}" for w in draft.words[: len(counts)]]
        known = self.counter.learn(words)
        bulk = sum([known[w] * n for w, n in zip(words, counts, strict=True)]) - known[words[rank]]
        return bulk + self.counter.text(self._head.rstrip(" ") + words[rank] + self._tail)
