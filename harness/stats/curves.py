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
