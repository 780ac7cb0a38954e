"""The nvidia profile: upstream's own rows, byte for byte.

One stream of random numbers serves the size search and all rows in turn, so every row depends on the rows before it.
"""

from __future__ import annotations

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


def nvidia_samples(request: Request) -> Iterator[RulerSample]:
    """Upstream's rows. If a count by pieces ever differs from the whole one, all rows are drawn again, counted whole.

    Raises:
        GatedevalError: the task cannot be made at this length, or a row was given before its miscount was noticed.
    """
    counter = Counter(request.tokenizer, request.counting)
    given: dict[int, int] = {}  # row -> hash of its line
    try:
        for sample in _rows(request, counter):
            if counter.piecewise:
                given[sample.row] = hash(sample.to_json())
            yield sample
        return
    except _Miscounted as error:
        if request.counting == "piecewise":
            raise GatedevalError(f"RULER {request.task} at {request.length}: {error}") from error
        request.tokenizer.notes.append(f"whole prompts are encoded (slower, same samples): {error}")
        counter = Counter(request.tokenizer, "whole")
        counter.why_whole = str(error)
    for sample in _rows(request, counter):
        if sample.row not in given:
            yield sample
        elif hash(sample.to_json()) != given[sample.row]:
            raise GatedevalError(
                f"RULER {request.task} at {request.length}: sample {sample.row} was handed out with a wrong "
                "token count; start again with counting='whole' (--counting whole)"
            )


class _Miscounted(Exception):
    """A count by pieces differs from the whole one."""


def _rows(request: Request, counter: Counter) -> Iterator[RulerSample]:
    start = request.start
    if request.samples <= start:
        return
    family = make_family(request, counter, Draws(request.seed), request.text_budget)
    for row, (draft, tokens) in enumerate(draw_rows(request, family)):
        if row < start:
            continue  # only its draws were needed
        text = family.render(draft)
        checked = counter.piecewise and (row - start) % CHECK_EVERY == 0
        if checked and (whole := whole_tokens(counter, text)) != tokens:
            raise _Miscounted(f"sample {row} takes {whole} tokens, its pieces make {tokens}")
        yield make_sample(request, family, draft, text, tokens, row, checked=checked)


def draw_rows(request: Request, family: Family) -> Iterator[tuple[Any, int]]:
    """(draft, tokens of its prompt) of every row, in order; nothing is rendered.

    Raises:
        TooShort: a row does not fit. GatedevalError: a row cannot be made.
    """
    where = f"RULER {request.task} at length {request.length}"
    try:
        size = family.search(request.length)
        for row in range(request.samples):
            yield family.accept(size, row)
    except TooShort as error:
        raise located(error, where, request.answer_budget + request.outside) from error
    except Rejected as error:
        raise GatedevalError(f"{where}: {error.args[0]}; use a larger length") from error
