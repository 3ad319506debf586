from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from winnow.data import CropTransform, ImageCache, RaggedImages, crop_batch, crops, random_flips, train_boxes
from winnow.data.crops import match_levels
from winnow.errors import ConfigError, DataError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def packed(images: list[np.ndarray], device: str = "cpu", lead: int = 6) -> RaggedImages:
    """Pack images after `lead` bytes of no image."""
    pixels = torch.tensor([99] * lead + [int(v) for image in images for v in image.reshape(-1)], dtype=torch.uint8)
    starts = lead + np.cumsum([0] + [image.size for image in images])[:-1]
    sizes = torch.tensor([image.shape[:2] for image in images])
    return RaggedImages(pixels.to(device), torch.tensor(starts), sizes[:, 0], sizes[:, 1])


def slow_crop(image: np.ndarray, box: list[float], height: int, width: int, flip: bool) -> np.ndarray:
    """Crop pixel by pixel, in double precision."""
    top, left, box_height, box_width = box
    result = np.zeros((3, height, width))
    for i in range(height):
        for j in range(width):
            y = top + (i + 0.5) * box_height / height - 0.5
            x = left + ((width - 1 - j if flip else j) + 0.5) * box_width / width - 0.5
            for di in (0, 1):
                for dj in (0, 1):
                    row, column = math.floor(y) + di, math.floor(x) + dj
                    weight = (1 - abs(y - row)) * (1 - abs(x - column))
                    row = min(max(row, 0), image.shape[0] - 1)
                    column = min(max(column, 0), image.shape[1] - 1)
                    result[:, i, j] += weight * image[row, column] / 255
    return result


@pytest.mark.parametrize("device", DEVICES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_crops_equal_a_slow_loop(device: str, data: st.DataObject) -> None:
    side = st.integers(1, 12)
    count = data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    images = [rng.integers(0, 256, (data.draw(side), data.draw(side), 3), dtype=np.uint8) for _ in range(count)]
    # Boxes may extend beyond the image.
    boxes = [[rng.uniform(-3, 9), rng.uniform(-3, 9), rng.uniform(0.5, 15), rng.uniform(0.5, 15)] for _ in images]
    flips = [bool(rng.integers(2)) for _ in images]
    height, width = data.draw(side), data.draw(side)
    found = crop_batch(packed(images, device), torch.tensor(boxes), (height, width), torch.tensor(flips))
    assert found.shape == (count, 3, height, width)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    for crop, image, box, flip in zip(found.cpu().numpy(), images, boxes, flips, strict=True):
        np.testing.assert_allclose(crop, slow_crop(image, box, height, width, flip), atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_aligned_boxes_give_exact_pixels(noise, device: str) -> None:
    images = [noise(300, 257, 1), noise(256, 900, 2)]
    boxes = torch.tensor([[17.0, 3.0, 227.0, 227.0], [29.0, 673.0, 227.0, 227.0]])
    found = crop_batch(packed(images, device), boxes, 227).cpu()
    for crop, image, (top, left, _, _) in zip(found, images, boxes.int().tolist(), strict=True):
        expected = torch.from_numpy(image[top : top + 227, left : left + 227]).permute(2, 0, 1).float() / 255
        assert torch.equal(crop, expected)


def test_flips_mirror_only_the_requested_crops(noise) -> None:
    batch = packed([noise(9, 7, 1), noise(6, 8, 2)])
    boxes = torch.tensor([[0.3, 1.2, 5.0, 4.0], [1.0, 1.0, 4.4, 5.1]])
    plain = crop_batch(batch, boxes, 5)
    flipped = crop_batch(batch, boxes, 5, torch.tensor([True, False]))
    assert torch.equal(flipped[0], plain[0].flip(-1))
    assert torch.equal(flipped[1], plain[1])
    assert not torch.equal(flipped[0], plain[0])


def test_a_single_pixel_fills_any_crop() -> None:
    batch = packed([np.array([[[10, 20, 30]]], dtype=np.uint8)])
    found = crop_batch(batch, crops.test_boxes(batch.heights, batch.widths, 4), 4)
    assert torch.equal((found * 255).round(), torch.tensor([10.0, 20.0, 30.0])[None, :, None, None].expand(1, 3, 4, 4))


def drawn(height: int, width: int, count: int, seed: int = 0, **bounds: tuple[float, float]) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return train_boxes(torch.full((count,), height), torch.full((count,), width), generator, **bounds)


@given(height=st.integers(1, 500), width=st.integers(1, 500), seed=st.integers(0, 100))
@settings(deadline=None)
def test_random_boxes_lie_inside_and_keep_the_aspect(height: int, width: int, seed: int) -> None:
    top, left, box_height, box_width = drawn(height, width, 50, seed).double().unbind(1)
    slack = 1e-3
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (box_height > 0).all()
    assert (box_width > 0).all()
    assert (top + box_height <= height + slack).all()
    assert (left + box_width <= width + slack).all()
    aspect = box_width / box_height
    assert aspect.min() >= 0.75 - slack
    assert aspect.max() <= 4 / 3 + slack


def test_distribution_of_random_boxes() -> None:
    boxes = drawn(300, 300, 20000, scale=(0.1, 0.5)).double()
    top, left, height, width = boxes.unbind(1)
    share = height * width / 300**2
    assert share.min() >= 0.1 - 1e-6
    assert share.max() <= 0.5 + 1e-6
    # At these fractions every aspect ratio fits. No draw is rejected, and the draws are uniform.
    ninths = torch.tensor([i / 10 for i in range(1, 10)], dtype=torch.float64)
    assert torch.allclose(share.quantile(ninths), 0.1 + 0.4 * ninths, atol=0.01)
    logs = torch.log(width / height) / math.log(4 / 3)
    assert torch.allclose(logs.quantile(ninths), 2 * ninths - 1, atol=0.05)
    for place in (top / (300 - height), left / (300 - width)):
        assert torch.allclose(place.quantile(ninths), ninths, atol=0.02)
    draws = torch.stack([share, logs, top / (300 - height), left / (300 - width)])
    assert torch.allclose(torch.corrcoef(draws), torch.eye(4, dtype=torch.float64), atol=0.03)


def test_default_areas_are_those_of_the_paper() -> None:
    share = drawn(256, 340, 5000).double()[:, 2:].prod(1) / (256 * 340)
    assert share.min() >= 0.16 - 1e-6
    assert share.min() < 0.17
    assert 0.95 < share.max() <= 1 + 1e-6


def test_when_no_box_fits_the_center_is_used() -> None:
    boxes = drawn(10, 1000, 3)
    assert torch.allclose(boxes, torch.tensor([0, (1000 - 40 / 3) / 2, 10, 40 / 3]).expand(3, 4))
    boxes = drawn(1000, 9, 3)
    assert torch.allclose(boxes, torch.tensor([494.0, 0, 12, 9]).expand(3, 4))


def test_draws_depend_only_on_the_generator() -> None:
    assert torch.equal(drawn(20, 30, 9, seed=4), drawn(20, 30, 9, seed=4))
    assert not torch.equal(drawn(20, 30, 9, seed=4), drawn(20, 30, 9, seed=5))
    flips = random_flips(4000, torch.Generator().manual_seed(0))
    assert flips.dtype == torch.bool
    assert 0.45 < flips.float().mean() < 0.55


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["device", "ram", "none"])
def test_training_crops_are_the_same_on_a_gpu(arrays, noise, cache: str) -> None:
    images = arrays([noise(40, 60, seed) for seed in range(4)])
    here, there = (
        CropTransform(resize=32, size=20).train(
            ImageCache(images, resize=32, cache=cache, device=device), [3, 1, 0], torch.Generator().manual_seed(1)
        )
        for device in ("cpu", "cuda")
    )
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-6)


def test_center_boxes_are_whole_pixels() -> None:
    boxes = crops.test_boxes(torch.tensor([256, 256, 4]), torch.tensor([340, 257, 5]), (227, 226))
    assert boxes.tolist() == [[14, 57, 227, 226], [14, 15, 227, 226], [-112, -111, 227, 226]]


@pytest.fixture
def store(arrays, noise) -> ImageCache:
    return ImageCache(arrays([noise(8, 20, 1), noise(30, 9, 2), noise(1, 1, 3)]), resize=8, cache="ram")


def test_test_crops_are_the_center(store: ImageCache) -> None:
    found = CropTransform(resize=8, size=6).test(store, [1, 0])
    for crop, image in zip(found, store.gather([1, 0]).images(), strict=True):
        top, left = (image.shape[1] - 6) // 2, (image.shape[2] - 6) // 2
        assert torch.equal(crop, image[:, top : top + 6, left : left + 6].float() / 255)


def test_training_crops_may_be_cut_from_larger_images(arrays, noise) -> None:
    images = arrays([noise(64, 48, seed) for seed in range(3)])
    small, large = (ImageCache(images, resize=resize, cache="ram") for resize in (12, 48))
    cut = CropTransform(resize=12, train_resize=48, size=16, scale=(0.1, 0.2), hflip=False)
    found = cut.train(large, [2, 0], torch.Generator().manual_seed(0))
    boxes = train_boxes(
        torch.tensor([64, 64]), torch.tensor([48, 48]), torch.Generator().manual_seed(0), scale=(0.1, 0.2)
    )
    for crop, index, box in zip(found, [2, 0], boxes.tolist(), strict=True):
        expected = slow_crop(noise(64, 48, index), box, 16, 16, flip=False)
        np.testing.assert_allclose(crop.numpy(), expected, atol=1e-5)  # positions up to 64 in float32
    assert torch.equal(cut.test(small, [1]), CropTransform(resize=12, size=16).test(small, [1]))
    with pytest.raises(ConfigError, match="short side 48, the cache has 12"):
        cut.train(small, [0], torch.Generator())


def test_large_boxes_are_cut_from_halved_copies(arrays) -> None:
    # A fine checkerboard is gray on average. Bilinear interpolation alone would pick single pixels of it.
    board = (np.indices((256, 320)).sum(0) % 2 * 255).astype(np.uint8)[..., None].repeat(3, 2)
    store = ImageCache(arrays([board]), resize="original", cache="ram")
    batch = store.locate([0, 0, 0])
    boxes = torch.tensor([[0.0, 0, 256, 320], [3.0, 5.0, 16, 16], [10.0, 20.0, 33, 40]])
    copies, scaled = match_levels(batch, boxes, 16)
    assert copies.heights.tolist() == [16, 256, 128]  # 256 / 16 is halved four times, 33 / 16 once
    found = crop_batch(copies, scaled, 16)
    assert (found[0] - 0.5).abs().max() < 0.01
    assert torch.equal(found[1], torch.from_numpy(board[3:19, 5:21]).permute(2, 0, 1).float() / 255)
    assert (found[2] - 0.5).abs().max() < 0.01


@given(height=st.integers(1, 300), width=st.integers(1, 300), size=st.integers(1, 64), data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_box_has_about_the_size_of_the_crop_in_its_copy(height: int, width: int, size: int, data) -> None:
    batch = RaggedImages(torch.zeros(0, dtype=torch.uint8), *torch.tensor([[6], [height], [width]]))
    share = st.floats(0.05, 1)
    box = torch.tensor([[0.0, 0.0, height * data.draw(share), width * data.draw(share)]])
    copy, scaled = match_levels(batch, box, size)
    factor = float(scaled[0, 2:].min()) / size
    halvings = round(math.log2(float(box[0, 2] / scaled[0, 2])))
    offset, sides = 6, (height, width)
    for _ in range(halvings):
        offset, sides = offset + 3 * sides[0] * sides[1], ((sides[0] + 1) // 2, (sides[1] + 1) // 2)
    assert (int(copy.offsets), (int(copy.heights), int(copy.widths))) == (offset, sides)
    if halvings:
        assert factor >= 0.7
    assert factor <= 1.42 or min(sides) < 32  # no smaller copy exists


def test_crops_of_originals_are_close_to_antialiased_ones(arrays) -> None:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8))
    image = np.asarray(coarse.resize((480, 320), Image.Resampling.BICUBIC))
    cut = CropTransform(resize=32, train_resize="original", size=48, scale=(0.08, 1), hflip=False)
    store = ImageCache(arrays([image]), resize="original", cache="ram")
    found = cut.train(store, [0] * 20, torch.Generator().manual_seed(0))
    boxes = train_boxes(
        torch.full((20,), 320), torch.full((20,), 480), torch.Generator().manual_seed(0), scale=(0.08, 1)
    )
    plain = crop_batch(store.gather([0] * 20), boxes, 48)
    exact = torch.stack(
        [torch.from_numpy(np.array(Image.fromarray(image).resize(
            (48, 48), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
        ))).permute(2, 0, 1).float() / 255 for top, left, height, width in boxes.tolist()]
    )  # fmt: skip
    errors = [float((crops_ - exact).square().mean()) for crops_ in (found, plain)]
    assert errors[0] < 0.25 * errors[1]


def test_train_crops_follow_the_generator(store: ImageCache) -> None:
    cut = CropTransform(resize=8, size=(5, 6))
    first, same, other = (cut.train(store, [0, 1, 2], torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert first.shape == (3, 3, 5, 6)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert first.min() >= 0
    assert first.max() <= 1


def test_flip_can_be_turned_off(store: ImageCache) -> None:
    indices = [0] * 16
    plain = CropTransform(resize=8, size=6, hflip=False).train(store, indices, torch.Generator().manual_seed(0))
    mixed = CropTransform(resize=8, size=6).train(store, indices, torch.Generator().manual_seed(0))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(mixed, plain, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(mixed, plain, strict=True)]
    assert all(m != s for m, s in zip(mirrored, same, strict=True))
    assert 0 < sum(mirrored) < 16


def test_a_custom_transform_replaces_the_random_crop(store: ImageCache) -> None:
    seen: list[tuple[torch.dtype, tuple[int, ...]]] = []

    def corner(image: Tensor) -> Tensor:
        seen.append((image.dtype, tuple(image.shape)))
        return image[:, :4, :3]

    found = CropTransform(resize=8, transform=corner).train(store, [0, 2], torch.Generator())
    assert seen == [(torch.uint8, (3, 8, 20)), (torch.uint8, (3, 8, 8))]
    for crop, image in zip(found, store.gather([0, 2]).images(), strict=True):
        assert torch.equal(crop, image[:, :4, :3].float() / 255)
    halves = CropTransform(resize=8, transform=lambda image: torch.full((3, 2, 2), 0.5, dtype=torch.float64))
    found = halves.train(store, [0, 1], torch.Generator())
    assert found.dtype == torch.float32
    assert (found == 0.5).all()


def test_transforms_of_uneven_size_or_kind(store: ImageCache) -> None:
    with pytest.raises(DataError, match=r"shape \(3, 8, 20\) and then \(3, 26, 8\), .* End the function with a crop"):
        CropTransform(resize=8, transform=lambda image: image).train(store, [0, 1], torch.Generator())
    with pytest.raises(DataError, match=r"expected a \(3, height, width\) tensor, got \(8, 20\)"):
        CropTransform(resize=8, transform=lambda image: image[0]).train(store, [0], torch.Generator())


def test_invalid_settings_are_rejected(store: ImageCache) -> None:
    for key, wrong in (
        ("image.crop", {"size": 0}),
        ("image.resize", {"resize": 0}),
        ("augment.resize", {"train_resize": 0}),
        ("augment.resize", {"train_resize": -3}),
        ("augment.scale", {"scale": (0.5, 0.2)}),
        ("augment.scale", {"scale": (0.0, 1.0)}),
        ("augment.ratio", {"ratio": (2.0, 1.0)}),
    ):
        with pytest.raises(ConfigError, match=f"{key}="):
            CropTransform(**wrong)
    with pytest.raises(ConfigError, match="short side 256, the cache has 8"):
        CropTransform().test(store, [0])


@pytest.mark.parametrize("own", [False, True])
def test_rows_of_a_batch_are_cropped_as_in_the_whole_batch(store: ImageCache, own: bool) -> None:
    def noise(image: Tensor) -> Tensor:
        return torch.rand(3, 4, 4) + random.random() + np.random.random()  # noqa: NPY002

    cut = CropTransform(resize=8, size=6, transform=noise if own else None)
    indices = [0, 1, 2, 0, 1, 2, 1]
    whole = cut.train(store, indices, torch.Generator().manual_seed(3))
    for rows in (slice(0, 3), slice(3, 5), slice(5, 7)):
        torch.manual_seed(int(rows.start))
        part = cut.train(store, indices, torch.Generator().manual_seed(3), rows=rows)
        assert torch.equal(part, whole[rows])
    assert not torch.equal(whole[0], whole[3])


def test_a_transform_does_not_change_the_global_generator(store: ImageCache) -> None:
    drawing = CropTransform(resize=8, transform=lambda image: torch.rand(3, 2, 2))
    torch.manual_seed(1)
    drawing.train(store, [0, 1], torch.Generator())
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(3))
