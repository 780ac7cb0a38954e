"""The fair profile: upstream's tasks with draws of their own for every sample, and a budget on the ids as sent.

What changes against the nvidia profile: every sample has its own random stream, so that no sample depends on another
and nothing is shuffled the same way twice (gold documents at any depth, common words anywhere, needles in any order);
the size is fitted per sample, by single units, so that prompts fill their length; special tokens count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.types import GatedevalError
from tasks.ruler.counting import Counter
from tasks.ruler.family import Draws, Family, Rejected, whole_tokens
from tasks.ruler.fit import TooShort
from tasks.ruler.protocol import SETTINGS
from tasks.ruler.sample import RulerSample

if TYPE_CHECKING:
    from tasks.ruler.generation import Request

_TRIES = 24
_REDRAWS = 20
_SMALLEST = {"niah": 5, "vt": 6, "cwe": 11, "fwe": 27, "qa": 1}
"""The smallest sizes: room for the needles or assignments; 10 common words and another; a fourth rank that occurs."""
_ESSAY_WORDS = 50
_AT_THE_LEAST = {50: 5, 5: 3}
"""Needle tasks at very short lengths: where their smallest size (50 words, 5 lines) does not fit, so few will do."""


def fair_samples(request: Request, start: int) -> Iterator[RulerSample]:
    """Samples `start` to the last; sample k is the same whatever else is made."""
    from tasks.ruler.generation import CHECK_EVERY, make_family, make_sample, too_short

    if request.samples <= start:
        return
    counter = Counter(request.tokenizer, request.counting)
    limit = request.length - request.answer_tokens - len(request.tokenizer.prefix_ids)
    draws = Draws(request.seed, fixed=False)
    draws.restart(f"{request.task}/{request.length}/made")
    try:
        family = make_family(request, counter, draws, limit)
        guess = _Fit(request, family, draws, -1).guess()
        for row in range(start, request.samples):
            draft, tokens = _Fit(request, family, draws, row).best(guess)
            text = family.render(draft)
            checked = counter.piecewise and (row - start) % CHECK_EVERY == 0
            if checked and (whole := whole_tokens(counter, text)) != tokens:
                # Unlike nvidia's rows, these do not depend on one another: count this and the following ones whole.
                counter = Counter(request.tokenizer, "whole")
                counter.why_whole = f"sample {row} takes {whole} tokens, its pieces make {tokens}"
                request.tokenizer.notes.append(f"whole prompts are encoded: {counter.why_whole}")
                family.counter = counter  # type: ignore[attr-defined]
                draft, tokens = _Fit(request, family, draws, row).best(guess)
                text = family.render(draft)
            yield make_sample(request, family, counter, draft, text, tokens, row, "checked" if checked else "")
    except TooShort as error:
        where = f"RULER {request.task} at length {request.length}, profile fair"
        raise too_short(request, error, where) from error
    except Rejected as error:
        raise GatedevalError(f"RULER {request.task} at length {request.length}: {error.args[0]}") from error


class _Fit:
    """The size of one row: the largest that fits, approached from a guess that is the same for all rows."""

    def __init__(self, request: Request, family: Family, draws: Draws, row: int) -> None:
        self.request, self.family, self.draws, self.row = request, family, draws, row
        self.smallest = _SMALLEST[SETTINGS[request.task]["family"]]
        if SETTINGS[request.task].get("haystack") == "essay":
            self.smallest = _ESSAY_WORDS
        if SETTINGS[request.task]["family"] == "qa":
            question = family.data.questions[max(row, 0)]  # type: ignore[attr-defined]
            self.smallest = max(len(question.gold), 1)

    def attempt(self, size: int, again: int = 0) -> tuple[Any, int]:
        """The row's draft at one size: always the same one."""
        self.draws.restart(f"{self.request.task}/{self.request.length}/{self.row}/{again}")
        draft = self.family.draw(size, max(self.row, 0))
        return draft, self.family.tokens(draft)

    def guess(self) -> int:
        """A size near the limit, from two texts."""
        size = max(self.smallest, self.family.step)
        for _ in range(3):
            tokens = self.attempt(size)[1]
            size = max(self.smallest, int(size * self.family.limit / max(tokens, 1)))
        return size

    def best(self, guess: int) -> tuple[Any, int]:
        """The largest draft found that fits and gives nothing away; raises TooShort where none does."""
        for again in range(_REDRAWS):
            try:
                draft, tokens = self._largest(guess, again)
            except TooShort:
                if SETTINGS[self.request.task]["family"] != "niah" or self.smallest not in _AT_THE_LEAST:
                    raise
                self.smallest = _AT_THE_LEAST[self.smallest]
                draft, tokens = self._largest(guess, again)
            text = self.family.render(draft)
            if text.complete and not text.elsewhere:
                return draft, tokens
        raise Rejected(f"row {self.row} gives its answer away or lacks its evidence in {_REDRAWS} drawings")

    def _largest(self, guess: int, again: int) -> tuple[Any, int]:
        limit, low, high = self.family.limit, self.smallest - 1, 1 << 40
        size, found, least = max(guess, self.smallest), None, 1 << 40
        for _ in range(_TRIES):
            draft, tokens = self.attempt(size, again)
            per_unit = max(tokens / size, 1e-9)
            least = min(least, tokens)
            if tokens <= limit:
                low, found = size, (draft, tokens)
                following = size + max(1, int((limit - tokens) / per_unit))
            else:
                high = size
                following = size - max(1, math.ceil((tokens - limit) / per_unit))
            if high - low <= 1:
                break
            size = min(max(following, low + 1), high - 1)
        if found is None:
            raise TooShort(f"its smallest text takes {least} tokens, {limit} are left for it", least)
        return found
