"""The scales of a probe's histograms: gate values, and the absolute values of the attention output on a logarithmic
scale.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

THRESHOLDS = (1e-2, 1e-3)
"""A value of the attention output counts as small below these, in absolute value."""
GATE_BINS = 50
LOW_GATE = 0.1
OCTAVE = 32
"""Bins to a factor of two: each is 2.2 % wide."""
LOWEST = -40
"""log2 of the smallest absolute value that has a bin of its own; the first bin holds all smaller ones, zeros too."""
BINS = (20 - LOWEST) * OCTAVE


def share_below(histogram: ArrayLike, threshold: float) -> float:
    """The share of values below `threshold`, from counts per bin; linear within a bin."""
    counts = np.asarray(histogram, dtype=np.float64)
    if threshold <= 0 or not counts.sum():
        return 0.0
    at = (math.log2(threshold) - LOWEST) * OCTAVE
    full = min(max(int(at), 0), BINS)
    below = counts[:full].sum()
    if 0 <= at < BINS:
        below += (at - full) * counts[full]
    return float(below / counts.sum())
