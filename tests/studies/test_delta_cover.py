"""Validation on a cover: which images are picked, how rankings are compared, and that the study goes through."""

from pathlib import Path

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from winnow.studies import Task, delta_cover
from winnow.studies.delta_cover import CLASSES, COVER, RANDOM, cover_images, rank_correlation, subsets
from winnow.studies.delta_cover_report import told


def test_the_image_with_the_worst_covered_feature_is_next():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, 5, 3, generator=generator, dtype=torch.float64)
    picks = cover_images(features, 4).tolist()
    assert len(set(picks)) == 4
    for step in range(1, 4):
        covered = features[picks[:step]].flatten(0, 1)
        gaps = [max(min(float((x - c).norm()) for c in covered) for x in image) for image in features]
        assert gaps[picks[step]] == pytest.approx(max(gaps))
    assert sorted(cover_images(features, 9).tolist()) == list(range(9))
    assert sorted(cover_images(torch.zeros(3, 2, 2), 3).tolist()) == [0, 1, 2], "also among equal ones"
    with pytest.raises(ValueError, match="pick"):
        cover_images(features, 10)


def test_subsets_hold_as_many_images_of_each_class():
    labels = torch.arange(24) % 4
    features = torch.randn(24, 3, 2, generator=torch.Generator().manual_seed(1))
    found = subsets(features, labels, 2, seed=0)
    for way in (COVER, RANDOM):
        assert torch.bincount(labels[found[way]]).tolist() == [2, 2, 2, 2]
        assert len(found[way].unique()) == 8
    assert sorted(torch.bincount(labels[found[CLASSES]], minlength=4).tolist()) == [0, 0, 6, 6]
    assert not torch.equal(found[RANDOM], subsets(features, labels, 2, seed=1)[RANDOM])
    assert torch.equal(found[COVER], subsets(features, labels, 2, seed=1)[COVER])


def test_rank_correlation_is_kendalls():
    stats = pytest.importorskip("scipy.stats")
    first, second = torch.randn(2, 12, generator=torch.Generator().manual_seed(2)).tolist()
    assert rank_correlation(first, second) == pytest.approx(stats.kendalltau(first, second).statistic)
    assert rank_correlation(first, first) == 1
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == -1
    assert rank_correlation([1, 2], [1, 1]) == 0


def test_a_perfect_subset_is_seen_as_such():
    # Four checkpoints of which each tells one more of four classes apart, on all images and on any two of a class.
    labels = torch.arange(4).repeat_interleave(6)
    steps = [torch.where(labels[:, None] < k, torch.eye(4)[labels], torch.rand(24, 4)) for k in range(1, 5)]
    rows = delta_cover.table(steps, labels, torch.randn(24, 3, 2))
    whole = [row for row in rows if row["images of a class"] == 6 and row["way"] != CLASSES]
    assert all(row["rank correlation"] == 1 and row["points lost by the choice"] == 0 for row in whole)


def test_a_cover_is_set_beside_both_others_by_both_measures():
    def row(way: str, share: float, ranks: float, lost: float) -> dict[str, object]:
        return {
            "way": way,
            "share, %": share,
            "rank correlation": ranks,
            "worst": ranks,
            "points lost by the choice": lost,
        }

    rows = [row(COVER, 25, 0.8, 0.0), row(COVER, 50, 0.96, 0.0), row(RANDOM, 25, 0.9, 0.93), row(RANDOM, 50, 0.9, 0.37),
            row(CLASSES, 25, 0.85, 0.0), row(CLASSES, 50, 0.87, 0.0)]  # fmt: skip
    text = told(rows, "28 checkpoints of 4 heads", 712, 10)
    assert (
        "- Beside random images a cover ranks checkpoints worse and loses less by its choice: rank correlation 0.880 "
        "against 0.900 in the mean over sizes, points lost 0.00 against 0.65 in the mean and 0.00 against 0.93 at most."
    ) in text
    assert "- Beside random classes a cover ranks checkpoints better and loses as much by its choice" in text
    assert "cover 50 %, random images 25 %, random classes more than tried." in text
    more = [{**one, "points lost by the choice": 2.0} if one["way"] == COVER else one for one in rows]
    assert told(more, "", 1, 1).count("loses more by its choice") == 2


@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_the_study_ranks_checkpoints(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    base = [word for word in TINY if not word.startswith("pooling")]
    words = [f"data={make_folder(classes=10, images=6)}", *base, "backbone.train=frozen", "train.device=cpu"]
    monkeypatch.setattr(delta_cover, "WORDS", [*words, "data.val_fraction=0.3"])
    monkeypatch.setattr(delta_cover, "METHODS", {"GAP": ["pooling=gap"], "GMP": ["pooling=gmp_projected"]})
    whole = delta_cover.load_config
    monkeypatch.setattr(
        delta_cover, "load_config", lambda file, given: whole(file, [*given, "train.max_steps=4", "train.eval_steps=2"])
    )
    findings = delta_cover.study(Task(small=True, runs=tmp_path))
    with monkeypatch.context() as none:
        none.setattr(delta_cover, "embed_checkpoints", None)  # kept runs are read
        assert delta_cover.study(Task(small=True, runs=tmp_path)).rows == findings.rows
    assert findings.settings["checkpoints"] == 2 * 3
    assert {row["way"] for row in findings.rows} == {COVER, RANDOM, CLASSES}
    assert all(-1 <= row["worst"] <= row["rank correlation"] <= 1 for row in findings.rows)
    assert findings.figure.axes
