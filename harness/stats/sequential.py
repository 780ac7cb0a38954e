"""A mean over strata whose numbers of samples were chosen by looking at them: its interval, and what to draw next.

Strata are RULER's tasks or MMLU's subjects, scores are in 0..1, the reported number is theta = sum_h w_h mean_h. A
pilot of equally many samples per stratum is drawn; then rounds follow until the interval's half-width reaches its
target (Chow & Robbins 1965), and every round is spread over strata by Neyman's rule (1934), n_h ~ w_h s_h.

An interval that ignores how its samples were chosen covers too rarely: a stratum that fails rarely by chance gets few
samples and keeps its too good mean. Five things are different from the textbook's, and `bench/precision.py` shows by
simulation what they give:

* Variances are shrunk to their common mean, v_h = (SS_h + k v) / (n_h - 1 + k), by Buehlmann's credibility factor k
  (1967), at most `MOST_PRIOR`. For the next round k is larger: strata that cannot be told apart get the same.
* The end points solve d^2 = t^2 (V + b d - d^2 / N) for their distance d from theta, b = sum w_h^3 m3_h / n_h^2 / V
  from the third central moments m3_h. For one stratum of 0/1 scores that is Wilson's interval (1927), which has a width
  also where no failure was seen; N = 1 / sum(w_h^2 / n_h).
* A mean that ends by looking is off by -b in expectation; and with n_h ~ s_h, the mean of each stratum by
  -m3_h / (2 v_h n_h), as far as its own variance counted in s_h; both as far as samples were drawn after the pilot, and
  for no stratum that has all of its samples. The ends move by that much; but none moves inwards where that rests on few
  failures (V / b^2 is their number where failures are rare; `FEW`), or on one stratum alone.
* Rare failures come one by one. Where they are few, the end on the side of fewer failures moves outwards by half of
  what one failure changes: by b / 2, a correction for continuity (Blyth & Still 1983); where they are many, by
  FEW b^2 / V of that. Else a single failure in one of many perfect strata would exclude the truth. Not for one stratum.
* t is Student's quantile (degrees of freedom by Satterthwaite 1946) times `INFLATION`.

Finite populations without replacement (the questions of MMLU) have the usual correction 1 - n_h / N_h in V and in b.
All functions work on arrays of shape (..., H), so that a simulation runs the code that a run runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from harness.stats.intervals import LEVEL, Array, Interval, column_of

METHOD = "sequential"
PRIOR = 2.0
"""The least number of samples that the common variance counts as, in every stratum."""
MOST_PRIOR = 50.0
"""The most samples that it counts as in the interval: a stratum with many more has a variance of its own."""
CAUTION = 12.0
"""How many samples more it counts as, at least, where the next round is spread over up to 13 strata."""
INFLATION = 1.05
"""Factor on Student's quantile, for the choice of the moment to stop."""
STEP = 0.7
"""The part of the missing samples that a round draws; all of them where less than `NEAR` of those there are missing."""
NEAR = 0.15
FEW = 10.0
"""A number of failures: the correction of the bias moves no end inwards if it rests on as many or fewer."""
_TOLD_APART = 2.0  # strata differ where their variances spread by so many standard errors of that spread
_ALIKE = 1e4  # as many samples as the common variance counts as for the next round, of strata that seem alike
_SMALL = 1e-14
_LEAST_VARIANCE = 1e-5


@dataclass(frozen=True)
class Moments:
    """Samples of every stratum in four numbers, each of shape (..., H).

    `n`: how many. `mean`. `squares`: sum of squared deviations. `cube`: unbiased third central moment.
    """

    n: Array
    mean: Array
    squares: Array
    cube: Array

    @classmethod
    def of_sums(cls, n: ArrayLike, s1: ArrayLike, s2: ArrayLike, s3: ArrayLike) -> Moments:
        """From numbers of samples and sums of the first three powers of their scores. n >= 1 everywhere."""
        count, one, two, three = (np.asarray(x, dtype=np.float64) for x in (n, s1, s2, s3))
        mean = one / count
        squares = np.maximum(two - one * mean, 0.0)
        raw = three - 3 * mean * two + 2 * count * mean**3
        cube = np.where(count > 2, raw * count / np.maximum((count - 1) * (count - 2), 1.0), 0.0)
        return cls(count, mean, squares, cube)

    @classmethod
    def of(cls, columns: Sequence[ArrayLike]) -> Moments:
        """From the scores of every stratum; shape (H,). Raises ValueError for an empty stratum or a NaN."""
        scores = [column_of(c) for c in columns]
        if not scores or any(c.size == 0 for c in scores):
            raise ValueError("every stratum needs a sample")
        return cls.of_sums([c.size for c in scores], *([(c**k).sum() for c in scores] for k in (1, 2, 3)))


@dataclass(frozen=True)
class Design:
    """How the strata make up the number that is reported, and how they are sampled; every array has shape (H,).

    `weights`: sum to 1. `pilot`: samples of the first round. `most`: the most samples. `sizes`: how many there are to
    draw from without replacement; infinite where samples are generated.
    """

    weights: Array
    pilot: Array
    most: Array
    sizes: Array

    @classmethod
    def of(
        cls, weights: ArrayLike, at_least: int, at_most: Sequence[int] | int, sizes: Sequence[float] | None = None
    ) -> Design:
        """`weights` need not sum to 1. `sizes` None: samples are generated, there is no end to them."""
        w = np.asarray(weights, dtype=np.float64)
        most = np.broadcast_to(np.asarray(at_most, dtype=np.float64), w.shape)
        whole = np.full(w.shape, np.inf) if sizes is None else np.asarray(sizes, dtype=np.float64)
        most = np.minimum(most, whole)
        return cls(w / w.sum(), np.minimum(float(at_least), most), most, whole)

    def inverse_size(self, n: ArrayLike) -> Array:
        """1 / N, where `n` (..., H) samples tell as much as N of a single stratum without end (Kish 1965)."""
        count = np.asarray(n, dtype=np.float64)
        return np.asarray((self.weights**2 / count * (1 - count / self.sizes)).sum(-1))


@dataclass(frozen=True)
class Estimate:
    """The reported number after some samples, on 0..1; arrays of shape (...). `variances`: shrunk, (..., H)."""

    value: Array
    low: Array
    high: Array
    variances: Array

    @property
    def half(self) -> Array:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    @property
    def interval(self) -> Interval:
        """The interval of a single estimate."""
        return Interval(float(self.low), float(self.high), METHOD)


def shrunk_variances(
    moments: Moments, prior: float = PRIOR, most: float = MOST_PRIOR, weights: Array | float = 1.0
) -> tuple[Array, Array]:
    """Variances (..., H) shrunk to their common mean, and the samples (..., 1) that the common mean counts as.

    Credibility k = E[process variance] / Var[hypothetical means]: the squared deviation of a 0/1 score has the variance
    v (1 - 4 v), and no score in 0..1 of that variance has a larger one. At least `prior`, and at most `most`. One
    stratum: nothing to shrink to, k = 0. `weights` (H,): strata count by their squares in the common mean, as in V.
    """
    n, squares = moments.n, moments.squares
    strata = n.shape[-1]
    degrees = np.maximum(n - 1, 0.0)
    importance = weights * np.ones_like(n) / np.max(weights)
    below = np.maximum((importance**2 * degrees).sum(-1), 1e-9)
    common = ((importance**2 * squares).sum(-1) / below)[..., None]
    raw = squares / np.maximum(degrees, 1.0)
    if strata == 1:
        return raw, np.zeros((*n.shape[:-1], 1))
    smooth = (squares + common) / (degrees + 1)
    process = np.clip(smooth * (1 - 4 * smooth), 0.0, None)
    noise = (process / n).mean(-1) * (1 + _TOLD_APART * math.sqrt(2 / (strata - 1)))
    between = ((raw - raw.mean(-1, keepdims=True)) ** 2).sum(-1) / (strata - 1) - noise
    mean_process = process.mean(-1)
    told_apart = between > mean_process / most
    credibility = np.where(told_apart, mean_process / np.where(told_apart, between, 1.0), most)
    k = np.maximum(credibility, prior)[..., None]
    return (squares + k * common) / (degrees + k), k


def estimate(moments: Moments, design: Design, level: float = LEVEL) -> Estimate:
    """The reported number and its interval; scores are in 0..1. See the top of this module for the formula."""
    n, w = moments.n, design.weights
    free = 1 - n / design.sizes  # the finite population correction
    variances, k = shrunk_variances(moments, weights=w)
    parts = w * w * variances / n * free
    variance = parts.sum(-1)
    value = (w * moments.mean).sum(-1)
    t = _student(level, parts, np.maximum(n - 1, 1.0) + k)
    inverse = design.inverse_size(n)
    known = variance > _SMALL
    third = w**3 * moments.cube / n**2 * free * (1 - 2 * n / design.sizes)
    divisor = np.where(known, variance, 1.0)
    slope = np.where(known, third.sum(-1) / divisor, (1 - 2 * value) * inverse)
    bias = np.where(known, _bias(moments, design, variances, free, divisor), 0.0)
    scale = 1 + t * t * inverse
    centre = value + t * t * slope / 2 / scale
    half = t * np.sqrt(np.maximum(variance, 0.0) * scale + t * t * slope * slope / 4) / scale
    sure = np.clip(1 - FEW * slope**2 / divisor, 0.0, 1.0) if n.shape[-1] > 1 else 0.0
    step = np.minimum(FEW * slope**2 / divisor, 1.0) * slope / 2 if n.shape[-1] > 1 else np.zeros_like(value)
    down, up = np.maximum(step, 0.0) * known, np.minimum(step, 0.0) * known
    low = np.minimum(np.maximum(centre + np.where(bias > 0, sure, 1.0) * bias - half - down, 0.0), value)
    high = np.maximum(np.minimum(centre + np.where(bias < 0, sure, 1.0) * bias + half - up, 1.0), value)
    high = np.where(high > 1 - _SMALL, 1.0, high)  # weights add up to 1 but for rounding
    return Estimate(value, low, high, variances)


def _bias(moments: Moments, design: Design, variances: Array, free: Array, variance: Array) -> Array:
    """How far the mean is off, with its sign turned: by when to stop, and by where samples went after the pilot."""
    n, w = moments.n, design.weights
    chosen = n < design.most  # no look has chosen the samples of a stratum that has its most
    later = free * (1 - design.pilot / n) * chosen * moments.cube
    stopping = (w**3 * later / n**2).sum(-1) / variance
    if n.shape[-1] == 1:
        return stopping
    own = np.maximum(n - 1, 0.0)
    share = own / (own + shrunk_variances(moments, _caution(n.shape[-1]), _ALIKE)[1])
    return stopping + (w * share * later / (2 * np.maximum(variances, _LEAST_VARIANCE) * n)).sum(-1)


def _caution(strata: int) -> float:
    """The least number of samples that the common variance counts as for the next round.

    Of many strata, each may be off by little, and their mean by much of its narrow interval: so it grows with them.
    """
    return PRIOR + CAUTION * max(1.0, (strata / 13) ** 2)


def _student(level: float, parts: Array, degrees: Array) -> Array:
    """Student's quantile with Satterthwaite's degrees of freedom, widened; `parts`: each stratum's part of V."""
    total, below = parts.sum(-1), (parts**2 / degrees).sum(-1)
    freedom = np.where(below > 0, total**2 / np.where(below > 0, below, 1.0), 1e9)
    return np.asarray(special.stdtrit(np.clip(freedom, 5.0, 1e9), 0.5 + level / 2)) * INFLATION


def allocation(n: Array, spread: Array, variance: Array, design: Design) -> Array:
    """The fewest samples (..., H), at least `n` and at most the design's, that lower V to `variance`; not rounded.

    `spread`: w_h s_h. Neyman's rule under bounds: n_h = clip(c w_h s_h, n_h, most_h), c by bisection. Where V cannot
    be reached, the most of every stratum.
    """
    within = np.asarray(variance)[...] + (spread**2 / design.sizes).sum(-1)
    low, high = np.full(within.shape, 1e-3), np.full(within.shape, 1e9)
    for _ in range(60):
        middle = np.sqrt(low * high)
        there = np.maximum(n, np.minimum(design.most, middle[..., None] * spread))
        enough = (spread**2 / there).sum(-1) <= within
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.maximum(n, np.minimum(design.most, high[..., None] * spread))


def grown(moments: Moments, design: Design, factor: Array, step: float = STEP) -> Array:
    """The next round's samples (..., H), whole numbers, on the way to `factor` (...) times the present variance.

    At least one sample is added wherever there is one to add.
    """
    n = moments.n
    variances, _ = shrunk_variances(moments, _caution(n.shape[-1]), _ALIKE)
    spread = design.weights * np.sqrt(np.maximum(variances, _LEAST_VARIANCE))
    present = (spread**2 / n * (1 - n / design.sizes)).sum(-1)
    wanted = allocation(n, spread, present * factor, design)
    near = wanted.sum(-1) <= n.sum(-1) * (1 + NEAR)
    part = np.where(near, 1.0, step)[..., None]
    after = np.minimum(design.most, np.ceil(n + part * (wanted - n) - 1e-9))
    stuck = after.sum(-1) <= n.sum(-1)
    return np.where(stuck[..., None], np.minimum(design.most, n + 1), after)


def next_counts(columns: Sequence[ArrayLike], design: Design, target: float) -> list[int] | None:
    """Samples per stratum after the next round; None where the target is reached, or no stratum has any left.

    `columns`: the scores so far, 0..1. `target`: half-width of the 95% interval, 0..1. A function of the scores alone,
    so a run that was killed takes the same decision again.
    """
    moments = Moments.of(columns)
    now = estimate(moments, design)
    if float(now.half) <= target or bool((moments.n >= design.most).all()):
        return None
    return [int(x) for x in grown(moments, design, (target / now.half) ** 2)]


def sequential_interval(columns: Sequence[ArrayLike], design: Design, level: float = LEVEL) -> Interval:
    """The interval of the reported number, 0..1, where the numbers of samples were chosen by looking."""
    if any(column_of(c).size == 0 for c in columns):
        return Interval(math.nan, math.nan, METHOD)
    return estimate(Moments.of(columns), design, level).interval


def half_width(
    deviations: ArrayLike, counts: ArrayLike, design: Design, level: float = LEVEL, *, looked: bool = True
) -> float:
    """The half-width (0..1) to expect of `counts` samples per stratum with these standard deviations; both (H,).

    For a plan before there are samples: without skewness, and with the normal quantile in place of Student's. `looked`:
    whether the samples come in rounds; else their interval is that of a plain count.
    """
    n, s = np.asarray(counts, dtype=np.float64), np.asarray(deviations, dtype=np.float64)
    variance = (design.weights**2 * s**2 / n * (1 - n / design.sizes)).sum()
    wider = INFLATION if looked else 1.0
    return float(special.ndtri(0.5 + level / 2) * wider * np.sqrt(max(float(variance), 0.0)))
