"""CCP in two dimensions: measures, claims, and both studies with runs of a few steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.test_mnist import idx
from tests.studies.recorded import read_recorded, recorded_claims
from winnow.errors import ConfigError, DataError
from winnow.models.architectures import ResNetV2CIFAR
from winnow.report.claims import Verdict
from winnow.studies import Measurement, StudyRequest, ccp_plane, ccp_samples, synthetic_images
from winnow.studies.ccp_plane import CCP, CCP_PLANE, METHODS, Solution, cover
from winnow.studies.ccp_samples import CCP_SAMPLES, PUBLISHED
from winnow.studies.runner import run_study
from winnow.studies.scores import check_claims
from winnow.studies.settings import train
from winnow.training.overrides import Overrides


@pytest.fixture(autouse=True)
def no_other_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOW_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(synthetic_images, "FASHION_MNIST", tmp_path / "none")


def write_digits(folder: Path) -> None:
    """Write files of MNIST with ten classes that differ in which pixels are bright."""
    rng = np.random.default_rng(0)
    shapes = rng.integers(0, 256, (10, 28, 28))
    for split, count in (("train", 400), ("t10k", 60)):
        labels = rng.permutation(np.arange(count) % 10).astype(np.uint8)
        pixels = (0.7 * shapes[labels] + rng.integers(0, 76, (count, 28, 28))).astype(np.uint8)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(idx(pixels))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(labels))


def test_covers_are_means_over_classes() -> None:
    labels = np.array([0, 0, 1, *range(2, 10)])
    points = torch.zeros(11, 2)
    points[0] = torch.tensor([3.0, 4.0])  # class 0: distances 5 and 0
    points[2] = torch.tensor([0.0, 1.0])  # class 1: 1; all others: 0
    radius, distance = cover(labels, points, torch.zeros(10, 2, 2))
    assert radius == pytest.approx((5 + 1) / 10)
    assert distance == pytest.approx((2.5 + 1) / 10)
    assert cover(labels, points, None) == (None, None)


def test_the_spread_of_proxies_is_their_distance_from_the_mean_of_their_class() -> None:
    proxies = torch.zeros(10, 4, 2)
    proxies[:, 0] = torch.tensor([4.0, 0.0])  # mean (1, 0): distances 3, 1, 1, 1
    one = Solution(torch.rand(10, 2), proxies, None, 0.5)
    (row,) = ccp_plane.problem_rows("CCP", 0, np.arange(10), [one], [{"steps": 5, "best": 0.4}])
    assert row["proxy spread"] == pytest.approx(1.5)
    assert (row["problem"], row["steps"], row["validation MAP@R"], row["test MAP@R"]) == (None, 5, 0.4, 0.5)


def problems(seed: int, *, better: bool) -> list[dict[str, object]]:
    """Return the rows of one seed: three problems of CCP of which the second is best, and the other two runs."""
    sign, noise = (1 if better else -1), 0.001 * seed
    rows: list[dict[str, object]] = []
    for number, (validation, change) in enumerate(((0.5, 0.0), (0.9, 0.1), (0.7, 0.2))):
        rows.append({"method": "CCP", "seed": seed, "problem": number + 1, "validation MAP@R": validation,
                     "test MAP@R": 0.5 + sign * change + noise, "radius, converged": 1 - sign * change + noise,
                     "distance, converged": 0.3 - sign * change + noise, "proxy spread": 0.1 + noise})  # fmt: skip
    one = {"validation MAP@R": 0.5, "test MAP@R": 0.55, "proxy spread": 0.004 if better else 0.2}
    return [*rows, {"method": "one problem", "seed": seed, **one}, {"method": "samples", "seed": seed, **one}]


@pytest.mark.parametrize(("better", "verdict"), [(True, Verdict.REPRODUCED), (False, Verdict.NOT_REPRODUCED)])
def test_claims_compare_problems_and_runs_at_their_best_validation(better: bool, verdict: Verdict) -> None:
    rows = [row for seed in (0, 1, 2) for row in problems(seed, better=better)]
    measured = CCP_PLANE.restore({"rows": rows, "settings": {"data": "made"}})
    found = check_claims(CCP_PLANE.claims, measured, CCP_PLANE.scales.quick)
    assert [one.verdict for one in found] == [verdict] * 6
    margins = [one.difference.mean for one in found if one.difference is not None]
    if better:
        # Collapse, diversity, radius, distance, retrieval, and the second problem (the best) against one problem.
        assert margins == pytest.approx([0.6, 9.7, 20, 20, 20, 5.1])
    assert check_claims(CCP_PLANE.claims, CCP_PLANE.restore(
        {"rows": rows[:5], "settings": {"data": "made"}}), CCP_PLANE.scales.quick
    )[0].verdict is Verdict.INCOMPLETE  # fmt: skip


def test_claims_of_recorded_results() -> None:
    noise = Verdict.WITHIN_SEED_NOISE
    assert recorded_claims(CCP_PLANE, "small") == [Verdict.REPRODUCED, *[noise] * 5]
    assert recorded_claims(CCP_SAMPLES, "small") == [Verdict.INCOMPLETE] * 2
    rows = read_recorded(CCP_PLANE, "small")["rows"]
    last = [[row for row in rows if (row["method"], row["seed"]) == ("CCP", seed)][-1] for seed in range(3)]
    assert np.mean([row["radius, converged"] for row in last]) == pytest.approx(1.115, abs=5e-4)


@pytest.mark.slow
def test_study_measures_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_digits(tmp_path)
    monkeypatch.setattr(ccp_plane, "VALIDATION", 100)
    monkeypatch.setitem(METHODS, "CCP", CCP | Overrides({"references": {"patience": 1}}))
    quick = CCP_PLANE.scales.quick
    scale = replace(quick, base=quick.base | train(max_steps=24, eval_steps=1), seeds=(0,))
    request = StudyRequest(scale, tmp_path / "runs", tmp_path)
    with pytest.raises(DataError, match="CCP-seed0"):
        run_study(CCP_PLANE, replace(request, train=False))
    report = run_study(CCP_PLANE, request)
    ccp = [row for row in report.rows if row["method"] == "CCP"]
    assert len(ccp) > 1
    assert sum(row["steps"] for row in ccp) == 24
    assert all(0 < row["distance, converged"] < row["radius, converged"] < 2 for row in ccp)
    assert [row["radius, next"] is None for row in ccp] == [False] * (len(ccp) - 1) + [True]
    assert {row["method"] for row in report.rows} == set(METHODS)
    assert [one.n for one in report.claims] == [1] * 6
    assert len(report.figures[""].axes) == 2 + min(len(ccp), 4)
    monkeypatch.setattr(ccp_plane, "solve", None)  # stored runs are read
    assert run_study(CCP_PLANE, request).rows == report.rows


def test_runs_with_samples_and_proxies_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_digits(tmp_path)
    monkeypatch.setattr(ccp_plane, "VALIDATION", 100)
    quick = CCP_SAMPLES.scales.quick
    scale = replace(quick, base=quick.base | train(max_steps=4, eval_steps=2), seeds=(0,))
    request = StudyRequest(scale, tmp_path / "runs", tmp_path)
    with pytest.raises(DataError, match="no run of the study ccp-samples is finished"):
        run_study(CCP_SAMPLES, replace(request, train=False))
    report = run_study(CCP_SAMPLES, request)
    assert [row["method"] for row in report.rows] == ["samples", "proxies"]
    assert all(0 < row["test MAP@R"] <= 100 and row["steps"] == 4 for row in report.rows)
    left, right = report.figures[""].axes[0].get_xlim()
    assert 0 < left < min(*(row["test MAP@R"] for row in report.rows), *PUBLISHED.values()) < right <= 100
    monkeypatch.setattr(ccp_samples, "solve", None)  # stored runs are read
    assert run_study(CCP_SAMPLES, request).rows == report.rows
    stored = tmp_path / "runs" / "samples-seed0.safetensors"
    content = stored.read_bytes()
    stored.write_bytes(content[:40])  # damaged
    some = run_study(CCP_SAMPLES, replace(request, train=False))
    assert [row["method"] for row in some.rows] == ["proxies"]
    assert some.missing == {"samples": [0]}
    assert {one.verdict for one in some.claims} == {Verdict.INCOMPLETE}
    stored.write_bytes(content)
    other = replace(scale, base=scale.base | train(max_steps=5))
    with pytest.raises(ConfigError, match="other data or settings"):
        run_study(CCP_SAMPLES, replace(request, scale=other))


@pytest.mark.parametrize(("proxies", "verdicts"), [(97.4, "RR"), (90.0, "RN"), (99.0, "NR")])
def test_samples_improve_on_proxies_by_less_than_published(proxies: float, verdicts: str) -> None:
    scale = CCP_SAMPLES.scales.full
    by_seed = {
        seed: [{"method": "samples", "test MAP@R": 98 + 0.02 * seed}, {"method": "proxies", "test MAP@R": proxies}]
        for seed in scale.seeds
    }
    found = check_claims(CCP_SAMPLES.claims, Measurement(rows=by_seed[1], by_seed=by_seed), scale, CCP_SAMPLES.metric)
    names = {"R": Verdict.REPRODUCED, "N": Verdict.NOT_REPRODUCED}
    assert [one.verdict for one in found] == [names[letter] for letter in verdicts]


def test_synthetic_images_replace_missing_ones_at_the_quick_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic_images, "GRAY_IMAGES", {"train": 5, "test": 2})
    name, training, test = synthetic_images.load_gray_images(None, quick=True)
    assert name == "made"
    assert np.bincount(training.labels).tolist() == [5] * 10
    assert np.bincount(test.labels).tolist() == [2] * 10
    assert training.pixels.shape == (50, 28, 28)
    assert len(np.unique(np.concatenate([training.pixels, test.pixels]), axis=0)) == 70  # no image twice
    for data, quick in ((None, False), (tmp_path, True)):
        with pytest.raises(DataError, match="winnow datasets get mnist"):
            synthetic_images.load_gray_images(data, quick=quick)


def test_the_full_size_has_the_published_network() -> None:
    full = ccp_plane.make_config(CCP_PLANE.scales.full, CCP, 0)
    assert isinstance(ccp_plane.make_embedder(full).backbone.network, ResNetV2CIFAR)
    quick = ccp_plane.make_config(CCP_PLANE.scales.quick, CCP, 0)
    assert isinstance(ccp_plane.make_embedder(quick).backbone.network, ccp_plane.SmallNet)
    for config in (full, quick):
        assert ccp_plane.make_embedder(config)(torch.rand(2, 3, 28, 28)).shape == (2, 2)
