"""Statistics over models that stand behind many ensembles: pure functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from winnow.protocols.student import widening

Values = NDArray[np.float64]

DRAWS = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """A mean over ensembles, and how sure it is.

    Attributes:
        mean: Over all ensembles.
        std: Over all ensembles, dividing by their number, as the documents report it; ensembles share models, so that
            this says little about how sure the mean is. None where a fold has a single run, which all of them share.
        low: Lower end of the interval that goes by the models; None where a fold has a single run, or a single fold
            two.
        high: Its upper end.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None

    def within(self, least: float, most: float) -> Spread:
        """Cut the interval to the values that there can be."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, least), high=min(self.high, most))


def ensembles(runs: Sequence[int]) -> list[tuple[int, ...]]:
    """Return every choice of one run from each fold; `runs` are the numbers of runs, such as (3, 3, 3, 3) for 81."""
    return list(product(*(range(count) for count in runs)))


def mean_of_members(values: Sequence[Sequence[float]]) -> Values:
    r"""Return the mean of the members' values for every ensemble.

    $$A_{r_1 \dots r_F} = \frac1F \sum_f v_{f r_f}$$

    Args:
        values: Of each fold, those of its runs.
    """
    folds = [np.asarray(fold, dtype=np.float64) for fold in values]
    total = np.zeros(tuple(len(fold) for fold in folds))
    for axis, fold in enumerate(folds):
        total += fold.reshape([-1 if other == axis else 1 for other in range(len(folds))])
    return total / len(folds)


def resampled_means(values: Values, *, draws: int = DRAWS, seed: int = 0) -> Values:
    r"""Return means over ensembles of models that were drawn anew: in each fold as many runs as it has, with repeats.

    With $w_{fr}$ the share of run $r$ among those drawn in fold $f$, the mean over the ensembles of the drawn models is

    $$\theta^* = \sum_{r_1 \dots r_F} A_{r_1 \dots r_F} \prod_f w_{f r_f}$$

    Args:
        values: A, of every ensemble; an axis for each fold.
        draws: How many.
        seed: Of the draws.

    Returns:
        (draws,) values of theta*.
    """
    rng = np.random.default_rng(seed)
    means = np.broadcast_to(values, (draws, *values.shape))
    for count in values.shape:
        shares = rng.multinomial(count, np.full(count, 1 / count), size=draws) / count
        means = np.einsum("br,br...->b...", shares, means)
    return np.asarray(means)


def spread(values: Values, *, level: float = LEVEL, draws: int = DRAWS, seed: int = 0) -> Spread:
    r"""Summarise the values of all ensembles.

    The interval is the bootstrap's over models, and two things are put right. Drawing $R$ of $R$ runs finds too small a
    variance, by $(R - 1) / R$ (with three runs a third is missing). And that variance is itself known from a few runs
    only, with $\nu$ degrees of freedom, for which Student's quantile $t$ stands in the place of the normal one, $z$:

    $$\big[\theta + c\,(\theta^*_{\alpha/2} - \theta),\; \theta + c\,(\theta^*_{1-\alpha/2} - \theta)\big],
      \qquad c = \sqrt{\frac{R}{R - 1}} \; \frac{t_{\nu,\, 1-\alpha/2}}{z_{1-\alpha/2}},
      \qquad \nu = \sum_f (R_f - 1)$$

    with $R$ the fewest runs of a fold. One degree of freedom, two runs of one model, says too little for an interval.

    Reference: Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 2015 (the bias in
    width of small samples, and Student's quantile against it).

    Args:
        values: Of every ensemble, an axis for each fold; for a paired comparison the differences of two methods.
        level: Share of the interval.
        draws: Of the bootstrap.
        seed: Of the draws.
    """
    mean, fewest = float(values.mean()), min(values.shape, default=1)
    std = float(values.std()) if fewest > 1 else None
    freedom = sum(count - 1 for count in values.shape)
    if fewest < 2 or freedom < 2:
        return Spread(mean, std, None, None)
    tail = (1 - level) / 2
    ends = np.quantile(resampled_means(values, draws=draws, seed=seed), [tail, 1 - tail])
    wider = np.sqrt(fewest / (fewest - 1)) * widening(level, freedom)
    low, high = (mean + wider * (ends - mean)).tolist()
    return Spread(mean, std, low, high)
