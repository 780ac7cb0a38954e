"""Counting tokens piecewise: a text is cut where no tokenizer of the usual kinds lets a token cross, pieces are cached.

The rule: a piece owns the spaces before it and the newlines after it, so cuts lie between a word and the space that
follows it, and between a newline and the next line. Each piece is measured between two anchors that stand for its
neighbours, so that tokenizers which treat the start or the end of a text specially (a dummy space in front,
look-ahead at white space, stripping) measure it as it is inside a text.

Whether a tokenizer keeps the rule is proven from its vocabulary (no token crosses a cut) or from its pre-tokenizer
(it always splits there), and checked on a probe text. Where neither holds, whole texts are encoded: same numbers,
slower.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from tasks.ruler.protocol import FAMILIES, NOISE
from tasks.ruler.tokenizer import RulerTokenizer

Left = Literal["start", "space", "line"]
Right = Literal["end", "space", "line"]

_PIECE = re.compile(r" *[^ \n]+(?: *\n+)?")
_BEFORE = {"start": "", "space": "a", "line": "a\n"}
_AFTER = {"end": "", "space": " a", "line": "a"}
_CACHE = 400_000  # pieces kept; beyond it the cache starts anew (about 60 MB)


class Counter:
    """Counts tokens of texts, special tokens not added. `why_whole`: why whole texts are encoded; None: pieces."""

    def __init__(self, tokenizer: RulerTokenizer, mode: Literal["auto", "piecewise", "whole"] = "auto") -> None:
        self.tokenizer = tokenizer
        self.why_whole: str | None = "asked for"
        if mode != "whole":
            self.why_whole = None if mode == "piecewise" else broken_rule(tokenizer)
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
        before, after = _BEFORE[left], _AFTER[right]
        excess = 0
        if right != "end" and pieces:
            excess = self._joint("a\n" if pieces[0].endswith("\n") else "a", after)
        return [n - excess for n in self.tokenizer.counts([before + p + after for p in pieces])]

    def piece(self, piece: str, left: Left, right: Right) -> int:
        """Tokens of one piece between the given neighbours, cached."""
        cache = self._cache.setdefault((left, right), {})
        found = cache.get(piece)
        if found is None:
            if len(cache) > _CACHE:
                cache.clear()
            found = cache[piece] = self.measure([piece], left, right)[0]
        return found

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


def broken_rule(tokenizer: RulerTokenizer) -> str | None:
    """Why a tokenizer's tokens may cross a cut, in words; None if it keeps the rule. Kept with the tokenizer."""
    if "rule" not in tokenizer.facts:
        tokenizer.facts["rule"] = why = _examine(tokenizer)
        if why:
            tokenizer.notes.append(f"whole prompts are encoded (slower, same samples): {why}")
    found: str | None = tokenizer.facts["rule"]
    return found


_PROBE_CHARS = "aZ09.,:;!?)(]['\"-_/%$é—…”中"
_CROSSING = re.compile(r"\S |\n\S")


def _examine(tokenizer: RulerTokenizer) -> str | None:
    if tokenizer.fast is None:
        return f"{tokenizer.name} is not a tokenizer of the tokenizers library"
    if not _splits_at_cuts(tokenizer.fast):
        crossing = next(_crossing_tokens(tokenizer.fast), None)
        if crossing is not None:
            return f"{tokenizer.name} has tokens such as {crossing!r}, which cross from a word or line into the next"
    counter = Counter(tokenizer, "piecewise")
    for text in _PROBES:
        if counter.text(text) != tokenizer.count(text):
            return f"{tokenizer.name} counts {text[:40]!r}... differently in pieces"
    return None


def _splits_at_cuts(fast: Any) -> bool:
    """Whether the pre-tokenizer splits at every kind of cut, between all pairs of characters tried."""
    pre = fast.pre_tokenizer
    normalizer = fast.normalizer
    if pre is None:
        return False
    for x in _PROBE_CHARS:
        for glue in (" ", "\n", " \n", "\n\n"):
            text, cuts = "b", []
            for y in _PROBE_CHARS:
                text += x + glue
                cuts.append(len(text) - (1 if glue == " " else 0))
                text += y + "b"
            if normalizer is not None and normalizer.normalize_str(text) != text:
                return False  # offsets would no longer be those of the text
            starts = {start for _, (start, _) in pre.pre_tokenize_str(text)}
            # Some pre-tokenizers drop the space they split at: then the next piece starts one later.
            if not all(c in starts or (glue == " " and c + 1 in starts) for c in cuts):
                return False
    return True


def _crossing_tokens(fast: Any) -> Iterator[str]:
    """Vocabulary entries that contain a cut, in plain characters."""
    special = {t.content for t in fast.get_added_tokens_decoder().values()}
    for token in fast.get_vocab():
        if token not in special:
            plain = token.replace("\u0120", " ").replace("\u2581", " ").replace("\u010a", "\n")
            if _CROSSING.search(plain):
                yield plain


_PROBES = (
    "".join(f["template"].replace("{context}", NOISE) + f["answer_prefix"] for f in FAMILIES.values()),
    "One of the special magic numbers for contact lens-x-ray is: 8090293.\n One of it is: 12.  One of it: 9a-3. \nWhat"
    "VAR XYZ = 97498\nVAR ABC = VAR XYZ \n1. word 2. café 3. co-op 10. 11. TV ... ... qpesej ...\nQuestion: (a) 'b'",
    "Document 12:\n“Été” is 1,234.5% (e.g. U.S.)\n\nDocument 13:\nÜber-all [2] x_y/z…\n\nAnswer it — now or 中文 no",
)


def single_digits(tokenizer: RulerTokenizer) -> bool:
    """Whether each digit is a token of its own: then a number's tokens follow from its length. Kept."""
    if "digits" not in tokenizer.facts:
        fast, single = tokenizer.fast, False
        if fast is not None and len(set(tokenizer.counts([f"a {d}. a" for d in "0123456789"]))) == 1:
            special = {t.content for t in fast.get_added_tokens_decoder().values()}
            alone = re.compile(r"[\u0120\u2581 ]?[0-9]|<0x..>")
            single = all(alone.fullmatch(t) or t in special for t in fast.get_vocab() if _DIGIT.search(t))
        tokenizer.facts["digits"] = single
    return bool(tokenizer.facts["digits"])


_DIGIT = re.compile("[0-9]")
