"""Intervals and paired tests, pure numpy/scipy.

Scores are per-sample numbers in 0..1; every function works on that scale. They rest on two facts:

* A sample mean resampled with replacement depends only on how often each *distinct* value is drawn. Scores have few
  distinct values (0 and 1; fifths; tenths), so a bootstrap draws multinomial counts over values instead of indices:
  the same distribution exactly, hundreds of times faster. Sign-flip permutations likewise draw binomials per |value|.
* Both models answer the same samples, so differences are taken per sample first.

Everything random takes a seed and is deterministic: the same run gives the same table, byte for byte.
"""

from harness.stats.arms import (
    Welch,
    arm_interval,
    assignments,
    checkpoint_permutation,
    hierarchical_interval,
    permutation_floor,
    recipe_detectable,
    recipe_p,
    spread,
    welch,
    welch_interval,
)
from harness.stats.curves import RULER_THRESHOLD, area_under_curve, effective_length, length_means, unbroken_length
from harness.stats.intervals import (
    LEVEL,
    RESAMPLES,
    SEED,
    Interval,
    bootstrap_mean,
    clustered_interval,
    is_binary,
    mean_interval,
    stratified_interval,
    wilson,
)
from harness.stats.paired import (
    Discordance,
    binomial_tail,
    discordance,
    holm,
    mcnemar,
    mean_difference,
    minimum_detectable_difference,
    paired_differences,
    paired_interval,
    paired_p,
    permutation_test,
)

__all__ = [
    "LEVEL",
    "RESAMPLES",
    "RULER_THRESHOLD",
    "SEED",
    "Discordance",
    "Interval",
    "Welch",
    "area_under_curve",
    "arm_interval",
    "assignments",
    "binomial_tail",
    "bootstrap_mean",
    "checkpoint_permutation",
    "clustered_interval",
    "discordance",
    "effective_length",
    "hierarchical_interval",
    "holm",
    "is_binary",
    "length_means",
    "mcnemar",
    "mean_difference",
    "mean_interval",
    "minimum_detectable_difference",
    "paired_differences",
    "paired_interval",
    "paired_p",
    "permutation_floor",
    "permutation_test",
    "recipe_detectable",
    "recipe_p",
    "spread",
    "stratified_interval",
    "unbroken_length",
    "welch",
    "welch_interval",
    "wilson",
]
