"""Scores and deviations against numbers worked by hand, and what they let one say of a claim."""

from __future__ import annotations

import pytest

from winnow.studies.outcomes import deviation, finished, percent, scores, verdict


def runs(*values: float) -> list[dict[str, object]]:
    return [{"metrics": {"test": {"MAP@R": value / 100, "P@1": value / 50}}} for value in values]


def test_scores_are_means_and_deviations_the_largest() -> None:
    found = {"a": runs(10, 14), "b": runs(30), "c": runs(20, 20, 23), "d": []}
    assert percent(found["a"], "P@1") == pytest.approx([20, 28])
    assert scores(found) == pytest.approx({"a": 12, "b": 30, "c": 21})
    assert deviation(found) == pytest.approx(8**0.5)
    assert deviation(found, "P@1") == pytest.approx(2 * 8**0.5)
    assert deviation({"b": runs(30), "d": []}) == 0


@pytest.mark.parametrize(
    ("gain", "deviation", "said"),
    [
        (2.0, 1.0, "agrees"),
        (-2.0, 1.0, "does not agree"),
        (0.5, 1.0, "cannot be told from what seeds deviate by"),
        (-1.0, 1.0, "cannot be told from what seeds deviate by"),
        (0.1, 0.0, "agrees (one seed)"),
        (0.0, 0.0, "does not agree (one seed)"),
    ],
)
def test_what_seeds_would_do_alone_is_no_agreement(gain: float, deviation: float, said: str) -> None:
    assert verdict(gain, deviation) == said


def test_what_is_missing_is_told_once_something_is() -> None:
    assert finished(3, 3, "winnow study x") == ""
    assert finished(2, 3, "winnow study x", "trials") == "2 of 3 trials are in: `winnow study x` trains the others."
