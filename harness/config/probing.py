"""The `probe` section of a config: what is measured inside the models, and on which text."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from harness.config.fields import AsTuple, Entry, Natural, Positive, Text


def _pair(value: object) -> object:
    return tuple(tuple(v) if isinstance(v, list) else v for v in value) if isinstance(value, list | tuple) else value


class ProbeOptions(Entry):
    """What a probe measures.

    `text`: `essays` (the essays of RULER's data), `ruler:TASK` (a prompt of that RULER task, as long as the length),
    or a text file. `lengths`: tokens of the text that are read; lengths that a context setting does not reach are
    left out. `first_query`: whether query position 0 counts, whose weight on the first token is always 1.
    `exact_up_to`: tokens up to which every attention row is computed; beyond, a random sample of rows is. `maps`:
    [layer, head] pairs, counted from 0, whose whole attention map is kept, of the text's first `map_length` tokens.
    `perplexity`: whether to compute it.
    """

    text: Text = "essays"
    lengths: Annotated[tuple[Positive, ...], AsTuple, Field(min_length=1)] = (512,)
    first_query: bool = False
    exact_up_to: Natural = 4096
    maps: Annotated[tuple[tuple[Natural, Natural], ...], BeforeValidator(_pair)] = ()
    map_length: Annotated[int, Field(ge=2, le=512)] = 64
    perplexity: bool = True

    @model_validator(mode="after")
    def _lengths(self) -> ProbeOptions:
        if min(self.lengths) < 2:
            raise ValueError("lengths: a probe needs at least 2 tokens")
        if len(set(self.lengths)) < len(self.lengths):
            raise ValueError("lengths: one of them is given twice; keep one")
        return self
