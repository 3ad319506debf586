"""The study of average pooling, on a few images and small networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import MakeFolder
from tests.studies.recorded import recorded_claims
from winnow.data.datasets import DATASETS
from winnow.errors import ConfigError, DataError
from winnow.functional import analyze_average_pooling
from winnow.report.claims import Verdict
from winnow.studies import Measurement, StudyRequest, average_pooling
from winnow.studies.average_pooling import AVERAGE_POOLING, COUNTS, INSIDE, LARGEST, PROTOTYPES, RADIUS, SEVERAL
from winnow.studies.runner import run_study
from winnow.studies.scores import check_claims
from winnow.training.overrides import Overrides

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
QUICK, FULL = AVERAGE_POOLING.scales.quick, AVERAGE_POOLING.scales.full
TINY = Overrides.parse(
    "backbone=resnet20", "backbone.weights=random", "backbone.train=frozen", "image.resize=32", "image.crop=32",
    "dim=2", "pooling=gap", "train.device=cpu",
)  # fmt: skip


def test_rows_against_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.rand(12, 5, 2, generator=generator), torch.arange(12) % 3
    found = analyze_average_pooling(features, labels, 6)
    row = average_pooling.row_of("plane", 2, found)
    errors, used = [], [set() for _ in range(3)]
    for image, label in zip(features, labels.tolist(), strict=True):
        nearest = [int(((found.prototypes - x) ** 2).sum(dim=1).argmin()) for x in image]
        used[label] |= set(nearest)
        errors.append(float((found.prototypes[nearest].mean(dim=0) - image.mean(dim=0)).norm()))
    assert row[LARGEST] == pytest.approx(max(errors), abs=5e-5)
    assert row["mean |PCC - GAP|"] == pytest.approx(sum(errors) / 12, abs=5e-5)
    several = [sum(number in one for one in used) > 1 for number in range(6)]
    assert row[SEVERAL] == pytest.approx(100 * sum(several) / 6, abs=0.05)


def test_the_plane_separates_classes_that_averages_separate() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(20) % 4
    features = torch.randn(4, 16, generator=generator)[labels][:, None] + torch.randn(20, 3, 16, generator=generator)
    plane = average_pooling.train_plane(features, labels, 200)
    means, again = plane.mean(dim=1), average_pooling.train_plane(features, labels, 200)
    assert torch.equal(plane, again)
    apart, own = torch.cdist(means, means), labels[:, None] == labels
    assert apart[own].mean() < 0.5 * apart[~own].mean()


def test_quick_study_analyzes_a_folder_of_images(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(average_pooling, "QUICK", TINY)
    monkeypatch.setattr(average_pooling, "COUNTS", (5, PROTOTYPES))
    report = run_study(AVERAGE_POOLING, StudyRequest(QUICK, data=make_folder()))
    assert [(row["space"], row["dim"]) for row in report.rows] == [("plane", 2)] * 2 + [("backbone", 64)] * 2
    assert [row["images within the radius, %"] for row in report.rows] == [100] * 4
    assert report.rows[1][RADIUS] < report.rows[0][RADIUS]
    assert report.claims[0].verdict == Verdict.REPRODUCED
    assert report.claims[1].verdict == Verdict.INCOMPLETE  # one model
    hulls = report.figures[""].axes[1]
    assert len(hulls.get_legend().get_texts()) == report.settings["classes"]
    assert [axes.get_aspect() for axes in report.figures[""].axes[:3]] == [1.0] * 3


def cifar(folder: Path) -> Path:
    """Write files of CIFAR-10 with 20 training and 8 test images per class, whose color determines it."""
    rng = np.random.default_rng(0)
    colors = rng.integers(0, 200, (10, 3, 1))
    folder.mkdir()
    for name, count in [*((f"data_batch_{number}", 40) for number in range(1, 6)), ("test_batch", 80)]:
        labels = np.arange(count) % 10
        pixels = colors[labels] + rng.integers(0, 56, (count, 3, 32 * 32))
        records = np.concatenate([labels[:, None], pixels.reshape(count, -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(records.astype(np.uint8).tobytes())
    known = DATASETS["cifar10"]
    known.accept_missing(folder, known.check(folder)[1])
    return folder


@pytest.mark.slow
def test_full_study_analyzes_the_model_that_it_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(average_pooling, "COUNTS", (5, PROTOTYPES))
    settings = Overrides.parse(
        "train.max_steps=4", "train.eval_steps=2", "train.classes_per_batch=4", "train.samples_per_class=2",
        "train.device=cpu",
    )  # fmt: skip
    request = StudyRequest(FULL, tmp_path / "runs", cifar(tmp_path / "cifar10"), settings)
    with pytest.raises(DataError, match="no trained model"):
        run_study(AVERAGE_POOLING, replace(request, train=False))
    report = run_study(AVERAGE_POOLING, request)
    assert [(row["space"], row["dim"]) for row in report.rows] == [("plane", 2)] * 2 + [("backbone", 64)] * 2
    assert [row["images within the radius, %"] for row in report.rows] == [100] * 4
    assert report.settings["images"] == 80
    assert [run["config"]["train"]["max_steps"] for run in report.runs] == [4]
    assert run_study(AVERAGE_POOLING, replace(request, train=False)).rows == report.rows


def test_quick_size_rejects_settings_of_runs(tmp_path: Path) -> None:
    request = StudyRequest(QUICK, tmp_path, overrides=Overrides.parse("train.max_steps=4"))
    with pytest.raises(ConfigError, match=r"train.max_steps=4: the quick size trains no runs"):
        run_study(AVERAGE_POOLING, request)
    with pytest.raises(ConfigError, match="seed 0"):
        run_study(AVERAGE_POOLING, StudyRequest(QUICK, tmp_path, seeds=[0]))


@pytest.mark.parametrize(("largest", "verdict"), [(0.2, Verdict.REPRODUCED), (0.6, Verdict.NOT_REPRODUCED)])
def test_the_bound_is_checked_in_every_row(largest: float, verdict: Verdict) -> None:
    rows = [
        {"space": space, "prototypes": count, RADIUS: 0.5, LARGEST: largest if count == COUNTS[-1] else 0.1,
         SEVERAL: 20.0, INSIDE: 30.0}
        for space in ("plane", "backbone") for count in COUNTS
    ]  # fmt: skip
    exact = average_pooling.named(rows)
    bound, overlap = check_claims(AVERAGE_POOLING.claims, Measurement(rows=rows, exact=exact, by_seed={0: exact}), FULL)
    assert bound.verdict is verdict
    assert bound.difference is not None
    assert bound.difference.mean == pytest.approx(100 * (1 - largest / 0.5))
    assert overlap.difference is not None
    assert overlap.difference.mean == pytest.approx(15)


def test_claims_of_the_recorded_result() -> None:
    assert recorded_claims(AVERAGE_POOLING) == [Verdict.REPRODUCED, Verdict.INCOMPLETE]
