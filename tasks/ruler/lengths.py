"""Whether every row of a request fits its length, the length that is enough for all of them, and how prompts end.

A row can be too long where an earlier one fits, because rows draw words, documents and questions of different lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.types import GatedevalError
from tasks.ruler.counting import Counter
from tasks.ruler.fair import fair_samples
from tasks.ruler.families import make_family
from tasks.ruler.family import Draws, Family, Text
from tasks.ruler.fit import Rejected, TooShort
from tasks.ruler.nvidia import draw_rows
from tasks.ruler.protocol import NEEDS
from tasks.ruler.qa import DocumentsDraft, QuestionAnswering
from tasks.ruler.request import Request

_STEPS = 2  # texts of so many steps must fit with room to spare; then stepping down always ends in one that fits
_SPARE = 1.1  # what other draws of a text of the same size may take more
_SHORT = 4096  # below this length, RULER's tasks have other steps and examples
_ROWS = 8  # rows drawn of a task whose rows are all alike
_TRIES = 20  # drawings of a short text before it is given up
_ROUNDS = 40  # lengths tried in search of one that is enough


def check(request: Request) -> None:
    """Raise the error that making all rows of `request` would raise because of the length; return if it raises none.

    Raises:
        TooShort: a row does not fit; the message names a length that is enough for all rows.
        GatedevalError: a row cannot be made.
    """
    if request.samples > request.start and not _surely_fits(request):
        try:
            _draw_all(request)
        except TooShort as error:
            raise explained(error, request) from error


def explained(error: TooShort, request: Request) -> TooShort:
    """`error` with what helps: a length at which every row fits, and options under which this length is enough."""
    enough = _enough(request, error)
    options = list(_options(request, enough))
    if enough is None:
        hint = "; no length that is enough was found, use a much larger one"
    else:
        hint = f"; the length must be at least {enough} with this tokenizer"
    if options:
        hint += f", or use {' or '.join(options)}"
    return TooShort(f"{error}{hint}", enough)


def ends(request: Request) -> list[Text]:
    """Short texts that begin and end as the prompts of all rows do: one per row where questions differ, else one.

    Around a prompt, the tokens of a chat template depend on these ends alone. Empty where none can be made.
    """
    family = make_family(
        request, Counter(request.tokenizer, request.counting), Draws(request.seed), request.text_budget
    )
    if isinstance(family, QuestionAnswering):
        return [family.render(DocumentsDraft(row, [])) for row in range(request.samples)]
    for _ in range(_TRIES):
        try:
            return [family.render(family.draw(max(_STEPS * family.step, family.smallest(0)), 0))]
        except (Rejected, TooShort):
            continue
    return []


def _surely_fits(request: Request) -> bool:
    """Whether texts far larger than the smallest one of each row fit, so that no row has to be drawn at full length."""
    largest = _largest_small_text(request)
    return largest is not None and largest * _SPARE <= request.text_budget


def _largest_small_text(request: Request) -> int | None:
    """Tokens of the largest of the rows' texts of a few steps; None where one cannot be made.

    Worked out once per tokenizer for all lengths that have the same step: 500 rows of documents take seconds.
    """
    family = make_family(
        request, Counter(request.tokenizer, request.counting), Draws(request.seed), request.text_budget
    )
    alike = not isinstance(family, QuestionAnswering)  # questions and documents are the row's own
    rows = range(min(request.samples, _ROWS) if alike else request.samples)
    data = tuple(request.data.find(name).sha256 for name in NEEDS[request.task])
    kind = (request.task, request.profile, request.seed, request.counting, family.step, request.length < _SHORT)
    key = (*kind, len(rows), *data)
    known: dict[tuple[object, ...], int | None] = request.tokenizer.facts.setdefault("small texts", {})
    if key not in known:
        try:
            known[key] = max(family.tokens(family.draw(_STEPS * _least(request, family, row), row)) for row in rows)
        except (Rejected, TooShort):
            known[key] = None
    return known[key]


def _least(request: Request, family: Family, row: int) -> int:
    return family.smallest(row) if request.profile == "fair" else family.step


def _draw_all(request: Request) -> None:
    """Draw every row. Raises TooShort or GatedevalError for the first that cannot be made."""
    if request.profile == "fair":
        for _ in fair_samples(replace(request, max_model_len=None)):
            pass
        return
    counter = Counter(request.tokenizer, request.counting)
    for _ in draw_rows(request, make_family(request, counter, Draws(request.seed), request.text_budget)):
        pass


def _enough(request: Request, error: TooShort) -> int | None:
    """A length at which every row was seen to fit, close to the smallest there is. None: none was found.

    The rows' own errors lead to it; then lengths below it are tried. Every length draws other texts, so that a shorter
    one may fit by chance: what is returned is enough, and at most about one percent more than needed.
    """
    short, length = request.length, max(error.usual or 0, request.length + 1)
    for _ in range(_ROUNDS):
        try:
            _draw_all(replace(request, length=length))
        except TooShort as again:
            short = length
            longer = length + max(1, length // 20)
            length = longer if again.usual is None else max(again.usual, length + 1)
        except GatedevalError:
            return None
        else:
            break
    else:
        return None
    short = max(short, (error.minimum or 0) - 1)
    while length - short > max(1, length // 100):
        between = (short + length) // 2
        if _fits(request, length=between):
            length = between
        else:
            short = between
    return length


def _options(request: Request, enough: int | None) -> Iterator[str]:
    """Options under which every row fits the present length; each was tried."""
    if request.profile == "nvidia" and _fits(request, profile="fair"):
        yield "`profile: fair`"
    budget = 0 if enough is None else request.answer_budget - (enough - request.length)
    if budget > 0 and _fits(request, answer_tokens=budget):
        yield f"`answer_tokens: {budget}`"


def _fits(request: Request, **changes: object) -> bool:
    changed = replace(request, **changes)  # type: ignore[arg-type]
    try:
        if not _surely_fits(changed):
            _draw_all(changed)
    except GatedevalError:
        return False
    return True
