"""Plain text for readers: numbers with true minus signs, how wide a text is in a terminal, rows as aligned columns."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """`text` with every lone surrogate replaced by U+FFFD.

    JSON can write half of a character ("\\ud835"), and a response that is cut inside a character may end so. Such a
    text has no UTF-8 form: writing or printing it, or giving it to a tokenizer, would raise an error.
    """
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def well_formed_value(value: Any) -> Any:
    """JSON-able data with every text in it as `well_formed` has it."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed_value(key): well_formed_value(item) for key, item in value.items()}
    return [well_formed_value(item) for item in value] if isinstance(value, list) else value


def read_length(text: str) -> int:
    """A length in tokens as people write it: 4096, 4K (4,096) or 1M (1,048,576).

    Raises:
        ValueError: anything else; the message says what it should be.
    """
    match = re.fullmatch(r"([0-9]+)([kKmM]?)", str(text))
    if match is None or int(match[1]) == 0:
        raise ValueError("should be a length in tokens, a whole number such as 4096, 4K or 1M")
    return int(match[1]) << {"": 0, "K": 10, "M": 20}[match[2].upper()]


_LONGEST = 10 * 365.25 * 86400.0
_SECONDS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def read_time(text: str) -> float:
    """Seconds of a time as people write it: 2h, 90min, 1h30m, 45 s.

    Raises:
        ValueError: anything else; the message says what it should be.
    """
    given = text.strip().lower()
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", given)
    whole = re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)?\s*[a-z]+\s*)+", given)
    if not whole or any(unit not in _SECONDS for _, unit in parts):
        raise ValueError("should be a time with its unit, such as 2h, 90min or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ValueError("should be more than nothing, such as 2h or 90min")
    if seconds > _LONGEST:
        raise ValueError("should be ten years at most, such as 2h or 90min")
    return seconds


def counted(number: int | str, noun: str) -> str:
    """ "1 sample", "2 samples", "20 to 500 samples", "no samples". `noun`: in the singular; its plural ends in s."""
    return f"{number} {noun}" + ("" if str(number) == "1" else "s")


MINUS = "\N{MINUS SIGN}"
_LONGEST_WORD = 40  # characters: a cut is moved by at most this many to be between two words


def number_text(value: float, decimals: int, *, signed: bool = False) -> str:
    """A number for readers: `decimals` digits, a true minus sign, and "+" too where `signed`. Programs get numbers."""
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.replace("-", MINUS)


def interval_text(low: float, high: float, decimals: int = 2) -> str:
    """The interval of a difference: "[−1.35, +2.69]"."""
    return f"[{number_text(low, decimals, signed=True)}, {number_text(high, decimals, signed=True)}]"


def width(text: str) -> int:
    """Columns that `text` takes in a terminal: wide characters count two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, size: int, *, right: bool = False) -> str:
    """`text` filled up with spaces to `size` columns; `right`: the text at the right end."""
    space = " " * (size - width(text))
    return space + text if right else text + space


def align(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), gap: str = "  ", rule: bool = False
) -> list[str]:
    """Rows as lines whose columns line up; no line ends in spaces.

    `right`: numbers of the columns that are aligned at their right end. `rule`: a line of dashes below the first row.
    Rows may be shorter than the longest one; they then end earlier.
    """
    sizes = [max(width(row[c]) for row in rows if c < len(row)) for c in range(max(map(len, rows), default=0))]
    lines = [gap.join(pad(text, sizes[c], right=c in right) for c, text in enumerate(row)).rstrip() for row in rows]
    if rule and lines:
        lines.insert(1, gap.join("-" * size for size in sizes))
    return lines


def between_words(text: str, *, start: bool, end: bool) -> str:
    """The text without a part of a word at its `start` or `end`, where a space is near enough."""
    if start and (space := re.search(r"\s", text[:_LONGEST_WORD])):
        text = text[space.end() :]
    if end and (spaces := list(re.finditer(r"\s", text[-_LONGEST_WORD:]))):
        text = text[: len(text) - len(text[-_LONGEST_WORD:]) + spaces[-1].start()]
    return text
