"""Augmentation of crops: determinism, rows, devices, and the operations themselves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from winnow.data import CropTransform, ImageCache
from winnow.data.augmentation import ERASED, Augmentation
from winnow.errors import ConfigError

PARTS = {
    "rand_augment": Augmentation(rand_augment=9),
    "color_jitter": Augmentation(color_jitter=0.4),
    "random_erasing": Augmentation(random_erasing=0.5),
    "all": Augmentation(rand_augment=9, color_jitter=0.4, random_erasing=0.25),
}


def smooth_crops(count: int, height: int = 24, width: int = 20, seed: int = 0) -> Tensor:
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
    crops = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
    return crops.to(memory_format=torch.channels_last)


def applied(part: Augmentation, crops: Tensor, seed: int = 0, rows: slice = slice(None)) -> Tensor:
    return part.apply(crops.clone(), torch.Generator().manual_seed(seed), len(crops), rows)


@pytest.mark.parametrize("name", PARTS)
def test_changes_are_a_function_of_the_seed_and_the_row(name: str) -> None:
    part, crops = PARTS[name], smooth_crops(12)
    torch.manual_seed(7)
    first = applied(part, crops)
    after = torch.rand(3)
    torch.manual_seed(8)
    assert torch.equal(first, applied(part, crops))
    assert not torch.equal(first, applied(part, crops, seed=1))
    assert not torch.equal(first, crops)
    assert first.shape == crops.shape
    assert first.dtype == torch.float32
    assert first.min() >= 0
    assert first.max() <= 1
    torch.manual_seed(7)
    assert torch.equal(after, torch.rand(3))  # the global generator is untouched
    for rows in (slice(0, 5), slice(5, 6), slice(6, 12)):
        part_of = part.apply(crops[rows].clone(), torch.Generator().manual_seed(0), 12, rows)
        assert torch.equal(part_of, first[rows])


@given(probability=st.floats(0, 1), height=st.integers(2, 30), width=st.integers(2, 30), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_erasing_fills_one_box_with_the_mean_color(probability: float, height: int, width: int, seed: int) -> None:
    crops = smooth_crops(6, height, width, seed) / 8  # darker than the color of erased boxes
    found = applied(Augmentation(random_erasing=probability), crops, seed)
    erased = (found != crops).all(dim=1)
    for crop, mask in zip(found, erased, strict=True):
        rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        if len(rows):
            box = (slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1))
            assert mask[box].all()  # a rectangle
            assert int(mask.sum()) < height * width
            for channel, value in enumerate(ERASED):
                assert (crop[channel][mask] == value).all()
    assert torch.equal(found.masked_select(~erased[:, None]), crops.masked_select(~erased[:, None]))


def test_the_probability_of_erasing() -> None:
    crops = torch.zeros(600, 3, 20, 20)
    for probability in (0.0, 0.25, 1.0):
        share = float((applied(Augmentation(random_erasing=probability), crops) > 0).flatten(1).any(1).float().mean())
        assert share == pytest.approx(probability, abs=0.06)
    areas = (applied(Augmentation(random_erasing=1.0), crops)[:, 0] > 0).flatten(1).float().mean(1)
    assert 0.01 < areas.min() < 0.05
    assert 0.28 < areas.max() < 0.36


def test_jitter_changes_only_brightness_contrast_and_saturation() -> None:
    gray = torch.full((200, 3, 8, 8), 0.5)
    found = applied(Augmentation(color_jitter=0.4), gray)
    assert torch.allclose(found, found.mean(dim=(1, 2, 3), keepdim=True).expand_as(found), atol=1e-5)
    levels = found[:, 0, 0, 0] / 0.5  # contrast and saturation keep a gray image, brightness scales it
    assert 0.6 <= levels.min() < 0.65
    assert 1.35 < levels.max() <= 1.4


def test_rand_augment_is_that_of_torchvision() -> None:
    from torchvision.transforms import v2  # after the first use of a part has imported it

    crops = smooth_crops(5)
    found = applied(Augmentation(rand_augment=14), crops, seed=3)
    seeds = torch.randint(2**62, (5,), generator=torch.Generator().manual_seed(3)).tolist()
    for crop, result, seed in zip(crops, found, seeds, strict=True):
        torch.manual_seed(seed)
        expected = v2.RandAugment(2, 14)((crop * 255).round().to(torch.uint8)).float() / 255
        assert torch.allclose(result, expected, atol=1e-6)


def test_crops_are_drawn_as_without_augmentation(arrays, noise) -> None:
    store = ImageCache(arrays([noise(30, 40, seed) for seed in range(4)]), resize=24, cache="ram")
    plain, erased = (
        CropTransform(resize=24, size=16, augmentation=part) for part in (Augmentation(), PARTS["random_erasing"])
    )
    indices = [0, 1, 2, 3, 1, 0, 2]
    a, b = (cut.train(store, indices, torch.Generator().manual_seed(5)) for cut in (plain, erased))
    same = (a == b).flatten(1).float().mean(1)
    assert (same > 0.5).all()
    assert 0 < int((same == 1).sum()) < len(indices)
    out = torch.empty_like(b)
    assert erased.train(store, indices, torch.Generator().manual_seed(5), out) is out
    assert torch.equal(out, b)
    assert erased.train(store, [], torch.Generator()).shape == (0, 3, 16, 16)
    own = CropTransform(resize=24, transform=lambda image: image[:, :8, :8], augmentation=PARTS["random_erasing"])
    changed = own.train(store, indices, torch.Generator().manual_seed(5))
    assert (changed[:, 0] == ERASED[0]).flatten(1).any(1).any()


@pytest.mark.parametrize(
    ("key", "value"), [("rand_augment", 31), ("rand_augment", -1), ("color_jitter", 1.5), ("random_erasing", 2.0)]
)
def test_values_out_of_range(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"augment\.{key}={value}: expected 0 to"):
        Augmentation(**{key: value})


@pytest.mark.gpu
@pytest.mark.parametrize("name", PARTS)
def test_changes_on_a_gpu_are_close_to_those_on_a_cpu(name: str) -> None:
    crops = smooth_crops(16)
    before = torch.cuda.get_rng_state()
    found = applied(PARTS[name], crops.cuda()).cpu()
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert (found - applied(PARTS[name], crops)).abs().mean() < 0.01
