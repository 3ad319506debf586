"""The study of average pooling, on a few images of a folder and a small network."""

import pytest
import torch

from tests.conftest import MakeFolder
from winnow.studies import Task, average_pooling


@pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")
def test_the_study_checks_every_image(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch):
    words = [
        "backbone=resnet20",
        "backbone.weights=random",
        "image.resize=32",
        "image.crop=32",
        "dim=2",
        "pooling=gap",
        "train.device=cpu",
    ]
    monkeypatch.setattr(average_pooling, "WORDS", [*words, "backbone.train=frozen"])
    monkeypatch.setattr(average_pooling, "COUNTS", (5, average_pooling.PROTOTYPES))
    findings = average_pooling.study(Task(small=True, data=make_folder()))
    assert [row["images within the radius, %"] for row in findings.rows] == [100] * 4
    assert [row["dim"] for row in findings.rows[:2]] == [2, 2]
    assert findings.rows[1]["covering radius"] < findings.rows[0]["covering radius"]
    assert "It holds here for every image" in findings.text
    assert len(findings.figure.axes) == 4


def test_the_text_follows_the_numbers():
    row = {"space": "plane", "dim": 2, "prototypes": 48, "covering radius": 0.5, "largest |PCC - GAP|": 0.6,
           "images within the radius, %": 99.0, "prototypes of several classes, %": 0.0,
           "images in another class's hull, %": 0.0}  # fmt: skip
    text = average_pooling.told([row, {**row, "space": "backbone"}, {**row, "space": "backbone"}])
    assert "not every image" in text
    assert "This does not agree" in text
    assert "which does not agree" in text


def test_a_plane_is_learned_that_tells_classes_apart():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    features = 3 * torch.eye(8)[labels][:, None] + torch.randn(40, 6, 8, generator=generator)
    means = average_pooling.train_plane(features, labels, 200).mean(dim=1)
    centres = torch.stack([means[labels == label].mean(dim=0) for label in range(4)])
    nearest = torch.cdist(means, centres).argmin(dim=1)
    assert (nearest == labels).float().mean() > 0.9
