"""What the five families have in common: a draft (all random draws of one text), its tokens, and its rendering."""

from __future__ import annotations

import random
from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from tasks.ruler.counting import Counter

T = TypeVar("T")


class Rejected(Exception):
    """A draft that cannot be made at this size (upstream raises something and tries again)."""


@dataclass(frozen=True)
class Text:
    """A rendered draft."""

    input: str
    answer_prefix: str
    outputs: list[str]
    evidence: list[tuple[int, int]] = field(default_factory=list)  # character ranges in `input` that hold the answer
    complete: bool = True  # all that the answer rests on is in `input`
    elsewhere: int = 0  # answers that stand outside the evidence, where that gives them away
    place: tuple[int, int] | None = None  # (position from 1, number of documents) of the gold document

    @property
    def prompt(self) -> str:
        return self.input + self.answer_prefix


class Family(Protocol):
    """One task at one length. Sizes are in the family's own unit: words, lines, needles or documents."""

    step: int
    limit: int  # tokens that a prompt may take: length minus the tokens to generate

    def draw(self, size: int, row: int) -> Any:
        """All draws of one text of `size` units for row `row`. Raises Rejected where that is impossible."""

    def render(self, draft: Any) -> Text:
        """The text of a draft; draws nothing."""

    def tokens(self, draft: Any) -> int:
        """Tokens of the rendered prompt (input and answer prefix as one string), special tokens not added."""

    def offsets(self, draft: Any, text: Text) -> list[int]:
        """Tokens before each evidence of `text`, where tokens are counted in pieces."""


@dataclass
class Draws:
    """The random draws of a profile: upstream's one stream with fixed shuffles, or a stream of its own per sample."""

    seed: int
    fixed: bool = True  # fixed shuffles: the same permutation for every list of the same length
    rng: random.Random = field(init=False)
    _numpy: random.Random | None = None

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
        """numpy.random.randint(10000, 99999): upper end excluded, from numpy's own legacy stream."""
        if not self.fixed:
            return self.rng.randint(10000, 99999)
        if self._numpy is None:
            self._numpy = _numpy_stream(self.seed)
        while (drawn := self._numpy.getrandbits(32) & 0x1FFFF) > 99998 - 10000:
            pass  # numpy masks to the next power of two and draws again where that is too much
        return 10000 + drawn


def _numpy_stream(seed: int) -> random.Random:
    """numpy.random.seed(seed)'s Mersenne Twister: Python has the same generator, but fills its state differently."""
    state = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    stream = random.Random()
    stream.setstate((3, (*state, 624), None))
    return stream


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
