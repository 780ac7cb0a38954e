"""Is one model better than another? Looked at after every round, and stopped as soon as it is decided.

Per stratum, d = candidate - baseline on the same samples. After every round theta = sum_h w_h mean(d_h) has an
interval theta +- t(c) sqrt(V). The constant c is chosen so that the intervals of all looks hold at once with the
family's level (repeated confidence intervals, Jennison & Turnbull 1989; a constant critical value, Pocock 1977). So
every claim that an interval makes at any look may be believed: different (0 outside), or equal within a margin (all of
it inside).

Every round multiplies the information 1/V by `RATIO`, so under the null hypothesis the looks' statistics are a Gaussian
Markov chain with correlations sqrt(1/RATIO) between neighbours (Scharfstein, Tsiatis & Robins 1997), and c is found by
recursive integration (Armitage, McPherson & Rowe 1969). Looks that lie closer together cross less often.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from harness.stats.intervals import LEVEL, Array, Interval
from harness.stats.paired import paired_differences
from harness.stats.sequential import Design, Moments, grown, shrunk_variances

RATIO = 1.5
"""Information of one look over that of the look before."""
LATER_LOOKS = 2
"""Of `sequential_difference`: the samples are those of a decision that was looked at after every round."""
_NODES = 96


@functools.lru_cache(maxsize=256)
def critical_value(looks: int, alpha: float, ratio: float = RATIO) -> float:
    """The constant c with P(|Z_k| > c at any of `looks` looks) = `alpha`, information growing by `ratio` per look."""
    highest = float(special.ndtri(1 - alpha / 2 / looks))
    lowest = float(special.ndtri(1 - alpha / 2))
    if looks == 1:
        return lowest
    return float(optimize.brentq(lambda c: _crossing(c, looks, ratio) - alpha, lowest, highest + 0.01, xtol=1e-6))


def _crossing(c: float, looks: int, ratio: float) -> float:
    """P(|Z_k| > c for some k <= looks) for the chain with correlation sqrt(1 / ratio)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    z, w = c * nodes, c * weights
    rho = math.sqrt(1 / ratio)
    sd = math.sqrt(1 - rho * rho)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    kernel = np.exp(-(((z[:, None] - rho * z[None, :]) / sd) ** 2) / 2) / (sd * math.sqrt(2 * math.pi))
    for _ in range(looks - 1):
        density = kernel @ (w * density)
    return 1 - float(w @ density)


def looks_of(design: Design) -> int:
    """The most looks that can happen: information grows by at most the largest most_h / pilot_h."""
    growth = float((design.most / design.pilot).max())
    return 1 + math.ceil(math.log(max(growth, 1.0)) / math.log(RATIO) + 1e-9) + (growth > 1)


@dataclass(frozen=True)
class Look:
    """What is known after a round, on -1..1. Arrays of shape (...). `z`: of the difference, without its sign."""

    difference: Array
    low: Array
    high: Array
    z: Array

    def verdict(self, margin: float) -> str | None:
        """ "above", "below" (the candidate), "equal" within `margin`, or None: go on. Of a single look."""
        if float(self.low) > 0:
            return "above"
        if float(self.high) < 0:
            return "below"
        return "equal" if -margin <= float(self.low) and float(self.high) <= margin else None


def look(moments: Moments, design: Design, critical: float) -> Look:
    """The difference and its repeated interval. `moments`: of the differences, shape (..., H).

    V is at least that of one differing sample more than was seen, and of c^2 of them in all: models that agreed on
    every sample may still differ on c^2 of as many (Wilson's bound).
    """
    n, w = moments.n, design.weights
    variances, k = shrunk_variances(moments)
    parts = w * w * variances / n
    total, below = parts.sum(-1), (parts**2 / (np.maximum(n - 1, 1.0) + k)).sum(-1)
    freedom = np.clip(np.where(below > 0, total**2 / np.where(below > 0, below, 1.0), 1e9), 5.0, 1e9)
    one = (w * w / n).sum(-1) ** 2
    variance = np.maximum(total + one, critical**2 * one)
    half = special.stdtrit(freedom, special.ndtr(critical)) * np.sqrt(variance)
    difference = (w * moments.mean).sum(-1)
    z = special.ndtri(special.stdtr(freedom, -np.abs(difference) / np.sqrt(total + one)))
    return Look(difference, difference - half, difference + half, -z)


@dataclass(frozen=True)
class SequentialDifference:
    """A paired difference of samples that came in rounds, -1..1, with interval and two-sided p-value."""

    difference: float
    interval: Interval
    p: float


def sequential_difference(
    differences: Sequence[ArrayLike], design: Design, looks: int = 1, tests: int = 1
) -> SequentialDifference:
    """Of the differences per stratum. `looks` 1: a single look, at the level; else a decision's, over all its looks.

    The p-value of a decision is the probability of a statistic as large at any of its looks; below 0.05 / `tests`
    where, and only where, the interval excludes 0 (but for the few samples whose variance is bounded).
    """
    moments = Moments.of(differences)
    every = 1 if looks == 1 else looks_of(design)
    seen = look(moments, design, critical_value(every, (1 - LEVEL) / tests))
    z = float(seen.z)
    p = float(2 * special.ndtr(-z)) if every == 1 else min(1.0, max(0.0, _crossing(z, every, RATIO)))
    if every > 1 and z < 0.1:
        p = 1.0  # the integral's nodes lie too close together, and the probability is 1
    method = "paired, in rounds" if every == 1 else "repeated"
    return SequentialDifference(float(seen.difference), Interval(float(seen.low), float(seen.high), method), p)


def look_at(baseline: Sequence[ArrayLike], candidate: Sequence[ArrayLike], design: Design, tests: int = 1) -> Look:
    """The look after a round. Scores per stratum, 0..1, of the same samples. `tests`: decisions of the whole family.

    Raises:
        ValueError: the two have not the same numbers of samples.
    """
    critical = critical_value(looks_of(design), (1 - LEVEL) / tests)
    return look(Moments.of(paired_differences(baseline, candidate)), design, critical)


def next_look(
    baseline: Sequence[ArrayLike], candidate: Sequence[ArrayLike], design: Design, pace: int = 1
) -> list[int] | None:
    """Samples per stratum, of both models, for the next look; None where no stratum has any left.

    `pace`: how many of the looks that `critical_value` counts are made as one. The claims of a part of the looks are
    wrong no more often than those of all, as long as the scores have no part in the choice.
    """
    moments = Moments.of(paired_differences(baseline, candidate))
    if bool((moments.n >= design.most).all()):
        return None
    return [int(x) for x in grown(moments, design, np.asarray(RATIO**-pace), 1.0)]
