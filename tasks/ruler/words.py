"""The word lists of wonderwords 3.0.1, and RULER's list of "adjective-noun" keys without building it.

Upstream builds and sorts all 6.2 million combinations (seconds, and most of a gigabyte, in every process). Their
sorted order follows from the sorted order of the two lists, save where one adjective starts another ("well",
"well-made"): such groups are small and are sorted outright.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from harness.types import GatedevalError

VERSION = "3.0.1"
"""Another version of wonderwords has other words, hence other keys: another benchmark."""


@cache
def word_list(kind: str) -> tuple[str, ...]:
    """The nouns, adjectives or verbs (`kind`: noun, adjective, verb) in the package's order, repeats included."""
    try:
        installed = version("wonderwords")
    except PackageNotFoundError:
        installed = "none"
    if installed != VERSION:
        raise GatedevalError(
            f"RULER's words are those of wonderwords {VERSION}, not of {installed}: pip install wonderwords=={VERSION}"
        )
    # Read the package's text files without importing it: the import builds indices that are not needed here.
    text = (files("wonderwords") / "assets" / f"{kind}list.txt").read_text(encoding="utf-8")
    return tuple(line.rstrip() for line in text.splitlines())


@cache
def all_words() -> tuple[str, ...]:
    """The distinct nouns, adjectives and verbs, sorted: 8,166 words."""
    return tuple(sorted({w for kind in ("noun", "adjective", "verb") for w in word_list(kind)}))


class KeyWords(Sequence[str]):
    """The sorted distinct "adjective-noun" combinations as a read-only sequence, indexed arithmetically."""

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]) -> None:
        self._nouns = sorted(set(nouns))
        heads = sorted({f"{a}-" for a in adjectives})
        groups: list[list[str]] = []
        for head in heads:  # a head that continues an earlier one sorts among its combinations
            if groups and head.startswith(groups[-1][0]):
                groups[-1].append(head)
            else:
                groups.append([head])
        self._groups: list[tuple[str, list[str]]] = []  # (head, []) or ("", sorted combinations of several heads)
        self._starts: list[int] = []
        self._size = 0
        for group in groups:
            mixed = sorted({h + n for h in group for n in self._nouns}) if len(group) > 1 else []
            self._groups.append(("" if mixed else group[0], mixed))
            self._starts.append(self._size)
            self._size += len(mixed) or len(self._nouns)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        if not 0 <= index < self._size:
            raise IndexError(index)
        group = bisect_right(self._starts, index) - 1
        head, mixed = self._groups[group]
        offset = index - self._starts[group]
        return mixed[offset] if mixed else head + self._nouns[offset]


@cache
def key_words() -> KeyWords:
    """RULER's list of word keys."""
    return KeyWords(word_list("adjective"), word_list("noun"))
