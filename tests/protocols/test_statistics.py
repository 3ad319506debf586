"""Statistics over ensembles against loops over ensembles, exact distributions and closed forms."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from winnow.protocols.statistics import ensembles, mean_of_members, resampled_means, spread


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
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * np.sqrt(known), rel=0.1)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(300):
        found = spread(mean_of_members(models(3, 3, 3, 3, seed=seed)), draws=500, seed=seed)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 21.5 <= found.high
    # In the long run 0.91: the width comes from twelve models. The mean ± 1.96 errors by 81 ensembles holds it in 0.23.
    assert 0.86 <= hits / 300 <= 0.98


def test_pairs_cancel_what_folds_and_seeds_share() -> None:
    a = mean_of_members(models(3, 3, 3, 3))
    better = spread(a + 1.0 - a)
    assert (better.mean, better.std, better.low, better.high) == pytest.approx((1.0, 0.0, 1.0, 1.0))


def test_a_single_run_has_no_interval() -> None:
    found = spread(mean_of_members(models(1, 3)))
    assert (found.low, found.high) == (None, None)
    assert spread(mean_of_members(models(1))).std == 0


def test_draws_are_a_function_of_the_seed() -> None:
    values = mean_of_members(models(3, 3))
    assert np.array_equal(resampled_means(values, seed=5), resampled_means(values, seed=5))
    assert not np.array_equal(resampled_means(values, seed=5), resampled_means(values, seed=6))
