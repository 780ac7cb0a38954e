"""Sentence boundaries as NLTK 3.10's `sent_tokenize` finds them (Kiss & Strunk 2006, "Punkt"), English.

RULER's essay tasks put needles between sentences, so identical prompts need NLTK's sentences. NLTK itself takes more
than a second to import, would split the text again for every size that is tried, and changes its rules between versions
(3.10 counts curly quotes as closing punctuation). This module has only the decision procedure, with the same punkt_tab
parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness.types import GatedevalError

_CLOSERS = "\u2018\u2019\u201c\u201d\xab\xbb"
_NOT_IN_WORDS = rf'[)";}}\]*:@\'({{\[{_CLOSERS}?!]'
_RUNS = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)"  # dashes and ellipses are words of their own
_CANDIDATE = re.compile(rf"[.?!](?=(?P<after>{_NOT_IN_WORDS}|\s+(?P<next>\S+)))")
_CLOSING = re.compile(rf'["\')\]}}{_CLOSERS}]+?(?:\s+|(?=--)|$)', re.MULTILINE)
_WORD = re.compile(
    rf"({_RUNS}|(?=[^(\"`{{\[:;&#*@)}}\]\-,])\S+?(?=\s|$|{_NOT_IN_WORDS}|{_RUNS}|,(?=$|\s|{_NOT_IN_WORDS}|{_RUNS}))|\S)"
)
_NUMBER = re.compile(r"^-?[.,]?\d[\d,.-]*\.?$")
_INITIAL = re.compile(r"[^\W\d]\.$")
_ELLIPSIS = re.compile(r"\.\.+$")
_WHITESPACE = " \t\n\r\x0b\x0c"  # what the rule for the word before a candidate takes as white space

# Flags of ortho_context.tab: seen upper case at the start, inside, unknown; then the same for lower case.
_BEGIN_UPPER, _MID_UPPER, _UNKNOWN_UPPER, _BEGIN_LOWER, _MID_LOWER, _UNKNOWN_LOWER = (1 << n for n in range(1, 7))
_UPPER = _BEGIN_UPPER | _MID_UPPER | _UNKNOWN_UPPER
_LOWER = _BEGIN_LOWER | _MID_LOWER | _UNKNOWN_LOWER


@dataclass
class _Word:
    text: str
    kind: str  # lower case, numbers folded
    broke: bool = False  # ends a sentence
    abbreviation: bool = False
    ellipsis: bool = False

    @property
    def bare(self) -> str:
        return self.kind[:-1] if len(self.kind) > 1 and self.kind.endswith(".") else self.kind

    @property
    def bare_if_broke(self) -> str:
        return self.bare if self.broke else self.kind


class Punkt:
    """The English sentence splitter over a punkt_tab folder."""

    def __init__(self, folder: Path) -> None:
        try:
            lines = {n: (folder / n).read_text(encoding="utf-8").split("\n") for n in _FILES}
        except OSError as error:
            raise GatedevalError(
                f"{folder}: not a punkt_tab folder ({error}); bring NLTK's punkt_tab, English"
            ) from error
        abbreviations, collocations, starters, ortho = (lines[n] for n in _FILES)
        self._abbreviations = {line.strip() for line in abbreviations if line.strip()}
        self._collocations = {tuple(line.strip().split("\t")) for line in collocations if line.strip()}
        self._starters = {line.strip() for line in starters if line.strip()}
        self._ortho = {k: int(v) for k, v in (line.strip().split("\t") for line in ortho if line.strip())}

    def spans(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each sentence; white space between sentences belongs to none."""
        cuts, start = [], 0
        for candidate, context in self._candidates(text):
            if self._has_break(context):
                cuts.append((start, candidate.end()))
                start = candidate.start("next") if candidate["next"] else candidate.end()
        cuts.append((start, len(text.rstrip())))
        return _close(text, cuts)

    def _candidates(self, text: str) -> list[tuple[re.Match[str], str]]:
        """Marks that may end a sentence, each with its word before and what follows; of overlapping ones, the last."""
        candidates: list[tuple[re.Match[str], str]] = []
        before_start = before_stop = 0
        pending: re.Match[str] | None = None
        for mark in _CANDIDATE.finditer(text):
            between = text[before_stop : mark.start()]
            space = max((between.rfind(c) for c in _WHITESPACE), default=-1)
            # A space at the very start of the stretch counts as none: NLTK's rule has it so.
            word_start = before_stop + space + 1 if space > 0 else before_start
            if pending is not None and before_stop <= word_start:
                candidates.append((pending, text[before_start:before_stop] + pending[0] + pending["after"]))
            pending, before_start, before_stop = mark, word_start, mark.start()
        if pending is not None:
            candidates.append((pending, text[before_start:before_stop] + pending[0] + pending["after"]))
        return candidates

    def _has_break(self, context: str) -> bool:
        words = [self._first_pass(w) for line in context.split("\n") if line.strip() for w in _WORD.findall(line)]
        for word, following in pairwise(words):
            self._second_pass(word, following)
        return any(w.broke for w in words[:-1])

    def _first_pass(self, text: str) -> _Word:
        word = _Word(text, _NUMBER.sub("##number##", text.lower()))
        if text in (".", "?", "!"):
            word.broke = True
        elif _ELLIPSIS.match(text):
            word.ellipsis = True
        elif text.endswith(".") and not text.endswith(".."):
            stem = text[:-1].lower()
            if stem in self._abbreviations or stem.rsplit("-", 1)[-1] in self._abbreviations:
                word.abbreviation = True
            else:
                word.broke = True
        return word

    def _second_pass(self, word: _Word, following: _Word) -> None:
        if not word.text.endswith("."):
            return
        initial = bool(_INITIAL.match(word.text))
        follower = following.bare_if_broke
        if (word.bare, follower) in self._collocations:
            word.broke, word.abbreviation = False, True
            return
        upper = following.text[0].isupper()
        starts = self._starts_sentence(following)
        if (
            (word.abbreviation or word.ellipsis)
            and not initial
            and (starts is True or (upper and follower in self._starters))
        ):
            word.broke = True
            return
        if initial or word.bare == "##number##":
            always_upper = initial and upper and not self._ortho.get(follower, 0) & _LOWER
            if starts is False or (starts is None and always_upper):
                word.broke, word.abbreviation = False, True

    def _starts_sentence(self, word: _Word) -> bool | None:
        """Whether a word's known spellings say that it starts a sentence; None where they leave it open."""
        if word.text in ";:,.!?":
            return False
        seen = self._ortho.get(word.bare_if_broke, 0)
        if word.text[0].isupper() and seen & _LOWER and not seen & _MID_UPPER:
            return True
        if word.text[0].islower() and (seen & _UPPER or not seen & _BEGIN_LOWER):
            return False
        return None


_FILES = ("abbrev_types.txt", "collocations.tab", "sent_starters.txt", "ortho_context.tab")


def _close(text: str, cuts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Give closing quotes and brackets at the start of a sentence to the sentence before it."""
    spans, moved = [], 0
    for (start, end), following in zip(cuts, [*cuts[1:], None], strict=True):
        start += moved
        closing = _CLOSING.match(text[following[0] : following[1]]) if following else None
        if closing and following:
            spans.append((start, following[0] + len(closing[0].rstrip())))
            moved = closing.end()
        else:
            moved = 0
            if text[start:end]:
                spans.append((start, end))
    return spans
