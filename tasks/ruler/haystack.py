"""The essay haystack: its first n words, their sentences, and the tokens of any run of sentences, all cached."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from weakref import WeakKeyDictionary

from harness.data.files import read_rows, text_in
from harness.data.folder import DataFolder
from harness.types import GatedevalError
from tasks.ruler.counting import Counter
from tasks.ruler.sentences import Punkt

_WORD = re.compile(" *[^ ]+")
_BLOCK = 200_000  # characters that are split into sentences at a time
_UNSURE = 600  # characters before the end of a text in which a boundary may still change


class Essay:
    """A text as RULER reads it: white space runs are one space, words are what stands between spaces.

    Beyond its end the text starts again, as upstream's does.
    """

    def __init__(self, text: str, punkt: Punkt, where: str = "essays") -> None:
        # The same words as upstream's re.sub(r"\s+", " ", text).split(" "), which has "" where the text is padded.
        self.words = [*[""] * text[:1].isspace(), *text.split(), *[""] * (text[-1:].isspace() and not text.isspace())]
        if not any(self.words):
            raise GatedevalError(f"{where}: the essay text is empty; bring PaulGrahamEssays.json with its text")
        self._lead = 1 if not self.words[0] else 0  # upstream strips the white space in front
        self._punkt = punkt
        self._once = " ".join(self.words)
        self._text = self._once
        self._letters = list(accumulate(map(len, self.words)))  # of the first i+1 words, without spaces
        self._spans: list[tuple[int, int]] = []  # sentences that no longer change
        self._split_to = self._lead  # where the splitting goes on: the start of a sentence
        self._counts: WeakKeyDictionary[Counter, list[int]] = WeakKeyDictionary()  # tokens of the first i sentences

    def _end(self, n: int) -> int:
        """Where the first n words, joined by spaces and stripped, end."""
        rounds, rest = divmod(n, len(self.words))
        end = rounds * (len(self._once) + 1) + (self._letters[rest - 1] + rest if rest else 0)
        end = max(end - 1, self._lead)
        text = self._reach(end)
        while end > self._lead and text[end - 1] == " ":
            end -= 1
        return end

    def _reach(self, end: int) -> str:
        while len(self._text) < end:
            self._text = f"{self._text} {self._once}"
        return self._text

    def text(self, n: int) -> str:
        """The first n words, joined and stripped."""
        end = self._end(n)
        return self._text[self._lead : end]

    def sentences(self, n: int) -> list[tuple[int, int]]:
        """(start, end) of each sentence of `text(n)`, for `slice`."""
        end = self._end(n)
        text = self._reach(end)
        self._extend(end)
        # Boundaries far from the end are those of the whole text; the last stretch is split as the end makes it.
        sure = bisect_left(self._spans, (end - _UNSURE, 0)) - 1
        while sure > 0 and text[self._spans[sure][0] - 1] != " ":
            sure -= 1
        sure = max(sure, 0)
        start = self._spans[sure][0] if sure else self._lead
        return self._spans[:sure] + [(start + a, start + b) for a, b in self._punkt.spans(text[start:end])]

    def _extend(self, end: int) -> None:
        """Split as far as `end`, in blocks that each start at a sentence."""
        text = self._text
        while self._split_to < end - _UNSURE and (not self._spans or self._spans[-1][1] < end - _UNSURE):
            block_end = self._split_to + _BLOCK
            if block_end >= len(text):
                text = self._reach(block_end + 1)
            block_end = text.rfind(" ", self._split_to, block_end)
            start = self._split_to
            spans = [(start + a, start + b) for a, b in self._punkt.spans(text[start:block_end])]
            keep = len(spans) - 1
            while keep > 0 and (spans[keep][0] > block_end - _UNSURE or text[spans[keep][0] - 1] != " "):
                keep -= 1
            if keep <= 0:  # no boundary in a whole block: nothing is certain, leave the rest to `sentences`
                break
            self._spans.extend(spans[:keep])
            self._split_to = spans[keep][0]

    def run_tokens(self, counter: Counter, spans: list[tuple[int, int]], first: int, last: int) -> int:
        """Tokens of the words of sentences first..last-1, each counted as a word after a word."""
        sure = self._counts.setdefault(counter, [0])
        known = min(last, bisect_right(self._spans, spans[last - 1]) if last else 0)
        for start, end in self._spans[len(sure) - 1 : known]:
            sure.append(sure[-1] + self._span_tokens(counter, start, end))
        upto = min(last, known)
        total = sure[upto] - sure[min(first, upto)]
        return total + sum(self._span_tokens(counter, a, b) for a, b in spans[max(first, upto) : last])

    def _span_tokens(self, counter: Counter, start: int, end: int) -> int:
        return counter.inner(_WORD.findall(" " + self._text[start:end]))

    def slice(self, start: int, end: int) -> str:
        """The characters of a sentence given by `sentences`, or of a run of them."""
        return self._text[start:end]


def essay_text(path: Path) -> str:
    """The text of an essay file: {"text": ...}, or JSON lines of such objects (joined by a space)."""
    what = 'expected {"text": ...} as in PaulGrahamEssays.json'
    return " ".join(text_in(row, "text", where, what) for where, row in read_rows(path))


@lru_cache(maxsize=2)
def _load(essay: Path, essay_hash: str, punkt: Path, punkt_hash: str) -> Essay:
    return Essay(essay_text(essay), Punkt(punkt), str(essay))


def load_essay(data: DataFolder) -> Essay:
    """The essay haystack of a data folder; the same object for files of the same bytes."""
    essay, punkt = data.find("essays"), data.find("punkt")
    return _load(essay.path, essay.sha256, punkt.path, punkt.sha256)
