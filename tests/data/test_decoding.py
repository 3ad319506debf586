from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from winnow.data import UnreadableImageError, read_image
from winnow.errors import DataError


def pixels(path: Path) -> list[list[tuple[int, ...]]]:
    image = read_image(path)
    assert image.mode == "RGB"
    return [[tuple(int(v) for v in pixel) for pixel in row] for row in np.asarray(image)]


def test_plain_rgb_is_returned_unchanged(tmp_path: Path, noise) -> None:
    values = noise(5, 7)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert np.array_equal(np.asarray(read_image(tmp_path / "a.png")), values)


def test_rgba_is_composited_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (3, 1))
    image.putdata([(0, 0, 0, 0), (10, 20, 30, 255), (0, 0, 0, 51)])
    image.save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png") == [[(255, 255, 255), (10, 20, 30), (204, 204, 204)]]


def test_gray_with_alpha_is_composited_on_white(tmp_path: Path) -> None:
    image = Image.new("LA", (2, 1))
    image.putdata([(0, 0), (90, 255)])
    image.save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png") == [[(255, 255, 255), (90, 90, 90)]]


def test_palette_with_transparent_color_is_composited_on_white(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    image.save(tmp_path / "a.png", transparency=0)
    assert pixels(tmp_path / "a.png") == [[(255, 255, 255), (40, 50, 60)]]


def test_plain_palette(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([1, 0])
    image.save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png") == [[(40, 50, 60), (10, 20, 30)]]


def test_gray_and_bilevel(tmp_path: Path) -> None:
    Image.new("L", (1, 1), 77).save(tmp_path / "gray.png")
    Image.new("1", (1, 1), 1).save(tmp_path / "bit.png")
    assert pixels(tmp_path / "gray.png") == [[(77, 77, 77)]]
    assert pixels(tmp_path / "bit.png") == [[(255, 255, 255)]]


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_gray_is_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 257, 128 * 257, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{suffix}")
    assert [p[0] for p in pixels(tmp_path / f"a.{suffix}")[0]] == [0, 1, 128, 255]


def test_cmyk_jpeg_with_adobe_inversion(tmp_path: Path) -> None:
    # Pillow writes CMYK JPEGs inverted with an Adobe marker, as Photoshop does.
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    assert b"Adobe" in (tmp_path / "a.jpg").read_bytes()
    red = np.asarray(read_image(tmp_path / "a.jpg")).astype(int)
    assert np.abs(red - [255, 0, 0]).max() <= 4


def test_the_first_frame_of_an_animation_is_used(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (2, 2), color) for color in ("red", "blue")]
    for suffix in ("gif", "webp", "png"):
        path = tmp_path / f"a.{suffix}"
        frames[0].save(path, save_all=True, append_images=frames[1:], lossless=True)
        assert pixels(path)[0][0] == (255, 0, 0), suffix


# Upright (row, column) of the top-left (red) and the top-right (green) pixel of the stored image.
UPRIGHT = {
    1: ((0, 0), (0, 1)),
    2: ((0, 1), (0, 0)),
    3: ((1, 1), (1, 0)),
    4: ((1, 0), (1, 1)),
    5: ((0, 0), (1, 0)),
    6: ((0, 1), (1, 1)),
    7: ((1, 1), (0, 1)),
    8: ((1, 0), (0, 0)),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("suffix", ["png", "tif", "webp"])
def test_exif_rotation_is_applied(tmp_path: Path, orientation: int, suffix: str) -> None:
    image = Image.new("RGB", (2, 2), "white")
    image.putpixel((0, 0), (255, 0, 0))
    image.putpixel((1, 0), (0, 255, 0))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    image.save(path, exif=exif, lossless=True)
    upright = pixels(path)
    red, green = UPRIGHT[orientation]
    assert upright[red[0]][red[1]] == (255, 0, 0)
    assert upright[green[0]][green[1]] == (0, 255, 0)


def test_exif_rotation_of_a_transparent_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGBA", (3, 1), (0, 0, 0, 0)).save(tmp_path / "a.png", exif=exif)
    assert pixels(tmp_path / "a.png") == [[(255, 255, 255)]] * 3


def test_an_image_with_damaged_exif_is_read(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "white").save(tmp_path / "a.jpg", exif=b"Exif\0\0nonsense")
    assert pixels(tmp_path / "a.jpg")[0][0] == (255, 255, 255)


def failure(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_image(path)
    assert isinstance(caught.value, UnreadableImageError)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    assert "data.unreadable_images=skip" in text
    return caught.value.reason


def test_truncated_jpeg(tmp_path: Path, noise) -> None:
    buffer = io.BytesIO()
    Image.fromarray(noise(64, 64)).save(buffer, format="JPEG")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    assert "truncated" in failure(tmp_path / "a.jpg")


def test_every_truncation_of_a_png_is_a_data_error(tmp_path: Path, noise) -> None:
    buffer = io.BytesIO()
    Image.fromarray(noise(8, 8)).save(buffer, format="PNG")
    data = buffer.getvalue()
    for length in range(0, len(data) - 40, 7):
        (tmp_path / "a.png").write_bytes(data[:length])
        failure(tmp_path / "a.png")


def test_text_named_jpg(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("hello")
    assert failure(tmp_path / "a.jpg") == "not a supported image format"


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    assert failure(tmp_path / "a.jpg") == "empty file"


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert failure(tmp_path / "a.jpg") == "file not found"
    with pytest.raises(DataError, match="Check its name"):
        read_image(tmp_path / "a.jpg")
    assert "directory" in failure(tmp_path)


def test_decompression_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (100, 100)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert failure(tmp_path / "a.png") == "more than 2,000 pixels, Pillow's limit"


def test_float_pixels_are_rejected(tmp_path: Path) -> None:
    Image.new("F", (2, 2), 0.5).save(tmp_path / "a.tif")
    assert "floating-point" in failure(tmp_path / "a.tif")
