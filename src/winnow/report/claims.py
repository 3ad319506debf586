"""Published claims, measured numbers, and the rule of verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from winnow.report.tables import Column, to_markdown

LEVEL = 0.95
"""Confidence level of all intervals."""
FEWEST = 3
"""Fewest paired runs that support a verdict."""


@dataclass(frozen=True)
class Estimate:
    """Mean of n values with a 95% interval."""

    mean: float
    std: float | None = None  # sample standard deviation over the n values
    low: float | None = None
    high: float | None = None
    n: int | None = None  # None: nothing is random, and the interval is the value
    interval: Literal["student", "bootstrap"] | None = None  # method of the interval; None if there is none


def estimate(values: Sequence[float]) -> Estimate:
    r"""Return the mean of runs with Student's interval.

    Fewer than two values have no interval.

    $$\bar v \pm t_{n-1,\,0.975} \, s / \sqrt n$$

    Raises:
        ValueError: If there are no values.
    """
    if not values:
        raise ValueError("values: expected at least one, got none. Pass the values of finished runs.")
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return Estimate(mean, n=n)
    std = statistics.stdev(values)
    half = student_quantile(n - 1) * std / math.sqrt(n)
    return Estimate(mean, std, mean - half, mean + half, n, "student")


def exact(value: float) -> Estimate:
    """Return a value that no seed changes."""
    return Estimate(value, 0.0, value, value, None)


def student_quantile(freedom: float, level: float = LEVEL) -> float:
    """Return t such that Student's distribution has this probability between -t and t."""
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, freedom))


class Verdict(StrEnum):
    """Result of comparing a claim with measurements."""

    REPRODUCED = "Reproduced"
    WITHIN_SEED_NOISE = "Within seed noise"
    NOT_REPRODUCED = "Not reproduced"
    INCOMPLETE = "Incomplete"
    NOT_APPLICABLE = "Not applicable"


def verdict(
    difference: Estimate | None, *, size: float | None = None, equal: float | None = None, complete: bool = True
) -> Verdict:
    r"""Return the verdict of a claim from a paired difference.

    The difference is $\Delta$ in $[l, h]$, in the claimed direction.

    | verdict | direction, $\Delta > 0$ | size, $\Delta = c$ | equivalence, $|\Delta| \le \delta$ |
    |---|---|---|---|
    | Incomplete | n < 3 or a run is missing | same | same |
    | Reproduced | $l > 0$ | $l > 0$ and $c \le h$ | $-\delta \le l$ and $h \le \delta$ |
    | Not reproduced | $h < 0$ | $h < c$ | $l > \delta$ or $h < -\delta$ |
    | Within seed noise | otherwise | otherwise | otherwise |

    Where nothing is random, the value is its own interval, and a difference of 0 is not reproduced.

    Args:
        difference: Paired difference with its interval; None if nothing was measured.
        size: c, for a claim about a size.
        equal: delta, for a claim of no difference.
        complete: Whether all runs of the claim are finished.

    Raises:
        ValueError: If both `size` and `equal` are given.
    """
    if size is not None and equal is not None:
        raise ValueError("size, equal: a claim is about a size or about equivalence. Pass one of them.")
    if difference is None or difference.low is None or difference.high is None or not complete:
        return Verdict.INCOMPLETE
    if difference.n is not None and difference.n < FEWEST:
        return Verdict.INCOMPLETE
    low, high = difference.low, difference.high
    if equal is not None:
        reproduced, not_reproduced = -equal <= low and high <= equal, low > equal or high < -equal
    elif size is not None:
        reproduced, not_reproduced = low > 0 and size <= high, high < size
    else:
        reproduced, not_reproduced = low > 0, high < 0 or low == high == 0
    if reproduced:
        return Verdict.REPRODUCED
    return Verdict.NOT_REPRODUCED if not_reproduced else Verdict.WITHIN_SEED_NOISE


@dataclass(frozen=True)
class CheckedClaim:
    """A claim, its source, what was measured, and the verdict."""

    text: str
    source: str  # such as "[Thesis], Fig. 5.8"
    ours: str  # what was measured, in one clause
    difference: Estimate | None  # paired difference in the claimed direction, in points
    verdict: Verdict

    @property
    def measured(self) -> str:
        """The measurement with its 95% interval."""
        if self.difference is None:
            return self.ours
        interval = format_interval(self.difference)
        return f"{self.ours} {interval}".strip()

    @property
    def n(self) -> int | None:
        """Number of paired runs."""
        return None if self.difference is None else self.difference.n


def claims_table(claims: Iterable[CheckedClaim]) -> str:
    """Return the claims as a Markdown table with intervals and verdicts."""
    columns = [
        Column("claim", align="left"), Column("source", align="left"), Column("ours [95% interval]", align="left"),
        Column("n"), Column("verdict", align="left"),
    ]  # fmt: skip
    rows = [
        {"claim": one.text, "source": one.source, "ours [95% interval]": one.measured, "n": one.n,
         "verdict": str(one.verdict)} for one in claims
    ]  # fmt: skip
    return to_markdown(rows, columns)


def count_verdicts(claims: Iterable[CheckedClaim]) -> dict[Verdict, int]:
    """Return the number of claims of each verdict, including verdicts without any."""
    found = [one.verdict for one in claims]
    return {one: found.count(one) for one in Verdict}


def format_points(value: float, digits: int = 2) -> str:
    """Return a difference in points with its sign: +0.42, −1.20, and 0.00 without one."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def format_interval(one: Estimate, digits: int = 2) -> str:
    """Return a 95% interval: [−1.28, 2.04].

    The text is empty without an interval, and where nothing is random.
    """
    if one.low is None or one.high is None or one.n is None:
        return ""
    low, high = (format_points(value, digits).removeprefix("+") for value in (one.low, one.high))
    return f"[{low}, {high}]"
