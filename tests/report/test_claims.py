"""Verdicts: the rule row by row, and intervals that cover as often as they say."""

import numpy as np
import pytest
from scipy import stats

from winnow.report.claims import (
    CheckedClaim,
    Estimate,
    Verdict,
    claims_table,
    count_verdicts,
    estimate,
    exact,
    format_interval,
    format_points,
    verdict,
)


def interval(low: float, high: float, n: int | None = 3) -> Estimate:
    return Estimate((low + high) / 2, 1.0, low, high, n)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.9, Verdict.REPRODUCED),
        (0.0, 0.9, Verdict.WITHIN_SEED_NOISE),
        (-0.5, 0.5, Verdict.WITHIN_SEED_NOISE),
        (-0.9, 0.0, Verdict.WITHIN_SEED_NOISE),
        (-0.9, -0.1, Verdict.NOT_REPRODUCED),
    ],
)
def test_direction(low: float, high: float, expected: Verdict) -> None:
    assert verdict(interval(low, high)) is expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.5, 1.5, Verdict.REPRODUCED),
        (1.2, 1.5, Verdict.REPRODUCED),  # larger than claimed
        (0.1, 0.9, Verdict.NOT_REPRODUCED),
        (-0.5, 1.0, Verdict.WITHIN_SEED_NOISE),
        (-0.5, 0.9, Verdict.NOT_REPRODUCED),
    ],
)
def test_size_of_one_point(low: float, high: float, expected: Verdict) -> None:
    assert verdict(interval(low, high), size=1.0) is expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.5, 0.5, Verdict.REPRODUCED),
        (-0.6, 0.5, Verdict.WITHIN_SEED_NOISE),
        (-0.5, 0.6, Verdict.WITHIN_SEED_NOISE),
        (0.6, 0.9, Verdict.NOT_REPRODUCED),
        (-0.9, -0.6, Verdict.NOT_REPRODUCED),
    ],
)
def test_equivalence_within_half_a_point(low: float, high: float, expected: Verdict) -> None:
    assert verdict(interval(low, high), equal=0.5) is expected


def test_few_or_missing_runs_have_no_verdict() -> None:
    assert verdict(None) is Verdict.INCOMPLETE
    assert verdict(estimate([5.0])) is Verdict.INCOMPLETE
    assert verdict(estimate([5.0, 5.1])) is Verdict.INCOMPLETE
    assert verdict(estimate([5.0, 5.1, 5.2]), complete=False) is Verdict.INCOMPLETE
    assert verdict(estimate([5.0, 5.1, 5.2])) is Verdict.REPRODUCED


@pytest.mark.parametrize(
    ("value", "expected"), [(2.0, "Reproduced"), (0.0, "Not reproduced"), (-2.0, "Not reproduced")]
)
def test_the_sign_decides_where_nothing_is_random(value: float, expected: str) -> None:
    assert verdict(exact(value)) == expected
    assert format_interval(exact(value)) == ""


def test_a_claim_is_of_one_kind() -> None:
    with pytest.raises(ValueError, match="size, equal"):
        verdict(exact(1.0), size=1.0, equal=0.5)


def test_estimate_is_students_interval() -> None:
    values = [1.0, 2.0, 4.0, 4.5]
    one = estimate(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (one.low, one.high) == pytest.approx((low, high))
    assert one.std == pytest.approx(np.std(values, ddof=1))
    assert one.n == 4
    with pytest.raises(ValueError, match="values"):
        estimate([])


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(1.0, 2.0, (2000, 3))
    found = [estimate(row.tolist()) for row in draws]
    covered = np.mean([one.low <= 1.0 <= one.high for one in found])  # type: ignore[operator]
    assert 0.93 < covered < 0.97


def test_table_and_counts() -> None:
    claims = [
        CheckedClaim("GSP is higher", "[Thesis], Fig. 5.8", "+2.00", interval(1.5, 2.5), Verdict.REPRODUCED),
        CheckedClaim("It is faster", "ours", "n/a", None, Verdict.INCOMPLETE),
    ]
    lines = claims_table(claims).splitlines()
    assert lines[0] == "| claim | source | ours [95% interval] | n | verdict |"
    assert lines[2] == "| GSP is higher | [Thesis], Fig. 5.8 | +2.00 [1.50, 2.50] | 3 | Reproduced |"
    assert count_verdicts(claims)[Verdict.REPRODUCED] == 1
    assert sum(count_verdicts(claims).values()) == 2


@pytest.mark.parametrize(("value", "text"), [(0.004, "0.00"), (-0.004, "0.00"), (0.42, "+0.42"), (-1.2, "−1.20")])
def test_points_have_a_sign_unless_they_are_zero(value: float, text: str) -> None:
    assert format_points(value) == text
