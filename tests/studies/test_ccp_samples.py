"""Samples against proxies: the made images, that runs are kept, and that the text follows the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.studies.test_ccp_mnist import digits
from winnow.errors import ConfigError, DataError
from winnow.models.architectures import ResNetV2CIFAR
from winnow.studies import STUDIES, Task, ccp_mnist, ccp_samples, synthetic_images


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find no images but those of the test."""
    monkeypatch.setenv("WINNOW_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(synthetic_images, "FASHION_MNIST", tmp_path / "none")


def test_runs_are_kept_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(tmp_path)
    monkeypatch.setattr(ccp_mnist, "VALIDATION", 100)
    monkeypatch.setattr(ccp_samples, "STEPS", {True: 4})
    monkeypatch.setattr(ccp_samples, "SEEDS", {True: 1})
    monkeypatch.setattr(ccp_samples, "WORDS", {True: ["train.eval_steps=2"]})
    with pytest.raises(DataError, match="no run of ccp-samples is finished"):
        STUDIES["ccp-samples"](Task(small=True, data=tmp_path, runs=tmp_path / "runs", only_finished=True))
    task = Task(small=True, data=tmp_path, runs=tmp_path / "runs")
    first = STUDIES["ccp-samples"](task)
    assert [row["method"] for row in first.rows] == ["samples", "proxies"]
    assert all(0 < row["test MAP@R"] <= 100 and row["steps"] == 4 for row in first.rows)
    monkeypatch.setattr(ccp_mnist, "solve", None)  # a kept run is read
    assert STUDIES["ccp-samples"](task).rows == first.rows
    kept = tmp_path / "runs" / "samples-seed0.safetensors"
    content = kept.read_bytes()
    kept.write_bytes(content[:40])  # a damaged one is as good as none
    read = STUDIES["ccp-samples"](Task(small=True, data=tmp_path, runs=tmp_path / "runs", only_finished=True))
    assert [row["method"] for row in read.rows] == ["proxies"]
    assert read.text.endswith("1 of 2 runs are in: `winnow study ccp-samples --small` trains the others.")
    left, right = first.figure.axes[0].get_xlim()
    low = min(*(row["test MAP@R"] for row in first.rows), *ccp_samples.THESIS.values())
    assert 0 < left < low < right <= 100, "bars start near the values, so that they can be told apart"
    kept.write_bytes(content)
    monkeypatch.setattr(ccp_samples, "STEPS", {True: 5})
    with pytest.raises(ConfigError, match="other data or settings"):
        STUDIES["ccp-samples"](task)


def test_images_are_made_in_small_and_asked_for_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_images, "GRAY_IMAGES", {"train": 5, "test": 2})
    name, train, test = synthetic_images.load_gray_images(None, quick=True)
    assert name == "made"
    assert np.bincount(train.labels).tolist() == [5] * 10
    assert np.bincount(test.labels).tolist() == [2] * 10
    assert train.pixels.shape == (50, 28, 28)
    assert len(np.unique(np.concatenate([train.pixels, test.pixels]), axis=0)) == 70, "no image is there twice"
    for data, quick in ((None, False), (tmp_path, True)):
        with pytest.raises(DataError, match="winnow datasets get mnist"):
            synthetic_images.load_gray_images(data, quick=quick)


def test_both_claims_are_checked() -> None:
    text = ccp_samples.told({"samples": [98.0, 98.2], "proxies": [97.4, 97.6]})
    assert "samples are ahead: +0.60 points, there +0.85, agrees" in text
    assert "proxies come near: agrees" in text
    assert "come near: does not agree" in ccp_samples.told({"samples": [98.0], "proxies": [90.0]})
    assert "-8.00 points, there +0.85, does not agree (one seed)" in ccp_samples.told(
        {"samples": [90.0], "proxies": [98.0]}
    )
    assert "missing" in ccp_samples.told({"samples": [90.0], "proxies": []})


def test_the_full_size_has_the_documents_network() -> None:
    full = ccp_mnist.make_config(["references=ccp", *ccp_mnist.NETWORK[False]], 1)
    assert isinstance(ccp_mnist.make_embedder(full).backbone.network, ResNetV2CIFAR)
    small = ccp_mnist.make_config(["references=ccp", *ccp_mnist.NETWORK[True]], 1)
    assert isinstance(ccp_mnist.make_embedder(small).backbone.network, ccp_mnist.SmallNet)
    for config in (full, small):
        assert ccp_mnist.make_embedder(config)(torch.rand(2, 3, 28, 28)).shape == (2, 2)
