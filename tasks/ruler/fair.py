"""The fair profile: upstream's tasks with draws of their own for every sample, and a budget on the ids as sent.

What changes against the nvidia profile: every sample has its own random stream, so that no sample depends on another
and nothing is shuffled the same way twice (gold documents at any depth, common words anywhere, needles in any order);
the size is fitted per sample, by single units, so that prompts fill their length; special tokens count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from harness.types import GatedevalError
from tasks.ruler.counting import Counter
from tasks.ruler.families import make_family
from tasks.ruler.family import Draws, Family, whole_tokens
from tasks.ruler.fit import Rejected, TooShort, located
from tasks.ruler.request import Request
from tasks.ruler.sample import RulerSample
from tasks.ruler.validity import CHECK_EVERY, make_sample

_TRIES = 24  # sizes tried for one row
_REDRAWS = 20  # drawings of one row before it is given up


def fair_samples(request: Request) -> Iterator[RulerSample]:
    """Samples `start` to the last; sample k is the same whatever else is made.

    Raises:
        GatedevalError: the length is too small, or a row gives its answer away however it is drawn.
    """
    if request.samples <= request.start:
        return
    counter = Counter(request.tokenizer, request.counting)
    limit = request.text_budget
    draws = Draws(request.seed, fixed=False)
    draws.restart(f"{request.task}/{request.length}/made")
    where = f"RULER {request.task} at length {request.length}"
    try:
        family = make_family(request, counter, draws, limit)
        guess = _Fit(request, family, draws, -1).guess()
        for row in range(request.start, request.samples):
            draft, tokens = _Fit(request, family, draws, row).best(guess)
            text = family.render(draft)
            checked = family.counter.piecewise and (row - request.start) % CHECK_EVERY == 0
            if checked and (whole := whole_tokens(family.counter, text)) != tokens:
                # Unlike nvidia's rows, these do not depend on one another: count this and the following ones whole.
                family.counter = Counter(request.tokenizer, "whole")
                family.counter.why_whole = f"sample {row} takes {whole} tokens, its pieces make {tokens}"
                request.tokenizer.notes.append(f"whole prompts are encoded: {family.counter.why_whole}")
                draft, tokens = _Fit(request, family, draws, row).best(guess)
                text = family.render(draft)
            yield make_sample(request, family, draft, text, tokens, row, checked=checked)
    except TooShort as error:
        raise located(error, f"{where}, profile fair", request.answer_budget + request.outside) from error
    except Rejected as error:
        raise GatedevalError(f"{where}: {error.args[0]}") from error


class _Fit:
    """The size of one row: the largest that fits, approached from a guess that is the same for all rows."""

    def __init__(self, request: Request, family: Family, draws: Draws, row: int) -> None:
        self.family, self.draws, self.row = family, draws, row
        self.key = f"{request.task}/{request.length}/{row}"
        self.smallest = family.smallest(max(row, 0))

    def attempt(self, size: int, again: int = 0) -> tuple[Any, int]:
        """The row's draft at one size: always the same one."""
        self.draws.restart(f"{self.key}/{again}")
        draft = self.family.draw(size, max(self.row, 0))
        return draft, self.family.tokens(draft)

    def guess(self) -> int:
        """A size near the limit, from a few texts."""
        size = max(self.smallest, self.family.step)
        for _ in range(3):
            tokens = self.attempt(size)[1]
            size = max(self.smallest, int(size * self.family.limit / max(tokens, 1)))
        return size

    def best(self, guess: int) -> tuple[Any, int]:
        """The largest draft seen to fit that gives nothing away, and its tokens; raises TooShort where none fits."""
        for again in range(_REDRAWS):
            try:
                draft, tokens = self._largest(guess, again)
            except TooShort:
                if self.smallest not in self.family.fewer:
                    raise
                self.smallest = self.family.fewer[self.smallest]
                draft, tokens = self._largest(guess, again)
            text = self.family.render(draft)
            if text.complete and not text.elsewhere:
                return draft, tokens
        raise Rejected(f"row {self.row} gives its answer away or lacks its evidence in {_REDRAWS} drawings")

    def _largest(self, guess: int, again: int) -> tuple[Any, int]:
        limit, low, high = self.family.limit, self.smallest - 1, 1 << 40
        size, best, least = max(guess, self.smallest), None, 1 << 40
        for _ in range(_TRIES):
            draft, tokens = self.attempt(size, again)
            per_unit = max(tokens / size, 1e-9)
            least = min(least, tokens)
            if tokens <= limit:
                low, best = size, (draft, tokens)
                following = size + max(1, int((limit - tokens) / per_unit))
            else:
                high = size
                following = size - max(1, math.ceil((tokens - limit) / per_unit))
            if high - low <= 1:
                break
            size = min(max(following, low + 1), high - 1)
        if best is None:
            raise TooShort(f"its smallest text takes {least} tokens, {limit} are left for it", least)
        return best
