"""The red, blue and green map: weights of both problems, and what the text makes of the numbers."""

import pytest
import torch

from winnow.studies import STUDIES, Task, toy_map


def test_half_of_the_map_is_near_a_prototype():
    features, informative = toy_map.toy_map(3)
    assert features.shape == (100, 3)
    assert int(informative.sum()) == 50
    assert set(features[informative].argmax(dim=1).tolist()) == {0, 2}
    assert set(features[~informative].argmax(dim=1).tolist()) == {1}


def test_every_problem_weighs_by_its_share():
    features, informative = toy_map.toy_map(0)
    for name, (mu, eps, weights) in toy_map.solve(features).items():
        assert float(weights.sum()) == pytest.approx(1, abs=1e-5), name
        assert float(weights.max()) <= 1 / (100 * mu) + 1e-5, name
        if eps is None:
            assert int((weights > 0).sum()) == round(100 * mu), name
            assert not weights[~informative].any(), name


def test_the_study_sets_its_numbers_beside_the_claim():
    findings = STUDIES["toy-map"](Task(small=True))
    by_name = {row["problem"]: row for row in findings.rows}
    assert by_name["linear program, mu 0.2"]["left out of red and blue, %"] == 60
    assert by_name["smoothed, mu 0.2, eps 5"]["left out of red and blue, %"] < 1
    assert findings.text.startswith("Agrees: ")
    assert findings.text.endswith("means over 20 maps.")
    # A smoothing that loses as much as the program would not.
    worse = [{**row, "left out of red and blue, %": 60.0} for row in findings.rows]
    assert toy_map.told(worse, 1).startswith("Does not agree: ")
    assert len(findings.figure.axes) == 1 + len(findings.rows)
    assert torch.equal(toy_map.toy_map(0)[0], toy_map.toy_map(0)[0])
