"""A score over length in one number: RULER's effective length, and the area under the curve."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

RULER_THRESHOLD = 85.6  # Llama-2-7B at 4K, the bar of RULER's "effective length" (Hsieh et al. 2024), on 0-100


def effective_length(curve: Mapping[int, float], threshold: float = RULER_THRESHOLD) -> int | None:
    """RULER's effective context length: the longest evaluated length whose score exceeds `threshold` (both 0-100).

    None where no length does. Lengths with NaN count as not evaluated. As in RULER, a lower score at a shorter
    length does not matter; the curve shows it.
    """
    above = [length for length, score in curve.items() if not math.isnan(score) and score > threshold]
    return max(above, default=None)


def area_under_curve(curve: Mapping[int, float]) -> float:
    """Mean height of the score-length curve over log2(length), by trapezoids: same unit as the scores.

    One length: its score. No length, or any NaN: NaN, because curves over different lengths are not comparable.
    """
    points = sorted(curve.items())
    if not points or any(math.isnan(score) for _, score in points):
        return math.nan
    if len(points) == 1:
        return points[0][1]
    x = np.log2([length for length, _ in points])
    return float(np.trapezoid([score for _, score in points], x) / (x[-1] - x[0]))


def unbroken_length(curve: Mapping[int, float], threshold: float = RULER_THRESHOLD) -> int | None:
    """The longest evaluated length up to which every evaluated length scores above `threshold` (both 0-100).

    None where the shortest does not. Smaller than `effective_length` where the curve dips below the threshold.
    """
    reached = None
    for length, score in sorted(curve.items()):
        if math.isnan(score):
            continue
        if score <= threshold:
            break
        reached = length
    return reached


def length_means(curve: Mapping[int, float]) -> dict[str, float]:
    """RULER's summary figures over n evaluated lengths, in order: average, wAvg (inc), wAvg (dec); unit of the scores.

    "inc" weights the i-th shortest length by i, for use at long lengths; "dec" by n + 1 - i (Hsieh et al. 2024, Table
    3). Any NaN, or no length at all: NaN, because figures over different lengths are not comparable.
    """
    scores = np.array([score for _, score in sorted(curve.items())], dtype=np.float64)
    if not scores.size or np.isnan(scores).any():
        return {"average": math.nan, "wAvg (inc)": math.nan, "wAvg (dec)": math.nan}
    weights = np.arange(1, scores.size + 1)
    return {
        "average": float(scores.mean()),
        "wAvg (inc)": float(np.average(scores, weights=weights)),
        "wAvg (dec)": float(np.average(scores, weights=weights[::-1])),
    }
