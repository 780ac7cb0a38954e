"""The `probe` section of a config: what is measured inside the models, and on which text."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from harness.config.fields import Entry, Length, Natural, Text

ESSAYS = "essays"
"""As `probe.text`: the essays of RULER's data."""
RULER_TEXT = "ruler:"
"""What `probe.text` begins with where it is a prompt of a RULER task."""
TEXTS = "essays, ruler:TASK (as ruler:niah_single_2), or a text file"
"""What `probe.text` can be, for messages."""


def _pairs(value: object) -> object:
    """Lists of two become pairs; anything else is refused in words that a reader of the file understands."""
    pairs = tuple(tuple(v) if isinstance(v, list) else v for v in value) if isinstance(value, list | tuple) else None
    if pairs is None or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"should be a list of [layer, head] pairs such as [[0, 0], [15, 3]], is {value!r}")
    return pairs


def _as_lengths(value: object) -> object:
    """One length stands for a list of one."""
    return tuple(value) if isinstance(value, list) else value if isinstance(value, tuple) else (value,)


class ProbeOptions(Entry):
    """What a probe measures.

    `text`: `essays` (the essays of RULER's data), `ruler:TASK` (a prompt of that RULER task, as long as the length),
    or a text file. `lengths`: tokens of the text that are read (4096 or 4K); those that a context setting does not
    reach are left out. `first_query`: whether query position 0 counts, whose weight on the first token is always 1.
    `exact_up_to`: tokens up to which every attention row is computed; beyond, a random sample of rows is. `maps`:
    [layer, head] pairs, counted from 0, whose whole attention map is kept, of the text's first `map_length` tokens.
    `perplexity`: whether to compute it.
    """

    SECTION: ClassVar[str] = "probe"

    text: Text = ESSAYS
    lengths: Annotated[tuple[Length, ...], BeforeValidator(_as_lengths), Field(min_length=1)] = (512,)
    first_query: bool = False
    exact_up_to: Natural = 4096
    maps: Annotated[tuple[tuple[Natural, Natural], ...], BeforeValidator(_pairs)] = ()
    map_length: Annotated[int, Field(ge=2, le=512)] = 64
    perplexity: bool = True

    @model_validator(mode="after")
    def _lengths(self) -> ProbeOptions:
        if min(self.lengths) < 2:
            raise ValueError("lengths: a probe needs at least 2 tokens")
        if len(set(self.lengths)) < len(self.lengths):
            raise ValueError("lengths: one of them is given twice; keep one")
        return self
