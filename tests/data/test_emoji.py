from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import winnow.data.emoji
from winnow.data.emoji import EmojiCollages, emoji, load_emoji
from winnow.data.emoji.drawings import drawings
from winnow.errors import ConfigError

FOLDER = Path(winnow.data.emoji.__file__).parent
ARTISTS = ("noto", "twemoji", "fluent", "emojione", "fluent-flat")
MAKERS = {"fluent-flat": "fluent"}


def collages(seed: int = 0, distilled: bool = False, images_per_class: int = 8) -> dict[str, EmojiCollages]:
    splits = load_emoji(images_per_class=images_per_class, seed=seed, distilled=distilled)
    found = {"train": splits.train, "val": splits.val, "test": splits.test}
    assert all(isinstance(images, EmojiCollages) for images in found.values())
    return found  # type: ignore[return-value]


def pixels(images: EmojiCollages, index: int) -> np.ndarray:
    return np.asarray(images.read(index)).astype(int)


def some(images: EmojiCollages) -> range:
    return range(0, len(images), len(images) // 60)


def test_data_folder_stays_small() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {f"drawings_{artist}.webp" for artist in ARTISTS} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) <= 4_000_000


def test_every_artist_has_a_license() -> None:
    text = (FOLDER / "LICENSES.md").read_text(encoding="utf-8")
    artists = {artist for one in emoji() for artist in one.artists}
    assert artists == set(ARTISTS)
    assert all(f"`drawings_{artist}.webp`" in text for artist in artists)


def test_counts() -> None:
    found = collages(images_per_class=5)
    for split, least_classes, least_clutter in (("train", 380, 200), ("val", 75, 45), ("test", 250, 150)):
        images = found[split]
        assert len(images.class_names) >= least_classes
        assert len(images.clutter) >= least_clutter
        assert np.bincount(images.labels).tolist() == [5] * len(images.class_names)
    assert sum(len(images.class_names) for images in found.values()) >= 700


def test_classes_and_clutter_are_disjoint_between_splits() -> None:
    found = collages()
    # Roles are disjoint too: what is a class in one split is clutter in none.
    groups = [one for images in found.values() for one in (images.foreground, images.clutter)]
    for one, other in combinations(groups, 2):
        assert not {e.codepoint for e in one} & {e.codepoint for e in other}
        assert not {e.name for e in one} & {e.name for e in other}


def test_splits_have_similar_categories() -> None:
    shares = []
    for images in collages().values():
        categories = [one.category for one in images.foreground]
        shares.append([categories.count(c) / len(categories) for c in sorted(set(categories))])
    assert len(shares[0]) == 5
    np.testing.assert_allclose(shares[1:], [shares[0]] * 2, atol=0.03)


@pytest.mark.parametrize("images_per_class", [3, 8])
def test_every_class_is_drawn_by_three_makers(images_per_class: int) -> None:
    for images in collages(images_per_class=images_per_class).values():
        makers: list[set[str]] = [set() for _ in images.class_names]
        for index, label in enumerate(images.labels):
            artist = images.artist(index)
            makers[label].add(MAKERS.get(artist, artist))
        assert min(map(len, makers)) >= 3


@pytest.mark.parametrize("artist", ARTISTS)
def test_drawings_fill_their_tiles(artist: str) -> None:
    numbers = [number for one in emoji() for who, number in one.tiles if who == artist]
    found = drawings(artist)
    assert numbers == list(range(len(found)))
    for drawing in found:
        assert drawing.tile.size == (64, 64)
        assert drawing.tile.mode == "RGBA"
        assert max(drawing.half_width, drawing.half_height) >= 28
        # The four corners of a tile are free, else tiles would be cut in the wrong places.
        assert max(drawing.tile.getpixel(xy)[3] for xy in ((0, 0), (63, 0), (0, 63), (63, 63))) < 24


def test_images_are_rgb_and_reproducible() -> None:
    first, again, other = collages(), collages(), collages(seed=1)
    for split, images in first.items():
        for index in some(images):
            image = images.read(index)
            assert image.mode == "RGB"
            assert image.size == (128, 128)
            assert image.tobytes() == again[split].read(index).tobytes()
            assert image.tobytes() != other[split].read(index).tobytes()
            assert images.cache_key(index) == again[split].cache_key(index)
            assert images.name(index) == other[split].name(index)


def test_images_of_a_class_differ() -> None:
    images = collages(images_per_class=12)["val"]
    assert len({images.read(index).tobytes() for index in range(12)}) == 12
    assert len({images.name(index) for index in range(len(images))}) == len(images)


def test_an_image_does_not_depend_on_how_many_there_are() -> None:
    few, many = collages(images_per_class=3)["val"], collages(images_per_class=7)["val"]
    assert few.read(3 * 5 + 2).tobytes() == many.read(7 * 5 + 2).tobytes()
    assert few.cache_key(3 * 5 + 2) == many.cache_key(7 * 5 + 2)


def test_cache_keys_are_unique() -> None:
    sets = [*collages().values(), *collages(seed=1).values(), *collages(distilled=True).values()]
    keys = [images.cache_key(index) for images in sets for index in range(len(images))]
    assert len(set(keys)) == len(keys)
    pool = collages()["val"]
    fewer = EmojiCollages(pool.foreground, pool.clutter[1:])
    assert fewer.cache_key(0) != pool.cache_key(0)


def test_foreground_box_contains_only_the_foreground() -> None:
    full, distilled = collages()["test"], collages(distilled=True)["test"]
    seen = set()
    for index in some(full):
        left, top, right, bottom = box = full.foreground_box(index)
        assert box == distilled.foreground_box(index)
        column, row = left // 64, top // 64
        assert (column, row) == ((right - 1) // 64, (bottom - 1) // 64)
        seen.add((column, row))
        assert max(right - left, bottom - top) >= 0.65 * 64

        with_clutter, without = pixels(full, index), pixels(distilled, index)
        cell = np.s_[64 * row : 64 * row + 64, 64 * column : 64 * column + 64]
        assert (with_clutter[cell] == without[cell]).all()

        # Without clutter all that is not ground lies in the box; the corner opposite the cell is ground.
        ground = without[127 if row == 0 else 0, 127 if column == 0 else 0]
        changed = (without != ground).any(axis=-1)
        assert changed[top:bottom, left:right].mean() > 0.08
        changed[top:bottom, left:right] = False
        assert not changed.any()

        # With clutter each of the other three cells holds a drawing.
        clutter = (with_clutter != ground).any(axis=-1)
        clutter[cell] = False
        filled = [clutter[y : y + 64, x : x + 64].mean() for x in (0, 64) for y in (0, 64)]
        assert sorted(share > 0.03 for share in filled) == [False, True, True, True]
    assert len(seen) == 4


def test_foreground_is_drawn_by_the_artist_named() -> None:
    images = collages()["val"]
    for index in range(8):
        one = images.foreground[0]
        assert images.artist(index) == one.artists[index % len(one.artists)]
        assert images.artist(index) in images.name(index)
        assert images.name(index).startswith(images.class_names[0])


@pytest.mark.parametrize(("setting", "value"), [("images_per_class", 0), ("seed", -1)])
def test_invalid_settings_are_rejected(setting: str, value: int) -> None:
    with pytest.raises(ConfigError, match=setting):
        load_emoji(**{setting: value})  # type: ignore[arg-type]


def test_too_little_clutter_is_rejected() -> None:
    images = collages()["val"]
    with pytest.raises(ConfigError, match="clutter"):
        EmojiCollages(images.foreground, images.clutter[:2])
