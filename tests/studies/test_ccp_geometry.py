"""t-SNE and the geometry of classes, against definitions written out; that the text follows the numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from winnow.errors import DataError
from winnow.studies import STUDIES, Task, ccp_geometry
from winnow.studies.artifacts import StoredRun
from winnow.studies.base import Row
from winnow.studies.ccp_geometry_report import APART, MANY, PLAIN, RADIUS, told
from winnow.studies.methods import Comparison, Method
from winnow.studies.tsne import conditional, gradient, neighbourhoods, tsne
from winnow.training import RunDir, train


def test_neighbourhoods_have_the_perplexity_asked_for() -> None:
    points = torch.randn(30, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = conditional(points, 7.0)
    assert torch.allclose(2 ** -(p * p.clamp(min=1e-300).log2()).sum(dim=1), torch.full((30,), 7.0).double())
    assert (p.diagonal() == 0).all()
    joint = neighbourhoods(points, 7.0)
    assert math.isclose(float(joint.sum()), 1.0)
    assert torch.equal(joint, joint.T)


def test_the_slope_is_that_of_the_divergence() -> None:
    generator = torch.Generator().manual_seed(1)
    p = neighbourhoods(torch.randn(12, 4, dtype=torch.float64, generator=generator), 3.0)
    y = torch.randn(12, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    off = ~torch.eye(12, dtype=torch.bool)
    near = 1 / (1 + (y[:, None] - y[None]).square().sum(dim=2))
    q = near / near[off].sum()
    (p[off] * (p[off] / q[off]).log()).sum().backward()
    assert torch.allclose(gradient(y.detach(), p), y.grad, atol=1e-12)


def test_clusters_stay_clusters() -> None:
    points = torch.randn(60, 10, generator=torch.Generator().manual_seed(2)) * 0.1
    labels = torch.arange(60) % 3
    points[torch.arange(60), labels] += 5
    y = tsne(points, perplexity=8)  # a cluster has 19 neighbours
    assert y.shape == (60, 2)
    distances = torch.cdist(y, y) + torch.eye(60) * 1e9
    assert torch.equal(labels[distances.argmin(dim=1)], labels)
    assert torch.equal(tsne(points, steps=5), tsne(points, steps=5)), "nothing is left to chance"
    assert tsne(points[:4]).isfinite().all()


def test_radii_and_distances_are_as_defined() -> None:
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


def test_all_claims_are_checked() -> None:
    def rows(plain: tuple[float, float, float], *problems: tuple[float, float, float], seed: int = 0) -> list[Row]:
        each = [(PLAIN, None, plain), *((MANY, number, one) for number, one in enumerate(problems, 1))]
        return [{"method": method, "seed": seed, "problem": number, "validation MAP@R": reached, "MAP@R": reached,
                 RADIUS: radius, APART: apart} for method, number, (reached, radius, apart) in each]  # fmt: skip

    good = (1.0, 3.0, 1.0), (1.0, 2.0, 1.0), (2.0, 1.5, 1.5), (3.0, 1.0, 2.0), (2.5, 9.0, 0.1)
    text = told(rows(*good))
    assert text.count("agrees (one seed)") == 6
    assert "first problem to its third the covering radius falls: 2.000 to 1.000, agrees (one seed)" in text
    assert "best validation, the inter-class distance grows: 1.000 to 2.000, agrees" in text, "the third is the best"
    assert "the MAP@R grows: 1.00 to 3.00" in text
    assert told(rows((3.0, 1.0, 3.0), (3.0, 1.0, 3.0), (2.0, 2.0, 2.0))).count("does not agree (one seed)") == 6
    assert "to its third (or the last) the MAP@R grows: 3.00 to 2.00" in told(rows(*good[:1], (3.0, 1, 3), (2.0, 2, 2)))
    other = [tuple(value + 5 for value in each) for each in good]
    text = told([*rows(*good), *rows(*other, seed=1)])
    assert text.count("cannot be told from what seeds deviate by") == 6
    only = told(rows((1.0, 3.0, 1.0), (1.0, 2.0, 1.0)))
    assert only.count("both at their best validation") == 3
    assert "first problem" not in only, "a run of one problem has none to compare it with"
    assert "missing" in told([])


def test_pictures_are_of_the_first_problems_and_the_last() -> None:
    tensors = {f"{place}.embeddings": torch.full((8, 3), float(place)) for place in range(5)}
    labels = {"labels": torch.arange(8) // 4}
    measured = {"MAP@R": 1.0, RADIUS: 1.0, APART: 1.0}
    ccp = StoredRun({"rows": [measured] * 5, "curves": [[1.0]] * 5}, tensors | labels)
    plain = StoredRun({"rows": [measured], "curves": [[1.0]]}, {"0.embeddings": tensors["0.embeddings"]} | labels)
    found = ccp_geometry.pictures({MANY: ccp, PLAIN: plain})
    assert [one.name for one in found] == ["C2", *(f"CCP, problem {number}" for number in (1, 2, 3, 5))]
    assert [float(one.embeddings[0, 0]) for one in found] == [0, 0, 1, 2, 4]


@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_every_problem_of_one_run_is_measured(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = [word for word in TINY if not word.startswith("pooling")]
    words = [f"data={make_folder(classes=9, images=6)}", *tiny, "pooling=gap", "train.device=cpu", "train.max_steps=10",
             "train.eval_steps=1", "loss=c2"]  # fmt: skip
    own = ["references=ccp", "references.proxies_per_class=2", "references.pool_size=3", "references.patience=1"]
    compared = Comparison([Method(PLAIN, []), Method(MANY, own)], (0,), words)
    monkeypatch.setattr(ccp_geometry, "comparison", lambda task: compared)
    monkeypatch.setattr(ccp_geometry, "make_images", lambda task: None)
    task = Task(small=True, runs=tmp_path / "runs")
    with pytest.raises(DataError, match="no run of ccp-geometry is finished"):
        STUDIES["ccp-geometry"](replace(task, only_finished=True))
    findings = STUDIES["ccp-geometry"](task)
    plain, *problems = findings.rows
    assert plain["problem"] is None
    assert [row["problem"] for row in problems] == list(range(1, len(problems) + 1))
    assert len(problems) > 2
    assert sum(row["steps"] for row in problems) == plain["steps"] == 10
    # The run's own best weights are those of the problem that validated best.
    result = train(compared.plan(compared.methods[1], 0, task).config, RunDir(tmp_path / "alone")).to_dict()
    best = max(problems, key=lambda row: row["validation MAP@R"])
    assert best["MAP@R"] == pytest.approx(100 * result["metrics"]["test"]["MAP@R"], abs=0.006)
    assert [record["steps"] for record in result["problems"]][: len(problems)] == [row["steps"] for row in problems]
    assert len(findings.figure.axes) >= 5
    monkeypatch.setattr(ccp_geometry, "solve_problems", None)  # kept runs are read
    assert STUDIES["ccp-geometry"](task).rows == findings.rows
    next((tmp_path / "runs").glob("c2-seed*")).unlink()
    some = STUDIES["ccp-geometry"](replace(task, only_finished=True))
    assert some.text.endswith("1 of 2 runs are in: `winnow study ccp-geometry --small` trains the others.")
