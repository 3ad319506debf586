"""Statistics over ensembles against loops over ensembles, exact distributions and closed forms."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm, t

from winnow.protocols.statistics import Spread, ensembles, mean_of_members, resampled_means, spread
from winnow.protocols.student import student_quantile, widening


def models(*runs: int, seed: int = 0) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    return [rng.normal(20 + fold, 0.5, count).tolist() for fold, count in enumerate(runs)]


def test_there_are_81_ensembles_of_one_run_of_each_fold() -> None:
    every = ensembles((3, 3, 3, 3))
    assert len(set(every)) == 81
    assert Counter(run for members in every for run in members) == {0: 108, 1: 108, 2: 108}
    assert ensembles((2, 1)) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("runs", [(3, 3, 3, 3), (2, 3, 1), (3,)])
def test_means_of_members(runs: tuple[int, ...]) -> None:
    values = models(*runs)
    made = mean_of_members(values)
    for members in ensembles(runs):
        assert made[members] == pytest.approx(sum(fold[r] for fold, r in zip(values, members, strict=True)) / len(runs))


def slow_resampled(values: np.ndarray, drawn: list[tuple[int, ...]]) -> float:
    """Average over all ensembles of the drawn models, repeats and all."""
    return float(np.mean([values[members] for members in itertools.product(*drawn)]))


def test_draws_have_the_exact_distribution() -> None:
    """Of 2 folds with 3 and 2 runs all 27 x 4 draws can be written down, also for values that are no sums."""
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


def test_the_interval_has_the_width_that_the_models_give() -> None:
    """For means of members the variance is known: of each fold's runs, sum s_f^2 / (R F^2)."""
    values = models(3, 3, 3, 3)
    known = sum(np.var(fold, ddof=1) / 3 for fold in values) / 16
    means = mean_of_members(values)
    assert 3 / 2 * resampled_means(means).var() == pytest.approx(known, rel=0.05)
    found = spread(means)
    assert found.mean == pytest.approx(np.mean([np.mean(fold) for fold in values]))
    assert found.std == pytest.approx(np.sqrt(sum(np.var(fold) for fold in values)) / 4)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.mean < found.high
    # Of four folds with three runs eight degrees of freedom are left.
    assert (found.high - found.low) / 2 == pytest.approx(t.ppf(0.975, 8) * np.sqrt(known), rel=0.1)


def holds(found: Spread, truth: float) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


@pytest.mark.parametrize("runs", [(3,), (2, 2, 2, 2), (3, 3, 3, 3)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(runs: tuple[int, ...]) -> None:
    """Without Student's quantile it is 0.78, 0.86 and 0.92; with 81 ensembles taken for independent 0.23."""
    truth = 20 + (len(runs) - 1) / 2
    found = (spread(mean_of_members(models(*runs, seed=seed)), draws=500, seed=seed) for seed in range(1000))
    assert 0.92 <= np.mean([holds(one, truth) for one in found]) <= 0.98


@pytest.mark.parametrize("runs", [(3,), (2, 2, 2, 2), (3, 3, 3, 3)])
def test_the_interval_of_paired_differences_does_too(runs: tuple[int, ...]) -> None:
    """What two methods share in a fold and a seed cancels: it is ten times what they differ by."""

    def differences(seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        base = [rng.normal(20, 5, count) for count in runs]
        better = [fold + rng.normal(0.7, 0.5, len(fold)) for fold in base]
        return mean_of_members([b.tolist() for b in better]) - mean_of_members([b.tolist() for b in base])

    found = [spread(differences(seed), draws=500, seed=seed) for seed in range(1000)]
    assert 0.92 <= np.mean([holds(one, 0.7) for one in found]) <= 0.98
    assert np.mean([one.high - one.low for one in found]) < 5  # type: ignore[operator]


def test_students_quantiles_are_scipys() -> None:
    for level in (0.5, 0.9, 0.95, 0.99):
        for freedom in (*range(1, 12), 50, 101):
            wanted = t.ppf((1 + level) / 2, freedom)
            assert student_quantile(level, freedom) == pytest.approx(wanted, rel=1e-10)
            assert widening(level, freedom) == pytest.approx(wanted / norm.ppf((1 + level) / 2), rel=1e-9)


def test_few_runs_have_no_interval_and_a_single_one_no_deviation() -> None:
    found = spread(mean_of_members(models(1, 3)))
    assert (found.std, found.low, found.high) == (None, None, None)
    assert spread(mean_of_members(models(1))).std is None
    two = spread(mean_of_members(models(2)))  # one degree of freedom: an interval would be 12.7 errors wide
    assert two.std is not None
    assert two.std > 0
    assert (two.low, two.high) == (None, None)
    assert spread(mean_of_members(models(2, 2))).low is not None


def test_an_interval_is_cut_to_what_there_can_be() -> None:
    found = spread(np.array([99.0, 99.9, 97.0])).within(0, 100)
    assert found.high == 100
    assert found.low is not None
    assert 0 < found.low < found.mean
    assert Spread(1.0, 0.0, -3.0, 5.0).within(0, 100) == Spread(1.0, 0.0, 0.0, 5.0)
    assert Spread(1.0, None, None, None).within(0, 100) == Spread(1.0, None, None, None)


def test_draws_are_a_function_of_the_seed() -> None:
    values = mean_of_members(models(3, 3))
    assert np.array_equal(resampled_means(values, seed=5), resampled_means(values, seed=5))
    assert not np.array_equal(resampled_means(values, seed=5), resampled_means(values, seed=6))
