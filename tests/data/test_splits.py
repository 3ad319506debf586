from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from winnow.data import FileImages, ImageSet, load_images, split_by_class
from winnow.data.splits import parse_classes
from winnow.errors import ConfigError, DataError


def made(count: int, each: int = 2, splits: list[str] | None = None) -> FileImages:
    """`count` classes named c1, c2, ... of `each` images; `splits` holds one split per class."""
    names = [f"c{i + 1}" for i in range(count) for _ in range(each)]
    per_image = None if splits is None else [split for split in splits for _ in range(each)]
    return FileImages.from_names("root", [f"{i}.png" for i in range(len(names))], names, original_split=per_image)


def classes(images: ImageSet | None) -> list[str]:
    return [] if images is None else list(images.class_names)


@given(
    count=st.integers(4, 60),
    val_fraction=st.floats(0.01, 0.98),
    test_fraction=st.floats(0, 0.98),
    seed=st.integers(0, 10),
)
@settings(deadline=None)
def test_random_splits_are_disjoint_and_complete(
    count: int, val_fraction: float, test_fraction: float, seed: int
) -> None:
    assume(val_fraction + test_fraction < 1)
    images = made(count)
    splits = split_by_class(images, val_fraction=val_fraction, test_fraction=test_fraction, seed=seed)
    parts = [classes(splits.train), classes(splits.val), classes(splits.test)]
    assert sorted(parts[0] + parts[1] + parts[2]) == sorted(images.class_names)
    assert len(parts[0]) >= 2
    assert len(parts[1]) >= 2
    assert (splits.test is None) == (count < 6 or test_fraction == 0)
    assert splits.test is None or len(parts[2]) >= 2
    for part in (splits.train, splits.val, splits.test):
        if part is not None:
            assert np.array_equal(np.unique(part.labels), np.arange(len(part.class_names)))


def test_selected_images_keep_their_labels_and_the_given_order() -> None:
    images = made(3)
    some = images.select([4, 0, 5])
    assert [some.name(i) for i in range(len(some))] == ["4.png", "0.png", "5.png"]
    assert some.labels.tolist() == [2, 0, 2]
    assert some.class_names == images.class_names
    assert len(images.select([])) == 0


def test_fractions_and_seed() -> None:
    images = made(100)
    one, same, other = (split_by_class(images, seed=seed) for seed in (0, 0, 1))
    assert [len(classes(part)) for part in (one.train, one.val, one.test)] == [60, 15, 25]
    assert classes(one.val) == classes(same.val)
    assert classes(one.val) != classes(other.val)


def test_too_few_classes_are_rejected() -> None:
    with pytest.raises(DataError, match=r"3 classes \(c1, c2, c3\), at least 4 required"):
        split_by_class(made(3))


def test_a_split_of_one_named_class_is_rejected() -> None:
    with pytest.raises(DataError, match=r"data\.test_classes: 1 class selected .* at least 2 required"):
        split_by_class(made(10), train_classes="1-3,5", val_classes="6-7", test_classes="10")


def test_named_classes_are_positions_in_natural_order() -> None:
    splits = split_by_class(made(10), train_classes="1-3, 5", val_classes="6-7", test_classes="9-10")
    assert classes(splits.train) == ["c1", "c2", "c3", "c5"]
    assert classes(splits.val) == ["c6", "c7"]
    assert classes(splits.test) == ["c9", "c10"]
    assert splits.notes == ("2 of 10 classes are in no split and are skipped",)


def test_only_test_classes_splits_the_other_classes_at_random() -> None:
    splits = split_by_class(made(10), test_classes="1-5")
    assert classes(splits.test) == ["c1", "c2", "c3", "c4", "c5"]
    assert sorted(classes(splits.train) + classes(splits.val)) == ["c10", "c6", "c7", "c8", "c9"]


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        ({"train_classes": "1-x", "val_classes": "1"}, r"data.train_classes=1-x: '1-x' is no class range"),
        ({"train_classes": "1-4", "val_classes": "5-11"}, r"'5-11' is not within the classes 1-10"),
        ({"train_classes": "4-1", "val_classes": "5"}, r"'4-1' is not within"),
        ({"train_classes": "0-3", "val_classes": "5"}, r"'0-3' is not within"),
        ({"train_classes": "1-3,2", "val_classes": "5"}, r"a class occurs twice"),
        (
            {"train_classes": "1-5", "val_classes": "5-6"},
            r"data.train_classes, data.val_classes: shared classes 5\.",
        ),
        ({"train_classes": "1-5"}, r"only one is set"),
        ({"val_fraction": 0.8, "test_fraction": 0.3}, r"data.val_fraction=0.8, data.test_fraction=0.3"),
        ({"val_fraction": 0.0}, r"data.val_fraction=0.0"),
    ],
)
def test_invalid_settings_are_rejected(settings_: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        split_by_class(made(10), **settings_)


@given(st.sets(st.integers(1, 30), min_size=1))
@settings(deadline=None)
def test_ranges_are_positions_from_one(positions: set[int]) -> None:
    text = ",".join(str(position) for position in sorted(positions))
    assert parse_classes(text, 30, "x") == [position - 1 for position in sorted(positions)]
    low, high = min(positions), max(positions)
    assert parse_classes(f"{low}-{high}", 30, "x") == list(range(low - 1, high))


def test_original_splits_are_used() -> None:
    splits = split_by_class(made(6, splits=["val", "train", "test", "train", "test", "val"]))
    assert classes(splits.train) == ["c2", "c4"]
    assert classes(splits.val) == ["c1", "c6"]
    assert classes(splits.test) == ["c3", "c5"]


def test_original_splits_without_validation_take_it_from_training() -> None:
    splits = split_by_class(made(8, splits=["train"] * 6 + ["test"] * 2))
    assert classes(splits.test) == ["c7", "c8"]
    assert len(classes(splits.train)) == 4
    assert len(classes(splits.val)) == 2


def test_an_original_training_split_alone_is_split_at_random() -> None:
    splits = split_by_class(made(8, splits=["train"] * 8))
    assert [len(classes(part)) for part in (splits.train, splits.val, splits.test)] == [4, 2, 2]


def test_original_splits_that_share_classes_are_rejected(tmp_path: Path, write) -> None:
    for split in ("train", "val"):
        for name in "abcd":
            write(f"{split}/{name}/1.png")
    with pytest.raises(
        DataError, match=r"train and val splits share classes \(a, b, c, \.\.\. \(4 in all\)\)"
    ) as caught:
        split_by_class(load_images(tmp_path))
    assert "Remove the split column or the split folders" in str(caught.value)


def test_original_splits_without_training_are_rejected() -> None:
    with pytest.raises(DataError, match="no training images"):
        split_by_class(made(4, splits=["val", "val", "test", "test"]))


def test_an_original_split_of_one_class_is_rejected() -> None:
    with pytest.raises(DataError, match=r"data\.val_classes: 1 class selected"):
        split_by_class(made(4, splits=["train", "train", "train", "val"]))


def test_validation_needs_a_class_of_two_images() -> None:
    with pytest.raises(DataError, match="no class of the validation split has two images"):
        split_by_class(made(4, each=1))
    names = ["a", "b", "c", "d", "d"]
    lonely = FileImages.from_names("root", [str(i) for i in range(5)], names)
    splits = split_by_class(lonely, train_classes="1-2", val_classes="3-4")
    assert len(splits.val) == 3
    assert len(splits.train) == 2


def test_from_disk(tmp_path: Path, write) -> None:
    for label in range(8):
        for image in range(2):
            write(f"set/c{label}/{image}.png")
    (tmp_path / "set/none").mkdir()
    splits = split_by_class(load_images(tmp_path / "set"), seed=3)
    assert len(splits.train) + len(splits.val) + len(splits.test or ()) == 16
    assert "none" in splits.notes[0]
    rows = "".join(
        f"set/c{c}/{i}.png,{'ab'[c % 2]}{c},{'train' if c < 6 else 'val'}\n" for c in range(8) for i in range(2)
    )
    (tmp_path / "set.csv").write_text("path,label,split\n" + rows)
    splits = split_by_class(load_images(tmp_path / "set.csv"))
    assert classes(splits.val) == ["a6", "b7"]
    assert splits.test is None
