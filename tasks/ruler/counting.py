"""Counting tokens in pieces: a text is cut where tokens of the usual tokenizers never cross, and counts are cached.

The rule: a piece owns the spaces before it and the newlines after it, so cuts lie between a word and the space that
follows it, and between a newline and the next line. Each piece is encoded between two short texts that stand for its
neighbours (anchors), because some tokenizers treat the start or the end of a text specially (a dummy space in front,
look-ahead at white space, stripping). The anchors' own tokens are subtracted.

Whether a tokenizer keeps the rule is proven from its vocabulary (no token crosses a cut) or from its pre-tokenizer
(it always splits there), and checked on a probe text. Where neither holds, whole texts are encoded: the numbers
are the same, the counting is slower.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from harness.models.tokenizer import Tokenizer
from tasks.ruler.rules import alone, broken_rule

Left = Literal["start", "space", "line"]
Right = Literal["end", "space", "line"]

_PIECE = re.compile(r" *[^ \n]+(?: *\n+)?")
_BEFORE = {"start": "", "space": "a", "line": "a\n"}
_AFTER = {"end": "", "space": " a", "line": "a"}
_RUN = re.compile(r"[ -]?(?:[A-Za-z]+|[0-9]+)")
_CACHE = 400_000  # pieces in a cache (about 60 MB); a cache that has more is emptied


class Counter:
    """Counts the tokens of texts, special tokens not added.

    `why_whole`: the reason why whole texts are encoded; None where texts are counted in pieces. `left` and `right` say
    what stands before and after a text: its own start or end, a word and a space, or a line.
    """

    def __init__(self, tokenizer: Tokenizer, mode: Literal["auto", "piecewise", "whole"] = "auto") -> None:
        self.tokenizer = tokenizer
        self.why_whole: str | None = "asked for"
        if mode != "whole":
            self.why_whole = (
                None if mode == "piecewise" else broken_rule(tokenizer, Counter(tokenizer, "piecewise").text)
            )
        self._cache: dict[tuple[str, str], dict[str, int]] = {}
        self._inner: dict[str, int] = {}
        self._joints: dict[str, int] = {}

    @property
    def piecewise(self) -> bool:
        """Whether pieces are counted; else whole texts are encoded."""
        return self.why_whole is None

    def _joint(self, before: str, after: str) -> int:
        """Tokens of two neighbouring anchors, to be taken off what was measured with both."""
        joint = before + after
        if joint not in self._joints:
            self._joints[joint] = self.tokenizer.count(joint)
        return self._joints[joint]

    def measure(self, pieces: Sequence[str], left: Left, right: Right) -> list[int]:
        """Tokens of each piece between the given neighbours, uncached. All pieces must end alike (newline or not)."""
        bare = left == "space" and right == "space" and pieces and not pieces[0].endswith("\n")
        if bare and alone(self.tokenizer):
            return self.tokenizer.counts(pieces)
        before, after = _BEFORE[left], _AFTER[right]
        excess = 0
        if right != "end" and pieces:
            excess = self._joint("a\n" if pieces[0].endswith("\n") else "a", after)
        return [n - excess for n in self.tokenizer.counts([before + p + after for p in pieces])]

    def piece(self, piece: str, left: Left, right: Right) -> int:
        """Tokens of one piece between the given neighbours, cached."""
        cache = self._kept(left, right)
        tokens = cache.get(piece)
        if tokens is None:
            tokens = cache[piece] = self.measure([piece], left, right)[0]
        return tokens

    def inner(self, pieces: Iterable[str]) -> int:
        """Tokens of pieces inside a text: " word" after a word, "word" after a newline; after it a word or a line."""
        cache = self._inner
        pieces = pieces if isinstance(pieces, list) else list(pieces)
        try:
            return sum([cache[p] for p in pieces])
        except KeyError:
            self.learn(pieces)
        return sum([self._inner[p] for p in pieces])

    def learn(self, pieces: Iterable[str]) -> dict[str, int]:
        """Measure inner pieces that are not known yet, in batches; returns the cache of inner pieces."""
        if len(self._inner) > _CACHE:
            self._inner = {}
        unknown: dict[tuple[Left, Right], list[str]] = {}
        for piece in dict.fromkeys(pieces):
            if piece not in self._inner:
                key: tuple[Left, Right] = (
                    "space" if piece.startswith(" ") else "line",
                    "line" if piece.endswith("\n") else "space",
                )
                unknown.setdefault(key, []).append(piece)
        for (left, right), some in unknown.items():
            self._inner.update(zip(some, self.measure(some, left, right), strict=True))
        return self._inner

    def _kept(self, left: str, right: str) -> dict[str, int]:
        """The cache of pieces between two neighbours; emptied where it has grown too large."""
        cache = self._cache.setdefault((left, right), {})
        if len(cache) > _CACHE:
            cache.clear()
        return cache

    def runs(self, words: str) -> int:
        """Tokens of words of letters, digits and hyphens, each after a space, by their runs; needs `splits_runs`."""
        runs = _RUN.findall(words)
        cache = self._kept("run", "run")
        unknown = [run for run in set(runs) if run not in cache]
        letters = [run for run in unknown if run[0].isalpha()]
        self._learn_between("1", letters, " a", cache)
        self._learn_between("a", [run for run in unknown if not run[0].isalpha()], " a", cache)
        return sum([cache[run] for run in runs])

    def halves(self, words: Sequence[str]) -> int:
        """Tokens of " adjective-noun" words, each after and before a word, by their halves; needs `splits_runs`."""
        heads, tails = self._kept("space", "hyphen"), self._kept("hyphen", "space")
        pairs = [w.split("-", 1) for w in words]
        self._learn_between("a ", [h for h in {h for h, _ in pairs} if h not in heads], "-a", heads)
        self._learn_between("a-", [t for t in {t for _, t in pairs} if t not in tails], " a", tails)
        return sum([heads[h] + tails[t] for h, t in pairs])

    def _learn_between(self, before: str, pieces: list[str], after: str, cache: dict[str, int]) -> None:
        """Measure pieces between two anchors. The tokens of white space or hyphens in the anchors are included."""
        if pieces:
            excess = self._joint("a", after)
            counts = self.tokenizer.counts([before + p + after for p in pieces])
            cache.update(zip(pieces, [n - excess for n in counts], strict=True))

    def before(self, text: str, right: Right) -> int:
        """Tokens of a text with which a longer one starts, when a word or line follows: the next token's offset."""
        after = 1 if right == "line" else self._joint("a", " a") - self._joint("a", "")
        return self.text(text + _AFTER[right]) - after

    def texts(self, texts: Sequence[str], left: Left, right: Right) -> list[int]:
        """`text` of each of many texts; their words are measured in one batch."""
        self.learn([piece for text in texts for piece in _PIECE.findall(text)[1:-1]])
        return [self.text(text, left, right) for text in texts]

    def text(self, text: str, left: Left = "start", right: Right = "end") -> int:
        """Tokens of a text between the given neighbours, by its pieces; the whole text is encoded if it has no cut."""
        pieces = _PIECE.findall(text)
        rest = len(text) - sum(map(len, pieces))
        if not pieces or (rest and not text.endswith(" " * rest)) or text.startswith("\n"):
            return self.piece(text, left, right)
        if rest:
            pieces[-1] += " " * rest
        if len(pieces) == 1:
            return self.piece(text, left, right)
        middle = pieces[1:-1]
        first_right: Right = "space" if pieces[1].startswith(" ") else "line"
        last_left: Left = "line" if pieces[-2].endswith("\n") else "space"
        total = self.piece(pieces[0], left, first_right) + self.piece(pieces[-1], last_left, right)
        if "\n " not in text:
            return total + self.inner(middle)
        for i, piece in enumerate(middle, 1):  # a line that starts with a space: the neighbours are not the usual ones
            before: Left = "line" if pieces[i - 1].endswith("\n") else "space"
            after: Right = "space" if pieces[i + 1].startswith(" ") else "line"
            total += self.piece(piece, before, after)
        return total
