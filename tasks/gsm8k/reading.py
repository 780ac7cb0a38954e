"""A third reading of GSM8k answers, `normalised`, beside lm-eval's `strict-match` and `flexible-extract`.

lm-eval compares texts: its patterns take the full stops of "18..." for a part of the number, and `9{,}500`, `$29.00` or
a minus sign from Unicode are never equal to the reference. This reading finds the number that a person would take for
the answer, and compares numbers. It is not lm-eval's: a table shows it beside the other two, never instead of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

METRIC = "exact_match,normalised"

_MINUS = "[-\N{MINUS SIGN}\N{EN DASH}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}]"
# What stands between groups of three digits: a comma, LaTeX's {,} and \, and the spaces that typesetters use.
_GROUP = r"(?:,|\{,\}|\\,|[\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}'\N{RIGHT SINGLE QUOTATION MARK}])"
_CURRENCY = r"(?:\\?[$\N{EURO SIGN}\N{POUND SIGN}\N{YEN SIGN}\N{INDIAN RUPEE SIGN}])"
_NUMBER = re.compile(
    rf"""
    (?<![\w^.])(?<!\^\{{)                      # not inside a word (m2), not an exponent, not after a decimal point
    (?P<sign>(?:(?<![\w)\]}}.,]){_MINUS}\ ?)?) # a minus sign; after a digit or a bracket it would be a subtraction
    {_CURRENCY}?\ ?(?P<inner>{_MINUS}?)        # $-5 as well as -$5
    (?P<digits>\d{{1,3}}(?:{_GROUP}\d{{3}})+(?!\d)|\d+|(?=\.\d))
    (?P<decimals>(?:\.\d+)?)
    """,
    re.VERBOSE,
)
_MARKED = re.compile(r"####")
_BOXED = re.compile(r"\\boxed\s*\{")
# "the answer is ...", "Answer: ...", and what GSM8k's own models write, "A: ..." at the start of a line
_STATED = re.compile(r"\banswers?\b[^.!?\n]{0,60}?(?:\b(?:is|are)\b|:|=)|^A:", re.IGNORECASE | re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?](?:\s|\.|$)|\n\s*\S")
_ALONE = re.compile(rf"""[\s*_("']*{_NUMBER.pattern}(?:\s?[^\W\d_]+|\s?%)?\s*(?:[,;.!*)"'](?!\d)|$)""", re.VERBOSE)


def answer_of(response: str) -> Decimal | None:
    """The number that a response gives as its answer; None where it has no number.

    The first of these that has a number: what follows the first `####`; the last `\\boxed{}`; what follows the last
    "answer is" or "Answer:" (of an equation there, the right-hand side); the number that a response without any
    equation begins with, where at most a unit follows it ("18 dollars, or ..."); the last number.
    """
    if marked := _MARKED.search(response):
        line = response[marked.end() :].lstrip().split("\n", 1)[0]
        if (number := next(_numbers(line), None)) is not None:
            return number
    for found in reversed(list(_BOXED.finditer(response))):
        if (number := next(_numbers(_braced(response[found.end() :])), None)) is not None:
            return number
    for found in reversed(list(_STATED.finditer(response))):
        if (number := _stated(response[found.end() :])) is not None:
            return number
    if "=" not in response and (alone := _ALONE.match(response)):
        return _value(alone)
    numbers = list(_numbers(response))
    return numbers[-1] if numbers else None


def normalised_match(reference: str, response: str) -> float:
    """1.0 where the response gives the number of the reference (a GSM8k answer, or the number alone), else 0.0."""
    wanted, given = answer_of(reference), answer_of(response)
    return float(wanted is not None and wanted == given)


def _numbers(text: str) -> Iterator[Decimal]:
    return (_value(match) for match in _NUMBER.finditer(text))


def _value(match: re.Match[str]) -> Decimal:
    digits = re.sub(r"\D", "", match["digits"]) or "0"
    value = Decimal(digits + match["decimals"])
    return -value if match["sign"] or match["inner"] else value


def _stated(rest: str) -> Decimal | None:
    """The number in the sentence that `rest` begins with; of an equation in it, what follows the last `=`."""
    rest = rest.lstrip(" \t\n*:$\\({[")
    end = _SENTENCE_END.search(rest)
    sentence = rest[: end.start() if end else None]
    sides = [side for side in (list(_numbers(part)) for part in re.split(r"=|\\approx", sentence)) if side]
    return sides[-1][0] if sides else None


def _braced(rest: str) -> str:
    """The text up to the brace that closes one opened before `rest`."""
    depth = 1
    for at, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if not depth:
            return rest[:at]
    return rest
