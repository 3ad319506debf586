"""Statistics over ensembles against loops over ensembles, exact distributions and closed forms."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp, ttest_rel

from winnow.protocols.statistics import (
    FEWEST_MODELS,
    Scores,
    bootstrap_estimate,
    clip_interval,
    list_ensembles,
    mean_of_members,
    resampled_means,
    student_estimate,
    widening,
)
from winnow.report.claims import Estimate


def models(*runs: int, seed: int = 0) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    return [rng.normal(20 + fold, 0.5, count).tolist() for fold, count in enumerate(runs)]


def test_there_are_81_ensembles_of_one_run_of_each_fold() -> None:
    every = list_ensembles((3, 3, 3, 3))
    assert len(set(every)) == 81
    assert Counter(run for members in every for run in members) == {0: 108, 1: 108, 2: 108}
    assert list_ensembles((2, 1)) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("runs", [(3, 3, 3, 3), (2, 3, 1), (3,)])
def test_means_of_members(runs: tuple[int, ...]) -> None:
    values = models(*runs)
    made = mean_of_members(values)
    for members in list_ensembles(runs):
        assert made[members] == pytest.approx(sum(fold[r] for fold, r in zip(values, members, strict=True)) / len(runs))


def slow_resampled(values: np.ndarray, drawn: list[tuple[int, ...]]) -> float:
    """Average over all ensembles of the drawn models, including repeated ones."""
    return float(np.mean([values[members] for members in itertools.product(*drawn)]))


def test_draws_have_the_exact_distribution() -> None:
    """All 27 x 4 draws of 2 folds with 3 and 2 runs, also for values that are no sums of two terms."""
    values = np.random.default_rng(3).normal(size=(3, 2))
    every = [
        slow_resampled(values, [a, b])
        for a in itertools.product(range(3), repeat=3)
        for b in itertools.product(range(2), repeat=2)
    ]
    exact = Counter(np.round(every, 9))
    drawn = Counter(np.round(resampled_means(values, draws=40_000, seed=1), 9))
    assert set(drawn) == set(exact)
    for value, count in exact.items():
        assert drawn[value] / 40_000 == pytest.approx(count / len(every), abs=0.01)


def test_the_interval_has_the_width_of_the_known_variance() -> None:
    """The variance of means of members is known: sum_f s_f^2 / (R F^2)."""
    values = models(3, 3, 3, 3)
    known = sum(np.var(fold, ddof=1) / 3 for fold in values) / 16
    means = mean_of_members(values)
    assert 3 / 2 * resampled_means(means).var() == pytest.approx(known, rel=0.05)
    found = bootstrap_estimate(means)
    assert found.mean == pytest.approx(np.mean([np.mean(fold) for fold in values]))
    assert found.std == pytest.approx(np.sqrt(sum(np.var(fold) for fold in values)) / 4)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.mean < found.high
    # Of four folds with three runs eight degrees of freedom are left.
    assert (found.high - found.low) / 2 == pytest.approx(t.ppf(0.975, 8) * np.sqrt(known), rel=0.1)


def covers(found: Estimate, truth: float) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


@pytest.mark.parametrize("runs", [(3,), (2, 2, 2, 2), (3, 3, 3, 3)])
def test_the_interval_covers_the_truth_as_often_as_its_level(runs: tuple[int, ...]) -> None:
    """Without Student's quantile it is 0.78, 0.86 and 0.92; with 81 ensembles taken for independent 0.23."""
    truth = 20 + (len(runs) - 1) / 2
    found = (
        bootstrap_estimate(mean_of_members(models(*runs, seed=seed)), draws=500, seed=seed) for seed in range(1000)
    )
    assert 0.92 <= np.mean([covers(one, truth) for one in found]) <= 0.98


@pytest.mark.parametrize("runs", [(3,), (2, 2, 2, 2), (3, 3, 3, 3)])
def test_the_interval_of_paired_differences_covers_it_too(runs: tuple[int, ...]) -> None:
    """The effect of fold and seed, ten times the difference of the methods, cancels."""

    def differences(seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        base = [rng.normal(20, 5, count) for count in runs]
        better = [fold + rng.normal(0.7, 0.5, len(fold)) for fold in base]
        return mean_of_members([b.tolist() for b in better]) - mean_of_members([b.tolist() for b in base])

    found = [bootstrap_estimate(differences(seed), draws=500, seed=seed) for seed in range(1000)]
    assert 0.92 <= np.mean([covers(one, 0.7) for one in found]) <= 0.98
    assert np.mean([one.high - one.low for one in found]) < 5  # type: ignore[operator]


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_widening_is_a_ratio_of_closed_forms(level: float) -> None:
    """With one and two degrees of freedom Student's quantile has a closed form; with many it is the normal one."""
    p = (1 + level) / 2
    assert widening(level, 1) * NormalDist().inv_cdf(p) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-12)
    closed = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    assert widening(level, 2) * NormalDist().inv_cdf(p) == pytest.approx(closed, rel=1e-12)
    assert widening(level, 10**7) == pytest.approx(1, abs=1e-6)
    assert all(widening(level, few) > widening(level, few + 1) > 1 for few in range(1, 12))


def test_few_runs_have_no_interval_and_a_single_one_no_deviation() -> None:
    found = bootstrap_estimate(mean_of_members(models(1, 3)))
    assert (found.std, found.low, found.high) == (None, None, None)
    assert bootstrap_estimate(mean_of_members(models(1))).std is None
    two = bootstrap_estimate(mean_of_members(models(2)))  # one degree of freedom: an interval would be 12.7 errors wide
    assert two.std is not None
    assert two.std > 0
    assert (two.low, two.high) == (None, None)
    assert bootstrap_estimate(mean_of_members(models(2, 2))).low is not None


def test_an_interval_is_clipped_to_possible_values() -> None:
    found = clip_interval(bootstrap_estimate(np.array([99.0, 99.9, 97.0])), 0, 100)
    assert found.high == 100
    assert found.low is not None
    assert 0 < found.low < found.mean
    assert clip_interval(Estimate(1.0, 0.0, -3.0, 5.0), 0, 100) == Estimate(1.0, 0.0, 0.0, 5.0)
    assert clip_interval(Estimate(1.0), 0, 100) == Estimate(1.0)


def test_an_estimate_counts_models() -> None:
    assert bootstrap_estimate(mean_of_members(models(3, 2, 1))).n == 6
    assert bootstrap_estimate(mean_of_members(models(3, 3))).n == 6


def test_draws_are_a_function_of_the_seed() -> None:
    values = mean_of_members(models(3, 3))
    assert np.array_equal(resampled_means(values, seed=5), resampled_means(values, seed=5))
    assert not np.array_equal(resampled_means(values, seed=5), resampled_means(values, seed=6))


# Student's interval of single models


@pytest.mark.parametrize("folds", [4, 5, 9])
def test_one_run_of_each_fold_has_the_interval_of_a_t_test(folds: int) -> None:
    values = models(*[1] * folds)
    found = Scores.of_members(values).estimate()
    wanted = ttest_1samp(np.ravel(values), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-12)
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.n, found.interval, found.std) == (folds, "student", None)


def test_paired_differences_have_the_interval_of_a_paired_t_test() -> None:
    ours, theirs = models(1, 1, 1, 1), models(1, 1, 1, 1, seed=1)
    found = Scores.of_members(ours).minus(Scores.of_members(theirs)).estimate()
    wanted = ttest_rel(np.ravel(ours), np.ravel(theirs)).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-12)


def test_unequal_folds_are_centered_at_the_mean_over_ensembles() -> None:
    values = models(3, 1, 2, 1)
    found = Scores.of_members(values).estimate()
    assert found.mean == pytest.approx(float(mean_of_members(values).mean()), rel=1e-12)
    assert found.low is not None
    assert found.high is not None
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    # The variance of the mean of four fold means, of 3, 1, 2, and 1 independent values.
    error = np.std(np.concatenate(values), ddof=1) * np.sqrt(1 / 3 + 1 + 1 / 2 + 1) / 4
    assert found.high - found.mean == pytest.approx(t.ppf(0.975, 6) * error, rel=1e-12)


@pytest.mark.parametrize("runs", [(1, 1, 1, 1), (3, 1, 2, 1)])
def test_the_interval_of_single_models_covers_the_truth_as_often_as_its_level(runs: tuple[int, ...]) -> None:
    def members(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [rng.normal(0.7, 0.5, count) for count in runs]

    assert 0.93 <= np.mean([covers(student_estimate(members(seed)), 0.7) for seed in range(2000)]) <= 0.97


def test_the_method_follows_from_the_runs_of_each_fold() -> None:
    bootstrap = Scores.of_members(models(2, 2, 2, 2))
    assert bootstrap.estimate() == bootstrap_estimate(bootstrap.ensembles)
    assert bootstrap.estimate().interval == "bootstrap"
    assert Scores.of_members(models(3)).estimate().interval == "bootstrap"
    few = Scores.of_members(models(*[1] * (FEWEST_MODELS - 1))).estimate()
    assert (few.low, few.high, few.interval) == (None, None, None)
    concatenated = Scores(np.full((1, 1, 1, 1), 25.0)).estimate()  # one ensemble
    assert (concatenated.mean, concatenated.low, concatenated.interval, concatenated.n) == (25.0, None, None, 4)
