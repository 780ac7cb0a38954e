"""Which query positions a probe looks at, and how means over all positions are estimated from them.

A text of n tokens has n attention rows of up to n weights each. Up to `exact_up_to` tokens, all rows are computed.
Beyond that, a stratified random sample of rows is (Cochran 1977, Sampling Techniques, chapter 5): every sampled row
is exact over all of its keys, so memory and time grow linearly with n. The first rows change fastest, so all of them
are taken; the rest is cut into strata of equal width, with two rows of each.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXACT_UP_TO = 4096
"""Tokens up to which every attention row is computed."""
STRATA = 512
TAKEN_WHOLE = 64
"""Rows at the beginning of a long text that are all taken."""


@dataclass(frozen=True)
class RowSample:
    """Query positions of a text of `length` tokens, each with its stratum.

    `positions`: (R,) ascending query positions. `stratum`: (R,) the stratum of each, 0-based. `sizes`: (S,) rows of the
    text in each stratum. A stratum whose rows were all taken has no sampling error.
    """

    length: int
    positions: NDArray[np.int64]
    stratum: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def exact(self) -> bool:
        """Whether all rows that count were taken."""
        return len(self.positions) == int(self.sizes.sum())

    def estimate(self, values: Floats) -> tuple[Floats, Floats]:
        """Mean over all rows of the text, and the standard error of that mean.

        `values`: (R, ...) one value per sampled row. Returns two arrays of shape (...). Cochran 1977, equations 5.1 and
        5.7 with the finite population correction. The standard error is 0 where all rows were taken.
        """
        share = self.sizes / self.sizes.sum()
        mean = np.zeros(values.shape[1:])
        variance = np.zeros(values.shape[1:])
        whole = self.stratum == 0
        if self.sizes[0]:
            mean += share[0] * values[whole].mean(axis=0)
        if len(self.sizes) > 1:
            pairs = values[~whole].reshape(len(self.sizes) - 1, -1, *values.shape[1:])  # (S - 1, rows a stratum, ...)
            taken = pairs.shape[1]
            weight = share[1:].reshape(-1, *[1] * (values.ndim - 1))
            left = (1 - taken / self.sizes[1:]).reshape(weight.shape)
            mean += (weight * pairs.mean(axis=1)).sum(axis=0)
            variance += (weight**2 * left * pairs.var(axis=1, ddof=1) / taken).sum(axis=0)
        return mean, np.sqrt(variance)

    def to_plain(self) -> dict[str, Any]:
        """Plain data, to be sent to a worker process."""
        names = ("positions", "stratum", "sizes")
        return {"length": self.length, **{name: getattr(self, name).tolist() for name in names}}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> RowSample:
        """The inverse of `to_plain`."""
        arrays = {name: np.asarray(plain[name], dtype=np.int64) for name in ("positions", "stratum", "sizes")}
        return cls(plain["length"], **arrays)


def choose_rows(
    length: int, *, first_query: bool = False, exact_up_to: int = EXACT_UP_TO, strata: int = STRATA, seed: int = 0
) -> RowSample:
    """The query positions to compute for a text of `length` tokens.

    `first_query`: whether query 0 counts, whose only key is itself: its weight on the first token is always 1. The
    paper's convention is not stated; ours leaves it out.

    Raises:
        ValueError: the text has fewer than two tokens.
    """
    if length < 2:
        raise ValueError(f"a probe needs a text of at least 2 tokens, this one has {length}")
    begin = 0 if first_query else 1
    if length <= max(exact_up_to, begin + TAKEN_WHOLE + 4 * strata):
        positions = np.arange(begin, length)
        return RowSample(length, positions, np.zeros_like(positions), np.array([len(positions)]))
    generator = np.random.default_rng([seed, length])
    edges = np.linspace(begin + TAKEN_WHOLE, length, strata + 1).astype(np.int64)
    drawn = [np.sort(generator.choice(np.arange(a, b), 2, replace=False)) for a, b in itertools.pairwise(edges)]
    positions = np.concatenate([np.arange(begin, begin + TAKEN_WHOLE), *drawn])
    stratum = np.concatenate([np.zeros(TAKEN_WHOLE, np.int64), np.repeat(np.arange(1, strata + 1), 2)])
    return RowSample(length, positions, stratum, np.array([TAKEN_WHOLE, *np.diff(edges)]))
