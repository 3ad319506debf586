"""The study of average pooling, on a few images of a folder and a small network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tests.conftest import MakeFolder
from winnow.data.datasets import DATASETS
from winnow.errors import ConfigError, DataError
from winnow.studies import Task, average_pooling
from winnow.studies.average_pooling_report import draw_partition, told


@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
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
    assert "it holds for every image" in findings.text
    assert len(findings.figure.axes) == 4
    keys = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in findings.figure.axes[:2]]
    assert keys[0] == ["prototype", "local feature, coloured by its nearest"]
    assert len(keys[1]) == findings.settings["classes"]
    assert [axes.get_aspect() for axes in findings.figure.axes[:3]] == [1.0] * 3


def cifar(folder: Path) -> Path:
    """Files of Cifar-10 with 20 images to train on and 8 to test on of each class, whose colour tells it."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 200, (10, 3, 1))
    folder.mkdir()
    for name, count in [*((f"data_batch_{number}", 40) for number in range(1, 6)), ("test_batch", 80)]:
        labels = np.arange(count) % 10
        pixels = colours[labels] + rng.integers(0, 56, (count, 3, 32 * 32))
        records = np.concatenate([labels[:, None], pixels.reshape(count, -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(records.astype(np.uint8).tobytes())
    known = DATASETS["cifar10"]
    known.accept_missing(folder, known.check(folder)[1])
    return folder


@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_the_full_study_looks_at_the_run_that_it_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(average_pooling, "COUNTS", (5, average_pooling.PROTOTYPES))
    words = ["train.max_steps=4", "train.eval_steps=2", "train.classes_per_batch=4", "train.samples_per_class=2",
             "train.device=cpu"]  # fmt: skip
    task = Task(small=False, data=cifar(tmp_path / "cifar10"), runs=tmp_path / "runs", words=words)
    with pytest.raises(
        DataError, match=r"no trained model in .*runs: `winnow study average-pooling train.max_steps=4 "
    ):
        average_pooling.study(replace(task, only_finished=True))
    findings = average_pooling.study(task)
    assert [(row["space"], row["dim"]) for row in findings.rows] == [("plane", 2)] * 2 + [("backbone", 64)] * 2
    assert [row["images within the radius, %"] for row in findings.rows] == [100] * 4
    assert findings.settings["images"] == 80
    assert "\n\nCifar-10 with ResNet-20, trained from nothing" in findings.text
    assert "`train.max_steps=4`" in findings.text
    again = average_pooling.study(replace(task, only_finished=True))
    assert again.rows == findings.rows


def test_small_has_no_run_that_takes_settings(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"train.max_steps=4: settings are of the run that --full trains"):
        average_pooling.study(Task(small=True, runs=tmp_path, words=["train.max_steps=4"]))
    with pytest.raises(ConfigError, match=r"--seeds: settings are of the run that --full trains"):
        average_pooling.study(Task(small=True, runs=tmp_path, seeds=[0]))


def test_the_text_follows_the_numbers():
    row = {"space": "plane", "dim": 2, "prototypes": 48, "covering radius": 0.5, "largest |PCC - GAP|": 0.6,
           "images within the radius, %": 99.0, "prototypes of several classes, %": 0.0,
           "images in another class's hull, %": 0.0}  # fmt: skip
    text = told([row, {**row, "space": "backbone"}], "Digits")
    claims, how = text.split("\n\n")
    assert "not every image" in claims
    assert "the largest distance is 120 % of the radius: does not agree.\n" in claims
    assert claims.count("does not agree.") == 2
    assert how.startswith("Digits (the documents: ResNet-20 on Cifar-10")
    assert "held against it, which is stricter, as all radii are below 1, and follows" in how
    good = row | {"images within the radius, %": 100, "covering radius": 1.5, "prototypes of several classes, %": 20.0,
                  "images in another class's hull, %": 30.0}  # fmt: skip
    text = told([good, {**good, "space": "backbone"}], "Digits")
    assert text.count(": agrees.") == 2
    assert "stricter" not in text
    assert "20 % of 48 prototypes serve several classes, and 30 % of the images" in text


def test_local_features_have_the_colour_of_their_prototype():
    axes = Figure().subplots()
    points, prototypes = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)), torch.rand(5, 2)
    draw_partition(axes, points, prototypes)
    drawn, marks, _ = axes.collections
    assert len(drawn.get_offsets()) == 60
    nearest = [min(range(5), key=lambda i: float((point - prototypes[i]).norm())) for point in points]
    assert list(drawn.get_array()) == nearest
    assert np.allclose(np.asarray(marks.get_offsets()), prototypes.numpy())


def test_a_plane_is_learned_that_tells_classes_apart():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    features = 3 * torch.eye(8)[labels][:, None] + torch.randn(40, 6, 8, generator=generator)
    means = average_pooling.train_plane(features, labels, 200).mean(dim=1)
    centres = torch.stack([means[labels == label].mean(dim=0) for label in range(4)])
    nearest = torch.cdist(means, centres).argmin(dim=1)
    assert (nearest == labels).float().mean() > 0.9
