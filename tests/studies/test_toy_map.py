"""Toy map: weights of both problems, and claims that follow the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.studies.recorded import recorded_claims
from winnow.report.claims import Verdict
from winnow.studies import Measurement, toy_map
from winnow.studies.scores import check_claims
from winnow.studies.toy_map import LOST, PROTOTYPES, SHARPNESS, TOY_MAP, WEIGHT


def test_half_of_the_map_is_near_a_prototype() -> None:
    features, informative = toy_map.toy_map(3)
    assert features.shape == (100, 3)
    assert int(informative.sum()) == 50
    assert set(features[informative].argmax(dim=1).tolist()) == {0, 2}
    assert set(features[~informative].argmax(dim=1).tolist()) == {1}


def test_the_linear_program_is_that_of_a_solver() -> None:
    features, _ = toy_map.toy_map(1)
    costs = np.linalg.norm(features.numpy()[:, None] - PROTOTYPES.numpy()[None], axis=2).min(axis=1)
    mu, n = toy_map.UNDER, len(costs)
    solved = linprog(costs, A_eq=np.ones((1, n)), b_eq=[1], bounds=(0, 1 / (mu * n)))
    assert toy_map.linear_program(features, mu).numpy() == pytest.approx(solved.x, abs=1e-6)


def test_weights_sum_to_one_and_respect_mu() -> None:
    for name, (mu, _, weights) in toy_map.solve(toy_map.toy_map(0)[0]).items():
        assert float(weights.sum()) == pytest.approx(1, abs=1e-5), name
        assert float(weights.max()) <= 1 / (100 * mu) + 1e-5, name


def test_rows_are_means_over_maps() -> None:
    rows = toy_map.measure_maps(3)
    expected = []
    for seed in range(3):
        features, informative = toy_map.toy_map(seed)
        expected.append(100 * float(toy_map.smoothed(features, toy_map.UNDER, 1.0)[informative].sum()))
    row = next(row for row in rows if row["eps"] == 1.0)
    assert row[WEIGHT] == pytest.approx(np.mean(expected), abs=0.006)


def verdicts(program: float, soft: float, sharp: float, weight: float = 95.0) -> list[Verdict]:
    rows = [{"problem": toy_map.PROGRAM, LOST: program, WEIGHT: 100.0}]
    rows += [
        {"problem": f"smoothed, mu 0.2, eps {eps:g}", LOST: sharp if eps == SHARPNESS[-1] else soft, WEIGHT: weight}
        for eps in SHARPNESS
    ]
    scale = TOY_MAP.scales["full"]
    return [one.verdict for one in check_claims(TOY_MAP.claims, Measurement(rows=rows), scale)]


def test_claims_follow_the_numbers() -> None:
    yes, no = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED
    assert verdicts(60.0, 0.0, 28.0) == [yes, yes, yes]
    assert verdicts(10.0, 60.0, 60.0) == [no, no, yes]
    assert verdicts(60.0, 0.0, 0.0, weight=60.0) == [yes, no, no]  # average pooling gives red and blue 50%


def test_the_recorded_result_has_these_claims_and_a_figure() -> None:
    assert recorded_claims(TOY_MAP) == [Verdict.REPRODUCED] * 3
    assert len(TOY_MAP.figures(Measurement(rows=()))[""].axes) == 8
