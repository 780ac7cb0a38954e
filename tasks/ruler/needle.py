"""Needle in a haystack: sentences that give a number, word or uuid for a key, among sentences that do not matter.

The haystack is one sentence repeated (noise), Paul Graham's essays, or other needles. niah_multivalue, at 2048 tokens:

    Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about the
    numbers afterwards.
    July 2010What hard liquor, cigarettes, heroin, and crack have in common is that they're all more concentrated [...]
    But it's the same process at work. One of the special magic numbers for screeching-drag is: 5476583. [1]No one
    doubts this process is accelerating, [...] One of the special magic numbers for screeching-drag is: 2921859. And
    it's clear why: [...] One of the special magic numbers for screeching-drag is: 6707197. [...] customs changed. One
    of the special magic numbers for screeching-drag is: 1192619. In the last 20 years, smoking has been [...]
    But if I'm right about the acceleration of addictiveness, then this kind
    What are all the special magic numbers for screeching-drag mentioned in the provided text? The special magic numbers
    for screeching-drag mentioned in the provided text are

Answers: 1192619, 2921859, 5476583, 6707197.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.ruler.counting import Counter
from tasks.ruler.family import Draws, Family, Text, split_prompt, whole_tokens
from tasks.ruler.fit import Rejected
from tasks.ruler.haystack import Essay
from tasks.ruler.protocol import FAMILIES, NOISE
from tasks.ruler.rules import single_digits, splits_runs
from tasks.ruler.words import key_words

_STRINGS = FAMILIES["niah"]
DEPTHS = [round(i * 100 / 39) for i in range(40)]
"""Where needles may stand in an essay, in percent of its sentences."""


@dataclass(frozen=True)
class NeedleDraft:
    """The draws of one text. `needles` are (key, value) in the order in which they are placed."""

    size: int
    needles: list[tuple[str, str]]
    lines: list[tuple[str, str]]  # the other needles of a needle haystack
    places: list[int]  # depths in percent, ascending (essay); line numbers, descending (noise, needle)
    queries: list[str]
    answers: list[str]


class Niah(Family):
    """One needle task at one length. Units: essay words, noise lines, or needles."""

    fewer: ClassVar[Mapping[int, int]] = {50: 5, 5: 3}  # at very short lengths, fewer essay words or lines are accepted

    def __init__(
        self, settings: Mapping[str, Any], length: int, limit: int, counter: Counter, draws: Draws, essay: Essay | None
    ) -> None:
        self.kind: str = settings["haystack"]
        self.keys, self.values = settings["keys"], settings["values"]
        self.num_q, self.num_v = settings["num_q"], settings["num_v"]
        self.num_k = max(settings["num_k"], self.num_q)
        self.limit, self.counter, self.draws, self.essay = limit, counter, draws, essay
        self.step = 500 if self.kind == "essay" else 5 if length < 4096 else 25
        template, prefix, values = _STRINGS["template"], _STRINGS["answer_prefix"], self.values
        if self.num_q * self.num_v == 1:  # one answer: the wording becomes singular, the needles keep theirs
            for many, one in _STRINGS["singular"]:
                template, prefix = template.replace(many, one), prefix.replace(many, one)
            values = values[:-1]
        self._head, question = template.replace("{type_needle_v}", values).split("{context}")
        self._tail = question + prefix.replace("{type_needle_v}", values)
        self._prefix = prefix.replace("{type_needle_v}", values)
        self._before_key, rest = _STRINGS["needle"].replace("{type_needle_v}", self.values).split("{key}")
        self._before_value, self._end = rest.split("{value}")

    def _one(self, kind: str) -> str:
        rng = self.draws.rng
        if kind == "numbers":
            return str(rng.randint(1000000, 9999999))
        if kind == "words":
            return rng.choice(key_words())
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))

    def draw(self, size: int, row: int) -> NeedleDraft:
        """Keys and values, the order of the needles, the haystack, the places, the queries: in upstream's order."""
        rng = self.draws.rng
        keys, values = [], []
        for _ in range(self.num_k):
            keys.append(self._one(self.keys))
            values.append([self._one(self.values) for _ in range(self.num_v)])
        needles = self.draws.shuffled([(k, v) for k, vs in zip(keys, values, strict=True) for v in vs])
        lines: list[tuple[str, str]] = []
        if self.kind == "essay":
            if len(needles) > len(DEPTHS):
                raise Rejected(f"{len(needles)} needles, but there are {len(DEPTHS)} depths", "always")
            places = sorted(rng.sample(DEPTHS, len(needles)))
        else:
            if self.kind == "needle":
                lines = [(self._one(self.keys), self._one(self.values)) for _ in range(size)]
            if size < len(needles):
                raise Rejected(f"{size} lines for {len(needles)} needles")
            places = sorted(rng.sample(range(size), len(needles)), reverse=True)
        queried = rng.sample(range(self.num_k), self.num_q)
        return NeedleDraft(
            size, needles, lines, places, [keys[i] for i in queried], [v for i in queried for v in values[i]]
        )

    def smallest(self, row: int) -> int:
        """Room for the needles: words of an essay, or lines."""
        return 50 if self.kind == "essay" else 5

    def sentence(self, key: str, value: str) -> str:
        """A needle as it stands in the text."""
        return f"{self._before_key}{key}{self._before_value}{value}{self._end}"

    def _closing(self, draft: NeedleDraft) -> str:
        queries = draft.queries
        query = ", ".join(queries[:-1]) + ", and " + queries[-1] if len(queries) > 1 else queries[0]
        return self._tail.replace("{query}", query)

    def _essay_runs(self, draft: NeedleDraft) -> tuple[list[tuple[int, int]], list[int]]:
        """The sentences of the haystack and the sentence numbers between which its needles stand."""
        assert self.essay is not None
        spans = self.essay.sentences(draft.size)
        return spans, [0, *(int(len(spans) * (depth / 100)) for depth in draft.places), len(spans)]

    def _placed_lines(self, draft: NeedleDraft) -> list[tuple[int, str]]:
        """(lines of haystack before it, needle) from the top: inserting from the bottom up shifts no later place."""
        placed = [(at, self.sentence(*n)) for at, n in zip(draft.places, draft.needles, strict=True)]
        return placed[::-1]

    def _pieces(self, draft: NeedleDraft) -> list[str]:
        """The context: haystack and needles in turn."""
        if self.kind == "essay":
            assert self.essay is not None
            spans, cuts = self._essay_runs(draft)
            out: list[str] = []
            for i, (key, value) in enumerate([*draft.needles, ("", "")]):
                run = spans[cuts[i] : cuts[i + 1]]
                out.append(" ".join([self.essay.slice(a, b) for a, b in run]))
                if i < len(draft.needles):
                    out.append(self.sentence(key, value))
            return out
        if self.kind == "noise":
            lines = [NOISE] * draft.size
        else:
            b, m, e = self._before_key, self._before_value, self._end
            lines = [f"{b}{key}{m}{value}{e}" for key, value in draft.lines]
        for at, (key, value) in zip(draft.places, draft.needles, strict=True):
            lines.insert(at, self.sentence(key, value))
        return lines

    def render(self, draft: NeedleDraft) -> Text:
        """The prompt, the answers, and where the needles that hold them stand."""
        context = (" " if self.kind == "essay" else "\n").join(self._pieces(draft))
        whole, prefix = split_prompt(self._head + context + self._closing(draft), self._prefix)
        evidence = []
        for key, value in draft.needles:
            if key in draft.queries and value in draft.answers:
                start = whole.find(self.sentence(key, value))
                evidence.append((start, start + len(self.sentence(key, value))))
        evidence.sort()
        elsewhere = sum(max(whole.count(value) - 1, 0) for value in set(draft.answers))
        return Text(whole, prefix, list(draft.answers), evidence, complete=evidence[0][0] >= 0, elsewhere=elsewhere)

    def offsets(self, draft: NeedleDraft, text: Text) -> list[int]:
        """Tokens before each needle that holds an answer."""
        order = draft.needles if self.kind == "essay" else draft.needles[::-1]
        gold = [i for i, (key, value) in enumerate(order) if key in draft.queries and value in draft.answers]
        if self.kind == "essay":
            return [self._essay_tokens(draft, i, whole_needle=True) for i in gold]
        return [self._lines_before(draft, i, whole_needle=True) for i in gold]

    def tokens(self, draft: NeedleDraft) -> int:
        """Tokens of the prompt: the haystack in bulk, the rest as a text from which the haystack is left out."""
        if not self.counter.piecewise:
            return whole_tokens(self.counter, self.render(draft))
        if self.kind == "essay":
            return self._essay_tokens(draft)
        rest = "\n".join([self.sentence(*n) for n in reversed(draft.needles)])
        bulk = self._line_tokens(draft, len(draft.lines) if self.kind == "needle" else draft.size)
        return bulk + self.counter.text(self._head + rest + self._closing(draft))

    def _line_tokens(self, draft: NeedleDraft, lines: int) -> int:
        """Tokens of the first `lines` lines of the haystack, newline included."""
        if self.kind == "noise":
            return lines * self.counter.text(NOISE + "\n", "line", "line")
        b, m, e = self._before_key, self._before_value, self._end
        fixed = self.counter.text(b.rstrip(" "), "line", "space") + self.counter.text(" is:", "space", "space")
        assert m == " is: "
        some = draft.lines[:lines]
        return (
            lines * fixed
            + self._many(self.keys, [k for k, _ in some], "")
            + self._many(self.values, [v for _, v in some], f"{e}\n")
        )

    def _many(self, kind: str, words: list[str], end: str) -> int:
        """Tokens of " word" + `end` for keys or values of one kind, which are too many and too new to be cached."""
        counter = self.counter
        if kind == "numbers" and words and single_digits(counter.tokenizer):
            return len(words) * counter.piece(f" {words[0]}{end}", "space", "line" if end else "space")
        if kind != "words" and splits_runs(counter.tokenizer):
            last = counter.text(f" a{end}", "space", "line") - counter.text(" a", "space", "space") if end else 0
            return counter.runs(" " + " ".join(words)) + len(words) * last
        if kind == "words" and splits_runs(counter.tokenizer):
            return counter.halves(words)
        return sum(counter.measure([f" {w}{end}" for w in words], "space", "line" if end else "space"))

    def _essay_tokens(self, draft: NeedleDraft, stop: int | None = None, *, whole_needle: bool = False) -> int:
        """Tokens of an essay prompt; with `stop`, of what stands before that needle's value (or the whole needle)."""
        assert self.essay is not None
        spans, cuts = self._essay_runs(draft)
        out, bulk = [], 0
        for i, (key, value) in enumerate([*draft.needles, ("", "")]):
            run, left_out = self._shorten(spans, cuts[i], cuts[i + 1])
            out.append(run)
            bulk += left_out
            if i == len(draft.needles):
                break
            if i == stop and whole_needle:
                return bulk + self.counter.before(
                    (self._head + " ".join(out)).rstrip(" "), "space" if any(out) else "line"
                )
            if i == stop:
                return bulk + self.counter.text(
                    self._head + " ".join(out) + f" {self._before_key}{key}{self._before_value}"
                )
            out.append(self.sentence(key, value))
        return bulk + self.counter.text(self._head + " ".join(out) + self._closing(draft))

    def _shorten(self, spans: list[tuple[int, int]], first: int, last: int) -> tuple[str, int]:
        """A run of sentences as (its first and last word, tokens of the words between them)."""
        if first == last:
            return "", 0
        assert self.essay is not None
        start_words = self.essay.slice(*spans[first]).split(" ", 2)
        end_words = self.essay.slice(*spans[last - 1]).rsplit(" ", 2)
        if last - first == 1 and len(start_words) < 3:
            return self.essay.slice(*spans[first]), 0
        head, tail = start_words[0], end_words[-1]
        total = self.essay.run_tokens(self.counter, spans, first, last)
        return f"{head} {tail}", total - self.counter.inner([f" {head}", f" {tail}"])

    def first_answer(self, draft: NeedleDraft, text: Text) -> tuple[int, int]:
        """(characters, tokens) of `input` before the first answer, as upstream counts: that part encoded alone."""
        at = text.input.find(text.outputs[0])
        return at, self._tokens_before(draft, text, at)

    def _tokens_before(self, draft: NeedleDraft, text: Text, at: int) -> int:
        if self.counter.piecewise:
            order = draft.needles if self.kind == "essay" else draft.needles[::-1]
            index = next(i for i, (_, value) in enumerate(order) if value == text.outputs[0])
            start = text.input.find(self.sentence(*order[index]))
            if start + len(self._before_key + order[index][0] + self._before_value) == at:
                if self.kind == "essay":
                    return self._essay_tokens(draft, index)
                return self._lines_before(draft, index)
        return self.counter.tokenizer.count(text.input[:at])

    def _lines_before(self, draft: NeedleDraft, index: int, *, whole_needle: bool = False) -> int:
        placed = self._placed_lines(draft)
        rest = "".join(f"{needle}\n" for _, needle in placed[:index])
        key = draft.needles[::-1][index][0]
        bulk = self._line_tokens(draft, placed[index][0])
        if whole_needle:
            return bulk + self.counter.before(self._head + rest, "line")
        return bulk + self.counter.text(f"{self._head}{rest}{self._before_key}{key}{self._before_value}")
