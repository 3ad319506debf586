"""Pretraining by classification: it learns, its weights load as a backbone, and it runs once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from winnow.data import ArrayImages
from winnow.models import build_backbone
from winnow.models.config import BackboneConfig
from winnow.studies.pretraining import Recipe, pretrain, read_record, shifted


def colored(count: int, seed: int) -> ArrayImages:
    """Noisy images whose strongest color is the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) % 3
    pixels = rng.integers(0, 120, size=(count, 32, 32, 3))
    pixels[np.arange(count), :, :, labels] += 100
    return ArrayImages(pixels.astype(np.uint8), labels, "colored", class_names=("red", "green", "blue"))


def test_every_image_is_shifted_and_mirrored_alone() -> None:
    images = torch.randint(1, 256, (40, 3, 6, 5), dtype=torch.uint8)
    moved = shifted(images, 2, torch.Generator().manual_seed(1))
    assert moved.shape == images.shape
    assert moved.dtype == images.dtype
    padded = torch.zeros(40, 3, 10, 9, dtype=torch.uint8)
    padded[:, :, 2:8, 2:7] = images
    seen = set()
    for image, ground in zip(moved, padded, strict=True):
        ways = {
            (top, left, mirrored)
            for top in range(5)
            for left in range(5)
            for mirrored in (False, True)
            for cut in [ground[:, top : top + 6, left : left + 5]]
            if torch.equal(image, cut.flip(2) if mirrored else cut)
        }
        assert len(ways) == 1, "each is a shift of one image"
        seen |= ways
    assert len({top for top, _, _ in seen}) == 5
    assert len({left for _, left, _ in seen}) == 5
    assert len({mirrored for _, _, mirrored in seen}) == 2


@pytest.mark.slow
def test_it_learns_and_its_weights_load_as_a_backbone(tmp_path: Path) -> None:
    target, recipe = tmp_path / "made" / "weights.safetensors", Recipe(epochs=6, batch=16, lr=0.05)
    train, held_out = colored(90, 0), colored(30, 1)
    drawn = torch.get_rng_state()
    record = pretrain(target, train, held_out, recipe)
    assert torch.equal(torch.get_rng_state(), drawn), "the state of the random numbers is restored"
    assert record["accuracy"] > 0.9
    assert (record["images"], record["classes"], record["held_out"]) == (90, 3, 30)
    backbone = build_backbone(BackboneConfig(name="resnet20", weights=str(target)))
    backbone.eval()
    assert bool(backbone(torch.zeros(1, 3, 32, 32)).isfinite().all())
    assert float(backbone.network[0][1].running_mean.abs().sum()) > 0, "batch statistics are saved"

    stamp = target.stat().st_mtime_ns
    assert pretrain(target, train, held_out, recipe) == record == read_record(target)
    assert target.stat().st_mtime_ns == stamp, "existing weights are reused"
    other = pretrain(target, train, held_out, Recipe(epochs=1, batch=16, lr=0.05))
    assert target.stat().st_mtime_ns != stamp, "another recipe trains again"
    assert other["recipe"]["epochs"] == 1


def test_the_same_seed_makes_the_same_weights(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for target in files:
        pretrain(target, colored(24, 0), colored(6, 1), Recipe(epochs=1, batch=12))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_damaged_records_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    assert read_record(tmp_path / "a.safetensors") is None
    assert read_record(tmp_path / "b.safetensors") is None
