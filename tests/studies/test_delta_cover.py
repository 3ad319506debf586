"""Validation on a coreset: which images are selected, how rankings are compared, and a whole small study."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import kendalltau

from tests.conftest import TINY, MakeFolder
from winnow.errors import DataError
from winnow.studies import StudyRequest, delta_cover
from winnow.studies.delta_cover import (
    CLASSES,
    CORESET,
    CORRELATION,
    DELTA_COVER,
    LOST,
    LOWEST,
    RANDOM,
    coreset_images,
    rank_correlation,
    subsets,
)
from winnow.studies.runner import run_study
from winnow.studies.settings import pooling
from winnow.training.overrides import Overrides


def test_the_image_with_the_worst_covered_feature_is_next() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, 5, 3, generator=generator, dtype=torch.float64)
    selected = coreset_images(features, 4).tolist()
    assert len(set(selected)) == 4
    for step in range(1, 4):
        covered = features[selected[:step]].flatten(0, 1)
        gaps = [max(min(float((x - c).norm()) for c in covered) for x in image) for image in features]
        assert gaps[selected[step]] == pytest.approx(max(gaps))
    assert sorted(coreset_images(features, 9).tolist()) == list(range(9))
    assert sorted(coreset_images(torch.zeros(3, 2, 2), 3).tolist()) == [0, 1, 2], "also among equal ones"
    with pytest.raises(ValueError, match="expected 1 to 9 images, got 10"):
        coreset_images(features, 10)


def test_subsets_hold_as_many_images_of_each_class() -> None:
    labels = torch.arange(24) % 4
    features = torch.randn(24, 3, 2, generator=torch.Generator().manual_seed(1))
    found = subsets(features, labels, 2, seed=0)
    for way in (CORESET, RANDOM):
        assert torch.bincount(labels[found[way]]).tolist() == [2, 2, 2, 2]
        assert len(found[way].unique()) == 8
    assert sorted(torch.bincount(labels[found[CLASSES]], minlength=4).tolist()) == [0, 0, 6, 6]
    assert not torch.equal(found[RANDOM], subsets(features, labels, 2, seed=1)[RANDOM])
    assert torch.equal(found[CORESET], subsets(features, labels, 2, seed=1)[CORESET])


def test_rank_correlation_is_kendalls() -> None:
    first, second = torch.randn(2, 12, generator=torch.Generator().manual_seed(2)).tolist()
    assert rank_correlation(first, second) == pytest.approx(kendalltau(first, second).statistic)
    assert rank_correlation(first, first) == 1
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == -1
    assert rank_correlation([1, 2], [1, 1]) == 0


def test_a_subset_of_all_images_ranks_perfectly_and_loses_nothing() -> None:
    # Each of four checkpoints separates one more class.
    labels = torch.arange(4).repeat_interleave(6)
    steps = [torch.where(labels[:, None] < k, torch.eye(4)[labels], torch.rand(24, 4)) for k in range(1, 5)]
    rows = delta_cover.compare_subsets(steps, labels, torch.randn(24, 3, 2))
    whole = [row for row in rows if row["images per class"] == 6 and row["subset"] != CLASSES]
    assert all(row[CORRELATION] == 1 and row[LOST] == 0 for row in whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_the_study_ranks_checkpoints_of_stored_runs(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    args = [arg for arg in TINY if not arg.startswith("pooling")]
    base = Overrides.parse(
        f"data={make_folder(classes=10, images=6)}", *args, "backbone.train=frozen", "train.device=cpu",
        "data.val_fraction=0.3", "train.max_steps=4", "train.eval_steps=2",
    )  # fmt: skip
    monkeypatch.setattr(delta_cover, "HEADS", {"GAP": pooling("gap"), "GMP": pooling("gmp_projected")})
    scale = replace(DELTA_COVER.scales["quick"], base=base)
    with pytest.raises(DataError, match="'GAP-seed0': not finished"):
        DELTA_COVER.measure(StudyRequest(scale, tmp_path, train=False))
    report = run_study(DELTA_COVER, StudyRequest(scale, tmp_path))
    assert DELTA_COVER.measure(StudyRequest(scale, tmp_path, train=False)).rows == report.rows
    assert report.settings["checkpoints"] == 2 * 3
    assert {row["subset"] for row in report.rows} == {CORESET, RANDOM, CLASSES}
    assert all(-1 <= row[LOWEST] <= row[CORRELATION] <= 1 and row[LOST] >= 0 for row in report.rows)
    assert len(report.figures[""].axes) == 2
