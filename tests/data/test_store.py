from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from winnow.data import ImageCache, ImageCacheView, RaggedImages, decoding, read_folder, resize_short
from winnow.data import store as store_module
from winnow.data.store import max_halvings
from winnow.errors import ConfigError, DataError

SIZES = [(9, 13), (20, 8), (1, 1), (8, 8), (40, 24), (3, 50)]


def as_arrays(batch: RaggedImages) -> list[np.ndarray]:
    return [image.permute(1, 2, 0).numpy() for image in batch.images()]


def test_resizing_keeps_the_aspect_and_rounds_the_long_side_down() -> None:
    sizes = {(100, 50): (16, 8), (50, 101): (8, 16), (8, 8): (8, 8), (1, 1): (8, 8), (3, 5): (8, 13)}
    for size, expected in sizes.items():
        assert resize_short(Image.new("RGB", size), 8).size == expected


def test_resizing_is_pillows_antialiased_bilinear(noise) -> None:
    image = Image.fromarray(noise(40, 60))
    expected = image.resize((30, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(np.asarray(resize_short(image, 20)), np.asarray(expected))
    # A fine checkerboard averages to gray. Without antialiasing it would stay black and white.
    board = Image.fromarray(np.indices((64, 64)).sum(0).astype(np.uint8) % 2 * 255).convert("RGB")
    assert np.asarray(resize_short(board, 8))[1:-1, 1:-1].std() < 3


def test_a_very_long_image_is_cropped_to_its_center() -> None:
    line = Image.new("RGB", (5001, 1), "black")
    line.putpixel((2500, 0), (255, 255, 255))
    small = np.asarray(resize_short(line, 4))
    assert small.shape == (4, 64, 3)
    assert abs(int(small[0, :, 0].argmax()) - 32) <= 2
    assert resize_short(line.transpose(Image.Transpose.ROTATE_90), 4).size == (4, 64)


@pytest.mark.parametrize("cache", ["auto", "ram", "device", "none"])
def test_gather_equals_direct_decoding(arrays, noise, cache: str) -> None:
    values = [noise(*size, seed) for seed, size in enumerate(SIZES)]
    images = arrays(values, [0, 0, 1, 1, 2, 2])
    store = ImageCache(images, resize=8, cache=cache, workers=2)
    assert len(store) == 6
    assert store.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert store.cache == ("ram" if cache == "auto" else cache)
    indices = [4, 0, 2, 2, 5]
    batch = store.gather(indices)
    assert len(batch) == 5
    assert batch.pixels.dtype == torch.uint8
    assert batch.offsets.dtype == batch.heights.dtype == batch.widths.dtype == torch.int64
    for found, index in zip(as_arrays(batch), indices, strict=True):
        expected = np.asarray(resize_short(Image.fromarray(values[index]), 8))
        assert np.array_equal(found, expected)


def test_several_slabs_give_the_same_buffer(arrays, noise, monkeypatch: pytest.MonkeyPatch) -> None:
    images = arrays([noise(*size, seed) for seed, size in enumerate(SIZES)])
    whole = ImageCache(images, resize=8, cache="ram").gather(range(6))
    monkeypatch.setattr(store_module, "_SLAB_BYTES", 500)
    pieces = ImageCache(images, resize=8, cache="ram").gather(range(6))
    assert torch.equal(whole.pixels, pieces.pixels)
    assert torch.equal(whole.offsets, pieces.offsets)


def test_indices_out_of_range(arrays, noise) -> None:
    store = ImageCache(arrays([noise(4, 4)]), resize=8)
    for wrong in ([1], [-1]):
        with pytest.raises(IndexError, match=r"within 0-0"):
            store.gather(wrong)


@pytest.mark.parametrize("cache", ["ram", "none"])
def test_skipped_images_are_listed(tmp_path: Path, write, cache: str) -> None:
    for name, color in (("a/1.png", (1, 1, 1)), ("a/3.png", (3, 3, 3)), ("b/2.png", (4, 4, 4))):
        write(name, color=color)
    (tmp_path / "a/2.png").write_text("broken")
    (tmp_path / "b/1.png").touch()
    images = read_folder(tmp_path)
    store = ImageCache(images, resize=4, cache=cache, on_error="skip")
    assert store.skipped == [("a/2.png", "not a supported image format"), ("b/1.png", "empty file")]
    assert store.kept.tolist() == [0, 2, 4]
    assert store.labels.tolist() == [0, 0, 1]
    assert [store.name(i) for i in range(len(store))] == ["a/1.png", "a/3.png", "b/2.png"]
    assert [int(image[0, 0, 0]) for image in as_arrays(store.gather([0, 1, 2]))] == [1, 3, 4]


def test_unreadable_images_raise_unless_skipped(tmp_path: Path, write) -> None:
    write("a/1.png")
    (tmp_path / "a/2.png").write_text("broken")
    images = read_folder(tmp_path)
    with pytest.raises(DataError, match=r"2\.png: image cannot be read"):
        ImageCache(images, resize=4, cache="ram")
    store = ImageCache(images, resize=4, cache="none")
    store.gather([0])
    with pytest.raises(DataError, match=r"2\.png: image cannot be read"):
        store.gather([0, 1])


def test_nothing_readable(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.png").write_text("broken")
    with pytest.raises(DataError, match=r"a/1\.png: image cannot be read .* any other of the 1"):
        ImageCache(read_folder(tmp_path), on_error="skip")


@pytest.mark.parametrize("workers", [1, 3])
def test_progress_counts_up_to_the_total(arrays, noise, workers: int) -> None:
    calls: list[tuple[int, int]] = []
    images = arrays([noise(4, 4, seed) for seed in range(30)])
    ImageCache(images, resize=4, cache="ram", workers=workers, progress=lambda *call: calls.append(call))
    assert calls == [(i + 1, 30) for i in range(30)]


def test_auto_depends_on_the_free_memory(arrays, noise, monkeypatch: pytest.MonkeyPatch) -> None:
    images = arrays([noise(8, 8, seed) for seed in range(40)])
    bytes_needed = 40 * 8 * 8 * 3
    for free, expected in ((2 * bytes_needed + 2, "ram"), (2 * bytes_needed, "none")):
        monkeypatch.setattr(store_module, "free_ram", lambda free=free: free)
        assert ImageCache(images, resize=8).cache == expected


def test_invalid_settings_are_rejected(arrays, noise) -> None:
    images = arrays([noise(4, 4)])
    for key, settings in (
        ("data.image_cache", {"cache": "disk"}),
        ("data.unreadable_images", {"on_error": "ignore"}),
        ("image.resize", {"resize": 0}),
    ):
        with pytest.raises(ConfigError, match=f"{key}="):
            ImageCache(images, **settings)


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["auto", "ram", "device", "none"])
def test_gather_on_a_gpu(arrays, noise, cache: str) -> None:
    images = arrays([noise(*size, seed) for seed, size in enumerate(SIZES)])
    store = ImageCache(images, resize=8, cache=cache, device="cuda")
    assert store.cache == ("device" if cache == "auto" else cache)
    batch = store.gather([5, 0, 3])
    assert batch.pixels.is_cuda
    assert not batch.heights.is_cuda  # Boxes are drawn on the CPU.
    expected = ImageCache(images, resize=8, cache="ram").gather([5, 0, 3])
    for found, image in zip(batch.images(), expected.images(), strict=True):
        assert torch.equal(found.cpu(), image)


@pytest.mark.parametrize("cache", ["ram", "none"])
def test_views_contain_the_images_of_subsets(arrays, noise, cache: str) -> None:
    images = arrays([noise(*size, seed) for seed, size in enumerate(SIZES)], [0, 0, 1, 1, 2, 2])
    subset = images.select_classes([2, 0]).select_classes([1])  # class 0, through two subsets
    store = ImageCache(images, resize=8, cache=cache)
    view, own = ImageCacheView(store, subset), ImageCache(subset, resize=8)
    assert len(view) == len(own) == 2
    assert view.labels.tolist() == own.labels.tolist() == [0, 0]
    assert [view.name(i) for i in range(2)] == ["array 0", "array 1"]
    for a, b in zip(as_arrays(view.gather([1, 0])), as_arrays(own.gather([1, 0])), strict=True):
        assert np.array_equal(a, b)
    with pytest.raises(IndexError, match="within 0-1"):
        view.gather([2])
    with pytest.raises(ValueError, match="no subset of the cached set"):
        ImageCacheView(store, arrays([noise(4, 4)]))


def test_a_view_lists_the_images_that_its_cache_skipped(tmp_path: Path, write) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        write(name)
    (tmp_path / "b/2.png").write_text("broken")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/1.png").write_text("broken")
    images = read_folder(tmp_path)
    store = ImageCache(images, resize=4, on_error="skip")
    a, b, c = (images.select_classes([label]) for label in range(3))
    assert ImageCacheView(store, a).skipped == []
    view = ImageCacheView(store, b, strict=False)
    assert view.skipped == [("b/2.png", "not a supported image format")]
    assert view.name(0) == "b/1.png"
    with pytest.raises(DataError, match=r"2\.png: image cannot be read"):
        ImageCacheView(store, b)
    with pytest.raises(DataError, match=r"c/1\.png: image cannot be read .* any other of the 1"):
        ImageCacheView(store, c, strict=False)


ORIGINALS = [(70, 33), (64, 65), (31, 40), (8, 8), (200, 129), (1, 1)]
HALVINGS = [1, 2, 0, 0, 3, 0]  # while the short side is at least 16: 33 to 17, 64 to 32 to 16, 129 to 65 to 33 to 17


@pytest.mark.parametrize("cache", ["auto", "ram", "device", "none"])
def test_images_of_original_size_come_with_halved_copies(arrays, noise, cache: str) -> None:
    values = [noise(*size, seed) for seed, size in enumerate(ORIGINALS)]
    store = ImageCache(arrays(values), resize="original", cache=cache, workers=2)
    indices = [4, 0, 3, 1, 2, 5, 4]
    batch = store.locate(indices)
    times = max_halvings(batch.heights, batch.widths)
    assert times.tolist() == [HALVINGS[index] for index in indices]
    for level in range(4):
        chosen = times.clamp(max=level)
        found = as_arrays(batch.halved(chosen))
        for pixels, index, number in zip(found, indices, chosen.tolist(), strict=True):
            expected = values[index].astype(np.float64)
            for _ in range(number):  # means of 2 x 2 pixels; at an odd end, of those that exist
                height, width = (-(-side // 2) for side in expected.shape[:2])
                expected = np.array(
                    [[expected[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((0, 1)) for j in range(width)]
                     for i in range(height)]
                )  # fmt: skip
            assert pixels.shape == expected.shape
            assert np.abs(pixels - expected).max() <= number + 1e-9  # each halving rounds to whole numbers
    for image, index in zip(as_arrays(store.gather(indices)), indices, strict=True):
        assert np.array_equal(image, values[index])


def test_very_large_images_of_original_size_are_reduced(arrays, noise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_ORIGINAL_SIDE", 20)
    values = [noise(40, 60, 1), noise(20, 50, 2)]
    large, small = as_arrays(ImageCache(arrays(values), resize="original", cache="ram").gather([0, 1]))
    assert np.array_equal(large, np.asarray(resize_short(Image.fromarray(values[0]), 20)))
    assert np.array_equal(small, values[1])


def test_memory_of_original_images_is_four_bytes_a_pixel(arrays, noise) -> None:
    images = arrays([noise(400, 500, 1), noise(333, 720, 2)])
    pixels = 400 * 500 + 333 * 720
    used = len(ImageCache(images, resize="original", cache="ram").gather([0]).pixels)
    assert 3.9 * pixels < used < 4.05 * pixels


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["ram", "device", "none"])
def test_copies_of_original_images_on_a_gpu(arrays, noise, cache: str) -> None:
    images = arrays([noise(*size, seed) for seed, size in enumerate(ORIGINALS)])
    found, expected = (
        ImageCache(images, resize="original", cache=place, device=device).locate([4, 0, 1])
        for place, device in ((cache, "cuda"), ("ram", "cpu"))
    )
    times = torch.tensor([2, 0, 1])
    moved = found.halved(times).to(torch.device("cuda"))
    assert moved.pixels.is_cuda
    for one, other in zip(moved.images(), expected.halved(times).images(), strict=True):
        assert torch.equal(one.cpu(), other)
