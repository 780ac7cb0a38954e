"""How many samples a benchmark takes: a count, or as many as a precision needs; and what `decide` decides."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_serializer, model_validator

from harness.config.fields import Entry, Positive, Text, Whole

LEAST = 10


def _point(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Sampling(Entry):
    """`samples: {precision: 1.0, at_least: 50, at_most: 500}`: rounds of samples until a number is known well enough.

    `precision`: half the width of the reported number's 95 % interval, in points. `at_least`: samples per task of the
    first round. `at_most`: per task; None: the benchmark's own number of samples. `per`: what the precision is of, the
    reported number over all tasks, or every task.
    """

    precision: float | None = Field(default=None, gt=0, le=50)
    at_least: Annotated[Whole, Field(ge=LEAST)] = 50
    at_most: Positive | None = None
    per: Literal["number", "task"] = "number"

    @model_validator(mode="after")
    def _bounds(self) -> Sampling:
        if self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(
                f"at_least {self.at_least} is above at_most {self.at_most}; raise at_most or lower at_least"
            )
        return self

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        keys = {name: getattr(self, name) for name in type(self).model_fields}
        return {k: v for k, v in keys.items() if v is not None and not (k == "per" and v == "number")}


class Decide(Entry):
    """`decide: {candidate: B, baseline: A, margin: 1.0}`: rounds go on until it is known which model is better.

    Until the paired difference is larger than 0, or smaller than 0, or within ± `margin` points.
    """

    candidate: Text
    baseline: Text
    margin: float = Field(default=1.0, gt=0, le=50)

    @model_validator(mode="after")
    def _two(self) -> Decide:
        if self.candidate == self.baseline:
            raise ValueError(f"candidate and baseline are both {self.candidate!r}; name two models")
        return self


def _kind(value: Any) -> str:
    return "<rule>" if isinstance(value, dict | Sampling) else "<count>"


Samples = Annotated[
    Annotated[Positive, Tag("<count>")] | Annotated[Sampling, Tag("<rule>")],
    Discriminator(_kind),
]
"""A number of samples, or a rule. The tags stand in pydantic's places of errors; `complaints` leaves them out."""


def most(samples: int | Sampling | None, own: int | None) -> int | None:
    """The most samples per task that `samples` allows; `own`: the benchmark's number where it does not say."""
    if isinstance(samples, Sampling):
        return own if samples.at_most is None else samples.at_most
    return samples
