"""Means and intervals over the models behind many ensembles: pure functions of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from winnow.report.claims import LEVEL, Estimate, student_quantile

Values = NDArray[np.float64]

DRAWS = 10_000
"""Draws of the bootstrap."""
FEWEST_MODELS = 4
"""Fewest models of several folds that have an interval and, paired, decide a claim."""


@dataclass(frozen=True)
class Scores:
    """Values of every ensemble and, where a metric has them, of the single models by fold.

    Concatenated embeddings have a value for each ensemble only.
    """

    ensembles: Values
    members: tuple[Values, ...] = ()

    @classmethod
    def of_members(cls, values: Sequence[Sequence[float]]) -> Scores:
        """Return the scores of an ensemble's mean member from the values of the runs of each fold."""
        return cls(mean_of_members(values), tuple(np.asarray(fold, dtype=np.float64) for fold in values))

    def minus(self, other: Scores) -> Scores:
        """Return the paired differences from the scores of other models of the same folds and runs."""
        members = tuple(own - their for own, their in zip(self.members, other.members, strict=True))
        return Scores(self.ensembles - other.ensembles, members)

    def estimate(self) -> Estimate:
        """Return the mean with a bootstrap interval, or Student's where a fold has fewer than two runs."""
        counts = [len(fold) for fold in self.members]
        if counts and min(counts) < 2 and sum(counts) >= FEWEST_MODELS:
            return student_estimate(self.members)
        return bootstrap_estimate(self.ensembles)


def list_ensembles(runs: Sequence[int]) -> list[tuple[int, ...]]:
    """Return every choice of one run from each fold; `runs` has the number of runs, such as (3, 3, 3, 3) for 81."""
    return list(product(*(range(count) for count in runs)))


def mean_of_members(values: Sequence[Sequence[float]]) -> Values:
    r"""Return the mean of the members' values for every ensemble.

    $$A_{r_1 \dots r_F} = \frac1F \sum_f v_{f r_f}$$

    Args:
        values: Values of the runs of each fold.
    """
    folds = [np.asarray(fold, dtype=np.float64) for fold in values]
    total = np.zeros(tuple(len(fold) for fold in folds))
    for axis, fold in enumerate(folds):
        total += fold.reshape([-1 if other == axis else 1 for other in range(len(folds))])
    return total / len(folds)


def resampled_means(values: Values, *, draws: int = DRAWS, seed: int = 0) -> Values:
    r"""Return means over ensembles of resampled models: in each fold as many runs as it has, with replacement.

    With $w_{fr}$ the fraction of run $r$ among those drawn in fold $f$, the mean over the ensembles of the drawn models
    is

    $$\theta^* = \sum_{r_1 \dots r_F} A_{r_1 \dots r_F} \prod_f w_{f r_f}$$

    Args:
        values: A, with an axis for each fold.
        draws: Number of draws.
        seed: Seed of the draws.

    Returns:
        (draws,) values of theta*.
    """
    rng = np.random.default_rng(seed)
    means = np.broadcast_to(values, (draws, *values.shape))
    for count in values.shape:
        fractions = rng.multinomial(count, np.full(count, 1 / count), size=draws) / count
        means = np.einsum("br,br...->b...", fractions, means)
    return np.asarray(means)


def bootstrap_estimate(values: Values, *, level: float = LEVEL, draws: int = DRAWS, seed: int = 0) -> Estimate:
    r"""Return the mean over ensembles with a bootstrap interval over models.

    Two corrections widen the interval. Drawing $R$ of $R$ runs underestimates the variance by $(R - 1) / R$. And a
    variance that comes from few runs is itself uncertain, with $\nu$ degrees of freedom, so Student's quantile $t$
    replaces the normal one, $z$:

    $$\big[\theta + c\,(\theta^*_{\alpha/2} - \theta),\; \theta + c\,(\theta^*_{1-\alpha/2} - \theta)\big],
      \qquad c = \sqrt{\frac{R}{R - 1}} \; \frac{t_{\nu,\, 1-\alpha/2}}{z_{1-\alpha/2}},
      \qquad \nu = \sum_f (R_f - 1)$$

    with $R$ the fewest runs of a fold. The interval is missing if a fold has a single run, or if $\nu$ is 1.

    The standard deviation is over the ensembles, dividing by their number, as [Thesis] reports it. It is no standard
    error, because ensembles share models. It is missing if a fold has a single run.

    Reference: Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 2015 (small
    samples).

    Args:
        values: Value of every ensemble, with an axis for each fold; for a paired comparison the differences.
        level: Confidence level.
        draws: Number of draws.
        seed: Seed of the draws.

    Returns:
        The estimate; `n` is the number of models.
    """
    mean, fewest = float(values.mean()), min(values.shape, default=1)
    std = float(values.std()) if fewest > 1 else None
    freedom = sum(count - 1 for count in values.shape)
    if fewest < 2 or freedom < 2:
        return Estimate(mean, std, n=sum(values.shape))
    tail = (1 - level) / 2
    bounds = np.quantile(resampled_means(values, draws=draws, seed=seed), [tail, 1 - tail])
    factor = np.sqrt(fewest / (fewest - 1)) * widening(level, freedom)
    low, high = (mean + factor * (bounds - mean)).tolist()
    return Estimate(mean, std, low, high, sum(values.shape), "bootstrap")


def student_estimate(members: Sequence[Values], *, level: float = LEVEL) -> Estimate:
    r"""Return the mean over ensembles of single models with Student's interval over the models.

    With $n$ models in $F$ folds, $R_f$ of them in fold $f$, the mean is $\theta = \frac1F \sum_f \bar v_f$, and

    $$\theta \pm t_{n-1,\,1-\alpha/2} \; s \sqrt{\sum_f \frac{1}{F^2 R_f}}$$

    $s$ is the sample standard deviation of all $n$ values. With one run of each fold this is the interval of a mean of
    $n$ values, $\pm t \, s / \sqrt n$. It includes the differences of folds, which the bootstrap does not.

    Args:
        members: Values of the runs of each fold; for a paired comparison the differences.
        level: Confidence level.

    Returns:
        The estimate; `n` is the number of models. As with the bootstrap, there is no standard deviation over ensembles
        if a fold has a single run.
    """
    values = np.concatenate(list(members))
    mean = float(np.mean([fold.mean() for fold in members]))
    error = float(values.std(ddof=1)) * math.sqrt(sum(1 / len(fold) for fold in members)) / len(members)
    half = student_quantile(len(values) - 1, level) * error
    return Estimate(mean, None, mean - half, mean + half, len(values), "student")


def widening(level: float, freedom: int) -> float:
    """Return the ratio of Student's to the normal interval: 2.2 for 95% and 2 degrees of freedom, then less."""
    from scipy.stats import norm

    return student_quantile(freedom, level) / float(norm.ppf((1 + level) / 2))


def clip_interval(estimate: Estimate, least: float, most: float) -> Estimate:
    """Return an estimate whose interval is clipped to the possible values."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(estimate.low, least), high=min(estimate.high, most))
