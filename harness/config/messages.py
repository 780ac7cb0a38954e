"""Pydantic's validation errors -> the plain words that a person reads."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from harness.types import did_you_mean


class Complaint(NamedTuple):
    """One thing that is wrong: where, in words, and whether it is the key itself (unknown or missing)."""

    loc: tuple[str | int, ...]
    message: str
    about_key: bool


def complaints(error: ValidationError, keys: type[BaseModel]) -> list[Complaint]:
    """Everything in a pydantic error about a mapping that should have the fields of `keys`; unknown keys come first."""
    listed: list[Complaint] = []
    misspelt: set[tuple[str | int, ...]] = set()  # keys that are there under another name are not missing as well
    for e in sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden"):
        loc, kind, value = _written(e["loc"]), e["type"], e["input"]
        about_key = kind in ("extra_forbidden", "missing")
        if kind == "extra_forbidden":
            known = _known_keys(keys, loc[:-1])
            hint = did_you_mean(str(loc[-1]), known)
            misspelt.update((*loc[:-1], name) for name in known if f"{name!r}" in hint)
            message = f"unknown key {loc[-1]!r}" + (hint or f"; known keys: {', '.join(known)}")
        elif kind == "missing":
            if loc in misspelt:
                continue
            alternative = getattr(keys, "ALTERNATIVES", {}).get(loc[-1], "") if len(loc) == 1 else ""
            message = f"missing key {loc[-1]!r}{alternative}"
        else:
            message = _plain(kind, value, e.get("ctx", {}), e["msg"])
        listed.append(Complaint(loc, message, about_key))
    return listed


def _written(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The place without the tags of a union, which no file has: `samples.<rule>.precision` is `samples.precision`."""
    return tuple(part for part in loc if not (isinstance(part, str) and part.startswith("<") and part.endswith(">")))


def _known_keys(keys: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """The keys of the mapping at `loc` below `keys`, e.g. those of `yarn` within a context."""
    for name in loc:
        annotation = keys.model_fields[str(name)].annotation
        inner = (a for a in _classes(annotation) if issubclass(a, BaseModel))
        keys = next(inner, keys)
    return list(keys.model_fields)


def _classes(annotation: Any) -> list[type]:
    """The classes that an annotation names, at any depth of unions and `Annotated`."""
    if isinstance(annotation, type):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _classes(argument)]


def _plain(kind: str, value: Any, ctx: dict[str, Any], message: str) -> str:
    shown = f"is {value!r}" if not isinstance(value, dict | list | tuple) else f"is a {type(value).__name__}"
    if kind == "value_error":
        return str(ctx["error"])
    if kind.startswith("int_"):
        return f"should be a whole number, {shown}{_thousands(value)}"
    if kind.startswith("float_") or kind == "finite_number":
        return f"should be a number, {shown}{_thousands(value)}"
    if kind.startswith("bool_"):
        return f"should be true or false, {shown}"
    if kind == "string_type":
        quote = f'; write "{value}" in quotes' if isinstance(value, int | float) else ""
        return f"should be text, {shown}{quote}"
    if kind == "literal_error":
        return f"should be {ctx['expected']}, {shown}"
    if kind == "string_pattern_mismatch":
        return f"should have only letters, digits, '.', '_' and '-', {shown}"
    if kind in ("too_short", "string_too_short"):
        return "should not be empty"
    if kind in ("tuple_type", "model_type"):
        return f"should be a {'list' if kind == 'tuple_type' else 'mapping'}, {shown}"
    for limit, word in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most")):
        if limit in ctx:
            return f"should be {word} {ctx[limit]:g}, {shown}"
    return f"{message[0].lower()}{message[1:]}, {shown}"


def _thousands(value: Any) -> str:
    """`; did you mean 32768?` for 32k and 32K, which people write for context lengths."""
    if isinstance(value, str) and value[:-1].isdigit() and value[-1] in "kKmM":
        return f"; did you mean {int(value[:-1]) * (1024 if value[-1] in 'kK' else 1024 * 1024)}?"
    return ""
