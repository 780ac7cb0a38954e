"""Statistics over checkpoints: against scipy, against enumeration and resampling, and at their edges."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.stats

from harness import stats
from tests.support import ROOT

RNG = np.random.default_rng


def test_the_example_of_the_documentation() -> None:
    """docs/statistics.md computes these numbers by hand."""
    base, gate = [0.60, 0.64, 0.62], [0.66, 0.72, 0.69]
    found = stats.welch(base, gate)
    assert found.difference == pytest.approx(0.07)
    assert found.error == pytest.approx(0.020817, abs=1e-6)
    assert found.df == pytest.approx(3.4845, abs=1e-4)
    assert found.p == pytest.approx(0.03484, abs=1e-5)
    interval = stats.welch_interval(base, gate)
    assert (interval.low, interval.high) == pytest.approx((0.00867, 0.13133), abs=1e-5)
    assert stats.checkpoint_permutation(base, gate) == pytest.approx(0.1)
    assert (stats.spread(base), stats.spread(gate)) == pytest.approx((0.02, 0.03))
    assert stats.recipe_p(base, gate, 0.05) == (pytest.approx(found.p), "Welch t")


@pytest.mark.parametrize(("a", "b"), [(2, 2), (3, 3), (5, 5), (4, 5)])
def test_welch_is_scipys(a: int, b: int) -> None:
    x, y = RNG(a).normal(0.6, 0.05, a), RNG(b + 10).normal(0.7, 0.05, b)
    theirs = scipy.stats.ttest_ind(y, x, equal_var=False)
    ours = stats.welch(x, y)
    bounded = min(theirs.df, 2 * (min(a, b) - 1))
    assert ours.df == pytest.approx(bounded)
    assert ours.p == pytest.approx(2 * scipy.stats.t.sf(abs(theirs.statistic), bounded))
    half = scipy.stats.t.ppf(0.975, bounded) * ours.error
    assert stats.welch_interval(x, y)[:2] == pytest.approx((ours.difference - half, ours.difference + half))


def test_degrees_of_freedom_are_bounded_by_the_smaller_arm() -> None:
    """Without the bound, 2 checkpoints against 5 reject more than 5% of true null hypotheses."""
    rng = RNG(1)
    x, y = rng.normal(0, 2, (4000, 2)), rng.normal(0, 1, (4000, 5))
    ours = np.mean([stats.welch(a, b).p < 0.05 for a, b in zip(x, y, strict=True)])
    unbounded = np.mean(scipy.stats.ttest_ind(x, y, axis=1, equal_var=False).pvalue < 0.05)
    assert ours < 0.06 < unbounded


@pytest.mark.parametrize(("a", "b"), [(2, 2), (2, 3), (3, 3), (4, 4), (5, 5)])
def test_the_permutation_is_scipys_and_has_its_floor(a: int, b: int) -> None:
    x, y = RNG(7).random(a), RNG(8).random(b)
    theirs = scipy.stats.permutation_test(
        (x, y), lambda s, t, axis: np.abs(t.mean(axis) - s.mean(axis)), alternative="greater", n_resamples=math.inf,
        vectorized=True,
    )  # fmt: skip
    assert stats.checkpoint_permutation(x, y) == pytest.approx(theirs.pvalue)
    assert stats.checkpoint_permutation(x, x.mean() + 10 + y) == pytest.approx(stats.permutation_floor(a, b))


def test_which_test_decides_depends_on_numbers_of_checkpoints_alone() -> None:
    rng = RNG(3)
    for (a, b), level, name in [
        ((2, 2), 0.05, "Welch t"),
        ((3, 3), 0.05, "Welch t"),
        ((4, 4), 0.05, "permutation of checkpoints"),
        ((4, 4), 0.05 / 2, "Welch t"),
        ((5, 5), 0.05 / 6, "permutation of checkpoints"),
        ((5, 5), 0.05 / 7, "Welch t"),
        ((2, 5), 0.05, "permutation of checkpoints"),
        ((12, 12), 0.05, "Welch t"),  # too many splits, and large enough for t
    ]:
        for _ in range(3):
            assert stats.recipe_p(rng.random(a), rng.random(b), level)[1] == name


def test_checkpoints_that_do_not_differ_prove_nothing() -> None:
    """t is infinite: two arms of two equal checkpoints are not significant."""
    p, test = stats.recipe_p([0.9, 0.9], [1.0, 1.0], 0.05)
    assert (p, test) == (pytest.approx(1 / 3), "permutation of checkpoints")
    assert math.isnan(stats.welch([0.9, 0.9], [1.0, 1.0]).p)
    assert stats.recipe_p([0.9, 0.9], [0.9, 0.9], 0.05)[0] == 1.0
    assert math.isnan(stats.welch_interval([0.9, 0.9], [1.0, 1.0]).low)
    assert math.isnan(stats.recipe_detectable([0.9, 0.9], [1.0, 1.0]))


def test_one_checkpoint_says_nothing_about_its_recipe() -> None:
    assert math.isnan(stats.welch([0.5], [0.4, 0.6]).p)
    assert math.isnan(stats.spread([0.5]))
    assert math.isnan(stats.arm_interval([0.5]).low)
    assert math.isnan(stats.hierarchical_interval([np.ones((1, 4))], [np.ones((2, 4))]).low)
    with pytest.raises(ValueError, match="without checkpoints"):
        stats.welch([], [0.5])


def test_an_arms_interval_is_students_and_stays_on_the_scale() -> None:
    means = [0.90, 0.99, 0.95]
    low, high, _ = stats.arm_interval(means)
    theirs = scipy.stats.t.interval(0.95, 2, np.mean(means), scipy.stats.sem(means))
    assert low == pytest.approx(theirs[0])
    assert theirs[1] > 1 == high


def resampled_sd(a: list[np.ndarray], b: list[np.ndarray], draws: int, seed: int) -> float:
    """The standard deviation of the difference over resamples of K - 1 checkpoints and n - 1 samples."""
    rng, found = RNG(seed), []
    for _ in range(draws):
        rows = [rng.integers(0, arm[0].shape[0], arm[0].shape[0] - 1) for arm in (a, b)]
        total = 0.0
        for left, right in zip(a, b, strict=True):
            columns = rng.integers(0, left.shape[1], left.shape[1] - 1)
            total += right[rows[1]][:, columns].mean() - left[rows[0]][:, columns].mean()
        found.append(total / len(a))
    return float(np.std(found, ddof=1))


@pytest.mark.parametrize(("a", "b"), [(2, 2), (3, 4)])
def test_the_closed_form_is_the_hierarchical_bootstraps_variance(a: int, b: int) -> None:
    rng = RNG(11)
    skill = rng.normal(0, 0.1, a + b)
    strata = [(rng.random((a + b, n)) < (0.7 + skill)[:, None] + rng.normal(0, 0.2, n)).astype(float) for n in (12, 30)]
    arms = [s[:a] for s in strata], [s[a:] for s in strata]
    means = [np.mean([s.mean(axis=1) for s in arm], axis=0) for arm in arms]
    interval = stats.hierarchical_interval(*arms)
    quantile = scipy.stats.t.ppf(0.975, stats.welch(*means).df)
    ours = (interval.high - interval.low) / 2 / quantile
    assert ours == pytest.approx(resampled_sd(*arms, draws=20_000, seed=5), rel=0.03)
    assert interval.low <= stats.welch_interval(*means).low, "other samples can only widen it"


def test_a_wider_spread_of_seeds_needs_a_larger_difference() -> None:
    near, far = ([0.5, 0.51, 0.52], [0.5, 0.51, 0.52]), ([0.4, 0.5, 0.6], [0.4, 0.5, 0.6])
    small, large = stats.recipe_detectable(*near), stats.recipe_detectable(*far)
    assert 0 < small < large
    assert stats.recipe_detectable(*near, level=0.995) > small
    assert stats.recipe_detectable([0.0, 1.0], [0.0, 1.0]) == 1.0


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """bench/arms.py as a module."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        spec = importlib.util.spec_from_file_location("bench_arms", Path(ROOT / "bench/arms.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "bench"))
    return module


def test_tests_by_sample_cry_wolf_where_seeds_differ(bench: ModuleType) -> None:
    same = bench.normal(0.15)
    found = bench.rates((3, 3), (same, same), 60, 60, seed=0)
    assert found["files"] > 0.15
    assert found["recipe"] <= 0.1
    assert found["permutation"] == 0.0, "3 against 3 cannot reach 5%"


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (4, 4), (5, 5), (2, 5), (3, 4)])
def test_false_positives_about_recipes_stay_below_five_percent(bench: ModuleType, sizes: tuple[int, int]) -> None:
    """500 simulated comparisons of arms whose recipes do not differ; 5% + 2 standard errors is 7%."""
    same = bench.normal(0.15)
    found = bench.rates(sizes, (same, same), 500, 60, seed=sum(sizes))
    assert found["recipe"] <= 0.07
    assert found["bootstrap"] <= 0.07
    assert found["family"] <= 0.02
    assert min(found["files"], found["single"]) > 0.15


def test_the_hierarchical_example_of_the_documentation() -> None:
    base, gate = np.array([[1.0, 1, 0, 1], [1, 0, 0, 1]]), np.array([[1.0, 1, 1, 1], [1, 1, 0, 1]])
    interval = stats.hierarchical_interval([base], [gate])
    half = 4.302653 * math.sqrt(0.03125 + 0.08333333 / 4 + 2 * 0.046875 / 3)
    assert (interval.low, interval.high) == pytest.approx((0.25 - half, 0.25 + half), abs=1e-6)
