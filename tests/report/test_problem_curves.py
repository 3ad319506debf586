"""The figure of a CCP run shows the numbers of its subproblems."""

import pytest
from report_examples import history

from winnow.errors import DataError
from winnow.report import problem_curves, svg

PROBLEMS = [
    {"first_step": 0, "steps": 20, "start": 0.1, "best": 0.4, "best_step": 10, "end": 0.3,
     "radius_before": None, "radius_after": 0.5},
    {"first_step": 20, "steps": 20, "start": 0.4, "best": 0.6, "best_step": 40, "end": 0.6,
     "radius_before": 0.9, "radius_after": 0.3},
    {"first_step": 40, "steps": 0, "start": 0.6, "best": -1.0, "best_step": 0, "end": None,
     "radius_before": 0.8, "radius_after": 0.2},
]  # fmt: skip


def test_best_values_and_radii_are_where_they_belong():
    above, below = problem_curves(PROBLEMS, history(0.5)).axes
    _, best = above.lines
    assert (list(best.get_xdata()), list(best.get_ydata())) == ([10, 40], pytest.approx([40, 60]))
    path, converged, picked = below.lines
    assert list(path.get_ydata()) == [0.5, 0.9, 0.3, 0.8, 0.2]
    assert list(converged.get_ydata()) == [0.9, 0.8]
    assert list(picked.get_ydata()) == [0.5, 0.3, 0.2]
    assert "3 subproblems" in svg(above.figure)


def test_values_are_of_the_metric_that_problems_went_by():
    entries = [{**entry, "val/P@1": 0.9} for entry in history(0.5)]
    above, _ = problem_curves(PROBLEMS, entries, "P@1").axes
    assert set(above.lines[0].get_ydata()) == {90}
    assert "Validation P@1" in above.get_title("left")


def test_no_problems_are_refused():
    with pytest.raises(DataError, match="problems"):
        problem_curves([], history(0.5))
