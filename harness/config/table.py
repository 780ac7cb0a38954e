"""How a run's tables are shown: the config's section `table`, and the same choices on the command line of `table`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    field_serializer,
    model_serializer,
)

from harness.config.fields import Entry, OneOrMore, Text


def _lengths(value: Any) -> Any:
    """A length, or a list of them; "4K" is 4096."""
    values = value if isinstance(value, list | tuple) else (value,)
    return tuple(map(_length, values))


def _length(value: Any) -> int:
    match = re.fullmatch(r"([0-9]+)([kKmM]?)", str(value)) if not isinstance(value, bool) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f"should be a length in tokens, a whole number such as 4096 or 4K, is {value!r}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20}[match[2].lower()]


def named_twice(labels: Iterable[str], names: Mapping[str, str]) -> str | None:
    """The first name that two of `labels` would be shown under, each renamed as `names` say; None: all differ."""
    shown = [names.get(label, label) for label in labels]
    return next((name for name in shown if shown.count(name) > 1), None)


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"names {next(v for v in values if values.count(v) > 1)!r} twice")
    return values


def _pairs(value: Any) -> Any:
    """A mapping, as YAML gives it, becomes pairs: the values of a frozen model are hashable."""
    if isinstance(value, dict):
        for old, new in value.items():
            if not isinstance(new, str) or not new or not str(old):
                quote = f'; write "{new}" in quotes' if isinstance(new, int | float) else ""
                raise ValueError(f"{str(old)!r} should have a label to be shown as, has {new!r}{quote}")
        return tuple((str(old), new) for old, new in value.items())
    if not isinstance(value, tuple):
        raise ValueError(f"should be a mapping such as {{old label: new label}}, is {value!r}")
    return value


Names = Annotated[tuple[Text, ...], OneOrMore, AfterValidator(_distinct), Field(min_length=1)]
Lengths = Annotated[tuple[int, ...], BeforeValidator(_lengths), AfterValidator(_distinct), Field(min_length=1)]
# run.json has a mapping.
Renames = Annotated[
    tuple[tuple[Text, Text], ...],
    BeforeValidator(_pairs),
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}}
    ),  # as run.json has it
]


_OF_ARMS = ("arms", "steps", "infer")


class TableOptions(Entry):
    """Rows, columns and words of a run's tables. They change nothing that is measured, and no sample's hash.

    `models`, `contexts`, `benchmarks` (names of a config: ruler, mmlu, gsm8k, an lm-eval task) and `lengths` (tokens):
    what is shown, in this order; None: all. `rename`: (label, shown as). `digits`: decimals of scores. `caption`:
    "short" keeps how to read the table and what is missing. `label`: LaTeX's. `transpose`: rows become columns.

    `arms`: "rows", one row per arm; "expanded", its checkpoints below it too; "off", checkpoints as if there were no
    arms. `steps`: which checkpoints of an arm with training steps its row is about: those of the last step that all
    arms have, or all. `infer`: what comparisons are about: these "files", or the "recipe" (other trainings of it).
    """

    SECTION: ClassVar[str] = "table"

    models: Names | None = None
    contexts: Names | None = None
    benchmarks: Names | None = None
    lengths: Lengths | None = None
    rename: Renames = ()
    digits: int = Field(default=2, ge=0, le=6)
    caption: Literal["full", "short"] = "full"
    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9:._/-]+$")] | None = None
    transpose: bool = False
    arms: Literal["rows", "expanded", "off"] = "rows"
    steps: Literal["last", "all"] = "last"
    infer: Literal["files", "recipe"] = "files"

    @model_serializer(mode="wrap")
    def _without_default_arms(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As it was before there were arms, where their options are the defaults: old and new run.json are equal."""
        fields = type(self).model_fields
        return {k: v for k, v in handler(self).items() if k not in _OF_ARMS or v != fields[k].default}

    @field_serializer("rename")
    def _as_mapping(self, pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
        return dict(pairs)
