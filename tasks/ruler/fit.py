"""Fitting a prompt to a token budget, as upstream does: search a size with random texts, step down where too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from harness.types import GatedevalError

D = TypeVar("D")

PATIENCE = 400
"""Attempts at the smallest size before an error is raised. Upstream never stops trying."""


class Rejected(Exception):
    """A draft that cannot be made at this size (upstream raises an error and tries again)."""


class TooShort(GatedevalError):
    """The length is too small for the smallest text. `minimum`: the tokens that would have been enough, or None.

    `usual`: tokens that one text in ten does not exceed, so that a row would soon find one that fits.
    """

    def __init__(self, message: str, minimum: int | None, usual: int | None = None) -> None:
        super().__init__(message)
        self.minimum, self.usual = minimum, minimum if usual is None else usual


def located(error: TooShort, where: str, beside: int) -> TooShort:
    """The error of one row, with its place; `minimum` becomes a length. `beside`: its tokens that are not the text's.

    `tasks.ruler.lengths.explained` adds the length that is enough for all rows.
    """
    if error.minimum is None or error.usual is None:
        return TooShort(f"{where}: {error}", None)
    return TooShort(f"{where}: {error}", error.minimum + beside, error.usual + beside)


def find_size(
    draw: Callable[[int], D],
    tokens: Callable[[D], int],
    *,
    length: int,
    limit: int,
    start: int,
    first: int | None = None,
    extra: int = 0,
    tight: bool = False,
) -> int:
    """The largest size (in units) at which a random text was seen to fit, by binary search; `start` if none did.

    `length`: tokens of prompt and answer, from which the upper bound is estimated. `limit`: tokens that a text and
    `extra` may take together. `first`: units of the first text, which gives the tokens per unit (default: `start`).
    `tight`: the upper bound is twice instead of three times the estimate (cwe's rule).
    """
    first = start if first is None else first
    per_unit = tokens(draw(first)) / first
    estimate = int(length // per_unit) * 2 if tight else int(length / per_unit * 3)
    low, high, best = start, max(estimate, start * 2), start
    while low <= high:
        size = (low + high) // 2
        if tokens(draw(size)) + extra <= limit:
            best, low = size, size + 1
        else:
            high = size - 1
    return best


def accepted(
    draw: Callable[[int, int], D], tokens: Callable[[D], int], *, limit: int, size: int, step: int, row: int
) -> tuple[D, int]:
    """The first draft of a row that fits, and its tokens. Raises TooShort where even the smallest never does."""
    seen: list[int] = []
    why = ""
    for _ in range(PATIENCE + size // step):
        try:
            draft = draw(size, row)
            used = tokens(draft)
            if used <= limit:
                return draft, used
            if size <= step:
                seen.append(used)
        except Rejected as error:
            why = error.args[0]
            if size <= step and not seen and error.args[1:] == ("always",):
                break
        if size > step:
            size -= step
    if seen:
        usual = sorted(seen)[len(seen) // 10]
        raise TooShort(f"its smallest text takes {min(seen)} tokens, {limit} are left for it", min(seen), usual)
    raise TooShort(f"no text can be made at size {size} ({why})", None)
