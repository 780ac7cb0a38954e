"""Perplexities over several texts, as lm-eval combines those of its rolling log-likelihood tasks (wikitext, ...).

A text's numbers are exp(-l / w) and -l / w / ln 2, with the log-likelihood l (nats) of the whole text and its words or
bytes w. Over texts, lm-eval (`weighted_perplexity`, `bits_per_byte`) takes the sum of all l over the sum of all w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BITS = "bits_per_byte"
ROLLING = ("word_perplexity", "byte_perplexity", BITS)
"""The metrics. Each is a number of all texts together, and no mean over them."""


def of_text(metric: str, loglikelihood: float, weight: float) -> float:
    """One text's number. Raises OverflowError where a perplexity is beyond the largest number."""
    per_unit = -loglikelihood / weight
    return per_unit / math.log(2) if metric == BITS else math.exp(per_unit)


def combined(metric: str, values: Sequence[float], weights: Sequence[float]) -> float:
    """All texts' number from their own ones. `weights`: words or bytes of each; NaN for no text."""
    total = math.fsum(weights)
    if not total:
        return math.nan
    if metric == BITS:
        return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / total
    return math.exp(math.fsum(w * math.log(v) for v, w in zip(values, weights, strict=True)) / total)
