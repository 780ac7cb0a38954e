"""What the five families have in common: a draft (all random draws of one text), its tokens, and its rendering."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from tasks.ruler.counting import Counter
from tasks.ruler.fit import accepted, find_size

T = TypeVar("T")


@dataclass(frozen=True)
class Text:
    """A rendered draft. Ranges are (start, end) in characters of `input`."""

    input: str
    answer_prefix: str
    outputs: list[str]
    evidence: list[tuple[int, int]] = field(default_factory=list)  # what holds the answer
    complete: bool = True  # all that the answer rests on is in `input`
    elsewhere: int = 0  # answers that stand outside the evidence, where that gives them away
    place: tuple[int, int] | None = None  # (position from 1, number of documents) of the gold document

    @property
    def prompt(self) -> str:
        """Input and answer prefix as one string."""
        return self.input + self.answer_prefix


class Family(ABC):
    """One task at one length. Sizes are in the family's own unit: words, lines, needles or documents."""

    step: int  # units by which the nvidia profile grows and shrinks a text
    limit: int  # tokens that a prompt may take, special tokens not counted
    counter: Counter
    fewer: ClassVar[Mapping[int, int]] = {}  # fair profile: a smallest size -> the one to try where it does not fit

    @abstractmethod
    def draw(self, size: int, row: int) -> Any:
        """All draws of one text of `size` units for row `row`. Raises Rejected where that is impossible."""

    @abstractmethod
    def render(self, draft: Any) -> Text:
        """The text of a draft; draws nothing."""

    @abstractmethod
    def tokens(self, draft: Any) -> int:
        """Tokens of the rendered prompt (input and answer prefix as one string), special tokens not added."""

    @abstractmethod
    def smallest(self, row: int) -> int:
        """The fewest units with which the fair profile makes row `row`."""

    def offsets(self, draft: Any, text: Text) -> list[int]:
        """Tokens before each evidence of `text`, counted in pieces; none where the whole text is the evidence."""
        return []

    def search(self, length: int) -> int:
        """The size with which the nvidia profile starts every row of `length` tokens: upstream's search."""
        return find_size(lambda size: self.draw(size, 0), self.tokens, length=length, limit=self.limit, start=self.step)

    def accept(self, size: int, row: int) -> tuple[Any, int]:
        """The first draft of a row that fits, from `size` downwards, and its tokens. Raises TooShort if none does."""
        return accepted(self.draw, self.tokens, limit=self.limit, size=size, step=self.step, row=row)

    def first_answer(self, draft: Any, text: Text) -> tuple[int, int] | None:
        """(characters, tokens) of `input` before the first answer; needle tasks only."""
        return None


@dataclass
class Draws:
    """The random draws of a profile: upstream's one stream with fixed shuffles, or a stream of its own per sample."""

    seed: int
    fixed: bool = True  # fixed shuffles: the same permutation for every list of the same length
    rng: random.Random = field(init=False)
    _numpy: Any = None  # a numpy.random.RandomState, for the one draw that upstream takes from numpy

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, key: str | None = None) -> None:
        """Start the stream again from the seed, or from the seed and a key."""
        self.rng = random.Random(self.seed if key is None else f"{self.seed}/{key}")
        self._numpy = None

    def order(self, size: int) -> Sequence[int]:
        """Where each position of a shuffled list takes its element from."""
        if self.fixed:
            return fixed_order(size, self.seed)
        order = list(range(size))
        self.rng.shuffle(order)
        return order

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in shuffled order."""
        return [items[i] for i in self.order(len(items))]

    def five_digits(self) -> int:
        """10000 to 99998: upstream's numpy.random.randint(10000, 99999); 10000 to 99999 in the fair profile."""
        if not self.fixed:
            return self.rng.randint(10000, 99999)
        if self._numpy is None:
            import numpy as np

            self._numpy = np.random.RandomState(self.seed & 0xFFFFFFFF)
        return int(self._numpy.randint(10000, 99999))


@lru_cache(maxsize=24)
def fixed_order(size: int, seed: int) -> MutableSequence[int]:
    """Where each position of a list shuffled by `random.Random(seed)` takes its element from."""
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return array("I", order)


def whole_tokens(counter: Counter, text: Text) -> int:
    """Tokens of a rendered prompt by one encode: what everything else must agree with."""
    return counter.tokenizer.count(text.prompt)


def split_prompt(prompt: str, answer_prefix: str) -> tuple[str, str]:
    """Split where upstream does: at the last occurrence of the first 10 characters of the answer prefix."""
    at = prompt.rfind(answer_prefix[:10])
    return prompt[:at], prompt[at:]
