"""Geometry of test classes: radii, distances, claims, and runs that are measured problem by problem."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from tests.studies.recorded import recorded_claims
from winnow.errors import DataError, MissingExtraError
from winnow.report.claims import Verdict
from winnow.studies import Scale, StudyRequest, Variant, ccp_geometry
from winnow.studies.artifacts import StoredRun
from winnow.studies.ccp_geometry import APART, CCP_GEOMETRY, MANY, PLAIN, RADIUS
from winnow.studies.runner import plan_grid, run_study
from winnow.studies.scores import check_claims, mean_rows
from winnow.studies.spec import Row
from winnow.training import RunDir, train
from winnow.training.overrides import Overrides


def test_radii_and_distances_against_loops() -> None:
    line = torch.tensor([[0.0], [1.0], [3.0], [7.0]], dtype=torch.float64)
    # The best single image is the third (3 and 4 away); then 7 is farthest, then 0, then 1.
    radii = [min(max(abs(a - c) for a in (0, 1, 3, 7)) for c in (0, 1, 3, 7)), 3, 1, 0]
    assert ccp_geometry.radii(line).tolist() == radii
    assert ccp_geometry.radii(line[:1]).tolist() == [0.0]
    points = torch.randn(9, 3, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    found = ccp_geometry.geometry(points, labels)
    apart = [math.dist(points[i], points[j]) for i, j in itertools.permutations(range(9), 2) if labels[i] != labels[j]]
    assert found[APART] == pytest.approx(sum(apart) / len(apart))
    means = [ccp_geometry.radii(points[labels == label].double()).mean() for label in range(3)]
    assert found[RADIUS] == pytest.approx(float(sum(means)) / 3)
    curve = ccp_geometry.radius_curve(points, labels)
    assert sum(curve) / 3 == pytest.approx(found[RADIUS])
    assert curve == sorted(curve, reverse=True)


def test_rows_are_averaged_over_seeds_that_all_have_them() -> None:
    tables = [
        [{"row": "a", "x": 1, "y": None}, {"row": "b", "x": 5}],
        [{"row": "a", "x": 2, "y": 4.0}],
    ]
    assert mean_rows(tables) == [{"row": "a", "x": 1.5, "y": None}]
    assert mean_rows([]) == []


def rows_of(plain: tuple[float, float, float], *problems: tuple[float, float, float], seed: int = 0) -> list[Row]:
    """Return rows with MAP@R, radius, and distance of C2 and of each problem; validation MAP@R is the same."""
    each = [(PLAIN, None, plain), *((MANY, number, one) for number, one in enumerate(problems, 1))]
    return [{"method": method, "seed": seed, "problem": number, "validation MAP@R": reached, "MAP@R": reached,
             RADIUS: radius, APART: apart} for method, number, (reached, radius, apart) in each]  # fmt: skip


GOOD = ((1.0, 0.8, 1.0), (1.0, 0.7, 1.0), (2.0, 0.6, 1.1), (3.0, 0.5, 1.2), (2.5, 0.9, 0.1))
"""C2, and four problems of CCP of which the third has the best validation."""


@pytest.mark.parametrize("sign", [1, -1])
def test_claims_compare_the_first_and_the_third_problem_and_the_best_validations(sign: int) -> None:
    rows: list[Row] = []
    for seed in range(3):
        values = [(5 + sign * a + seed / 100, 0.8 - sign * (0.8 - b), 1 + sign * (c - 1)) for a, b, c in GOOD]
        values[3] = (values[3][0] + 10, *values[3][1:]) if sign < 0 else values[3]
        rows += rows_of(values[0], *values[1:], seed=seed)
    measured = CCP_GEOMETRY.restore({"rows": rows, "settings": {}})
    scale = replace(CCP_GEOMETRY.scales.quick, seeds=(0, 1, 2))
    found = check_claims(CCP_GEOMETRY.claims, measured, scale)
    margins = [one.difference.mean for one in found if one.difference is not None]
    retrieval = [2, 2] if sign > 0 else [8, 8]
    assert margins == pytest.approx([retrieval[0], sign * 20, sign * 20, retrieval[1], sign * 30, sign * 20])
    expected = [Verdict.REPRODUCED if margin > 0 else Verdict.NOT_REPRODUCED for margin in margins]
    assert [one.verdict for one in found] == expected


def test_a_run_of_one_problem_has_no_change_through_problems() -> None:
    measured = CCP_GEOMETRY.restore({"rows": rows_of((1.0, 0.8, 1.0), (2.0, 0.7, 1.1)), "settings": {}})
    found = check_claims(CCP_GEOMETRY.claims, measured, replace(CCP_GEOMETRY.scales.quick, seeds=(0,)))
    assert [one.difference is None for one in found] == [True] * 3 + [False] * 3


def test_claims_of_the_recorded_result() -> None:
    assert recorded_claims(CCP_GEOMETRY, "small") == [Verdict.INCOMPLETE] * 6  # two seeds


def test_the_figure_shows_the_first_problems_and_the_last() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {f"{position}.embeddings": torch.rand(8, 3, generator=generator) for position in range(5)}
    labels = {"labels": torch.arange(8) // 4}
    measured = {"MAP@R": 1.0, RADIUS: 1.0, APART: 1.0}
    ccp = StoredRun({"rows": [measured] * 5, "curves": [[1.0]] * 5}, tensors | labels)
    plain = StoredRun({"rows": [measured], "curves": [[1.0]]}, {"0.embeddings": tensors["0.embeddings"]} | labels)
    found = ccp_geometry.moments_of({MANY: ccp, PLAIN: plain})
    assert [one.name for one in found] == ["C2", *(f"CCP, problem {number}" for number in (1, 2, 3, 5))]
    assert torch.equal(found[-1].embeddings, tensors["4.embeddings"])
    pytest.importorskip("sklearn")
    figure = ccp_geometry.draw(found)
    assert [axes.get_title(loc="left") for axes in figure.axes[:5]] == [one.name for one in found]
    assert len(figure.axes[0].collections[0].get_offsets()) == 8


def test_clusters_stay_clusters_in_the_plane() -> None:
    pytest.importorskip("sklearn")
    points = torch.randn(60, 10, generator=torch.Generator().manual_seed(2)) * 0.1
    labels = torch.arange(60) % 3
    points[torch.arange(60), labels] += 5
    plane = torch.as_tensor(ccp_geometry.project(points))
    distances = torch.cdist(plane, plane) + torch.eye(60) * 1e9
    assert torch.equal(labels[distances.argmin(dim=1)], labels)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_every_problem_of_a_run_is_measured(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    tiny = [arg for arg in TINY if not arg.startswith("pooling")]
    base = [f"data={make_folder(classes=9, images=6)}", *tiny, "pooling=gap", "train.device=cpu", "train.max_steps=10",
            "train.eval_steps=1", "loss=c2"]  # fmt: skip
    own = ["references=ccp", "references.proxies_per_class=2", "references.pool_size=3", "references.patience=1"]
    scale = Scale("quick", Overrides.parse(*base), (0,))

    def variants(scale: Scale) -> Iterator[Variant]:
        yield Variant(PLAIN, Overrides())
        yield Variant(MANY, Overrides.parse(*own))

    study = replace(CCP_GEOMETRY, variants=variants)
    request = StudyRequest(scale, tmp_path / "runs")
    with pytest.raises(DataError, match="no run of the study ccp-geometry is finished"):
        run_study(study, replace(request, train=False))
    report = run_study(study, request)
    plain, *problems = report.rows
    assert plain["problem"] is None
    assert [row["problem"] for row in problems] == list(range(1, len(problems) + 1))
    assert len(problems) > 2
    assert sum(row["steps"] for row in problems) == plain["steps"] == 10
    # An ordinary run stops at the same weights: the problem with the best validation has them.
    config = next(run.config for variant, _, run in plan_grid(study, request) if variant.name == MANY)
    result = train(config, RunDir(tmp_path / "alone")).to_dict()
    best = max(problems, key=lambda row: row["validation MAP@R"])
    assert best["MAP@R"] == pytest.approx(100 * result["metrics"]["test"]["MAP@R"], abs=0.006)
    assert [record["steps"] for record in result["problems"]][: len(problems)] == [row["steps"] for row in problems]
    assert len(report.figures[""].axes) >= 5
    monkeypatch.setattr(ccp_geometry, "solve_problems", None)  # stored runs are read
    assert run_study(study, request).rows == report.rows
    next((tmp_path / "runs").glob("c2-seed*")).unlink()
    some = run_study(study, replace(request, train=False))
    assert some.missing == {PLAIN: [0]}
    assert some.todo.startswith("1 of 2 runs finished.")


def test_scikit_learn_is_required_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"requires scikit-learn.*\[studies\]"):
        run_study(CCP_GEOMETRY, StudyRequest(CCP_GEOMETRY.scales.quick, tmp_path))
