"""The base class of every part of a config, and the field types that its keys have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticKnownError

from harness.config.messages import complaints
from harness.text import read_length
from harness.types import GatedevalError, did_you_mean

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class Entry(BaseModel):
    """A part of a config: immutable, hashable, compared by value. Unknown keys and values of a wrong type are refused.

    Raises:
        GatedevalError: constructed from Python with values that a config file would be refused for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    SECTION: ClassVar[str] = ""
    """The section of a config that has these keys, for messages; empty: the name of the class."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            section = type(self).SECTION
            wrong = []
            for place, message, _ in complaints(error, type(self)):
                named = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in (section, *place) if k != "")
                wrong.append(f"{named.removeprefix('.')}: {message}".removeprefix(": "))
            raise GatedevalError(("" if section else f"{type(self).__name__}: ") + "; ".join(wrong)) from None

    # Pydantic's mark for an __init__ that only validates: `model_validate` then does not call it, and a ValidationError
    # keeps the places of all that is wrong. (Pydantic marks RootModel's the same way.)
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value  # 1e6 is a whole number


def _factor(value: Any) -> Any:
    return value["factor"] if isinstance(value, dict) and list(value) == ["factor"] else value  # {factor: 4} is 4


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _tuple(value)


def _path(value: Any) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    if not value:
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    return Path(value)


def _length(value: Any) -> Any:
    """4K is 4096, 1M is 1048576, as on the command line; any other text is left for the type to refuse."""
    if isinstance(value, str) and value[-1:].isalpha():
        try:
            return read_length(value)
        except ValueError as error:
            raise ValueError(f"{error}; it is {value!r}") from None
    return _whole(value)


Length = Annotated[int, BeforeValidator(_length), Field(gt=0)]
"""Tokens, written as 4096 or 4K."""
Whole = Annotated[int, BeforeValidator(_whole)]
Positive = Annotated[int, BeforeValidator(_whole), Field(gt=0)]
Natural = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Factor = Annotated[float, BeforeValidator(_factor), Field(ge=1)]
PairFactor = Annotated[float, Field(gt=0)]
"""How many times slower a pair of dimensions rotates."""
Text = Annotated[str, Field(min_length=1)]
FilePath = Annotated[Path, BeforeValidator(_path)]
AsTuple = BeforeValidator(_tuple)
"""A list, as YAML gives it, becomes a tuple."""
OneOrMore = BeforeValidator(_one_or_more)
"""One text stands for a list of one."""


def names_of(known: Sequence[str], what: str) -> BeforeValidator:
    """A field that takes `all` (or nothing), or names out of `known`. `what`: one of them, in an error's words."""

    def check(value: Any) -> tuple[str, ...]:
        names = tuple(known) if value is None or value == "all" else _one_or_more(value)
        if not isinstance(names, tuple) or not names:
            raise ValueError(f"should be all, or a list of {what}s (there are {len(known)})")
        for name in names:
            if name not in known:
                hint = did_you_mean(str(name), known)
                raise ValueError(f"unknown {what} {name!r}{hint}" + ("" if hint else f"; known: {', '.join(known)}"))
        if len(set(names)) < len(names):
            raise ValueError(f"names {next(n for n in names if names.count(n) > 1)!r} twice")
        return names

    return BeforeValidator(check)
