from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from winnow.data import FileSet, ImageSet, load_images, split_by_class
from winnow.data.splits import parse_classes
from winnow.errors import ConfigError, DataError


def made(count: int, each: int = 2, splits: list[str] | None = None) -> FileSet:
    """`count` classes named c1, c2, ... of `each` images; `splits` holds one split per class."""
    names = [f"c{i + 1}" for i in range(count) for _ in range(each)]
    per_image = None if splits is None else [split for split in splits for _ in range(each)]
    return FileSet.of_names("root", [f"{i}.png" for i in range(len(names))], names, given=per_image)


def classes(images: ImageSet | None) -> list[str]:
    return [] if images is None else list(images.class_names)


@given(
    count=st.integers(4, 60),
    val_share=st.floats(0.01, 0.98),
    test_share=st.floats(0, 0.98),
    seed=st.integers(0, 10),
)
@settings(deadline=None)
def test_random_splits_are_disjoint_and_complete(count: int, val_share: float, test_share: float, seed: int) -> None:
    assume(val_share + test_share < 1)
    images = made(count)
    splits = split_by_class(images, val_share=val_share, test_share=test_share, seed=seed)
    parts = [classes(splits.train), classes(splits.val), classes(splits.test)]
    assert sorted(parts[0] + parts[1] + parts[2]) == sorted(images.class_names)
    assert len(parts[0]) >= 2
    assert len(parts[1]) >= 2
    assert (splits.test is None) == (count < 6 or test_share == 0)
    assert splits.test is None or len(parts[2]) >= 2
    for part in (splits.train, splits.val, splits.test):
        if part is not None:
            assert np.array_equal(np.unique(part.labels), np.arange(len(part.class_names)))


def test_some_images_keep_their_labels_and_the_order_asked_for() -> None:
    images = made(3)
    some = images.of_images([4, 0, 5])
    assert [some.name(i) for i in range(len(some))] == ["4.png", "0.png", "5.png"]
    assert some.labels.tolist() == [2, 0, 2]
    assert some.class_names == images.class_names
    assert len(images.of_images([])) == 0


def test_shares_and_seed() -> None:
    images = made(100)
    one, same, other = (split_by_class(images, seed=seed) for seed in (0, 0, 1))
    assert [len(classes(part)) for part in (one.train, one.val, one.test)] == [60, 15, 25]
    assert classes(one.val) == classes(same.val)
    assert classes(one.val) != classes(other.val)


def test_too_few_classes_says_how_many() -> None:
    with pytest.raises(DataError, match=r"too few classes \(c1, c2, c3\): at least 4"):
        split_by_class(made(3))


def test_a_named_split_of_one_class() -> None:
    with pytest.raises(DataError, match=r"the test split has too few classes \(1\)"):
        split_by_class(made(10), train_classes="1-3,5", val_classes="6-7", test_classes="10")


def test_named_classes_are_positions_in_natural_order() -> None:
    splits = split_by_class(made(10), train_classes="1-3, 5", val_classes="6-7", test_classes="9-10")
    assert classes(splits.train) == ["c1", "c2", "c3", "c5"]
    assert classes(splits.val) == ["c6", "c7"]
    assert classes(splits.test) == ["c9", "c10"]
    assert splits.notes == ("2 of 10 classes are named for no split and left out",)


def test_naming_only_the_test_classes_deals_the_others() -> None:
    splits = split_by_class(made(10), test_classes="1-5")
    assert classes(splits.test) == ["c1", "c2", "c3", "c4", "c5"]
    assert sorted(classes(splits.train) + classes(splits.val)) == ["c10", "c6", "c7", "c8", "c9"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"train_classes": "1-x", "val_classes": "1"}, r"data.train_classes=1-x: '1-x' is no class range"),
        ({"train_classes": "1-4", "val_classes": "5-11"}, r"'5-11' is not a range within the classes 1-10"),
        ({"train_classes": "4-1", "val_classes": "5"}, r"'4-1' is not a range"),
        ({"train_classes": "0-3", "val_classes": "5"}, r"'0-3' is not a range"),
        ({"train_classes": "1-3,2", "val_classes": "5"}, r"names a class twice"),
        (
            {"train_classes": "1-5", "val_classes": "5-6"},
            r"data.train_classes and data.val_classes share the classes 5;",
        ),
        ({"train_classes": "1-5"}, r"go together"),
        ({"val_share": 0.8, "test_share": 0.3}, r"data.val_share=0.8 and data.test_share=0.3"),
        ({"val_share": 0.0}, r"data.val_share=0.0"),
    ],
)
def test_settings_that_make_no_sense(asked: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        split_by_class(made(10), **asked)


@given(st.sets(st.integers(1, 30), min_size=1))
@settings(deadline=None)
def test_ranges_mean_what_they_say(positions: set[int]) -> None:
    text = ",".join(str(position) for position in sorted(positions))
    assert parse_classes(text, 30, "x") == [position - 1 for position in sorted(positions)]
    low, high = min(positions), max(positions)
    assert parse_classes(f"{low}-{high}", 30, "x") == list(range(low - 1, high))


def test_given_splits_are_used_as_they_are() -> None:
    splits = split_by_class(made(6, splits=["val", "train", "test", "train", "test", "val"]))
    assert classes(splits.train) == ["c2", "c4"]
    assert classes(splits.val) == ["c1", "c6"]
    assert classes(splits.test) == ["c3", "c5"]


def test_given_splits_without_validation_cut_it_from_training() -> None:
    splits = split_by_class(made(8, splits=["train"] * 6 + ["test"] * 2))
    assert classes(splits.test) == ["c7", "c8"]
    assert len(classes(splits.train)) == 4
    assert len(classes(splits.val)) == 2


def test_given_training_only_is_dealt_to_all() -> None:
    splits = split_by_class(made(8, splits=["train"] * 8))
    assert [len(classes(part)) for part in (splits.train, splits.val, splits.test)] == [4, 2, 2]


def test_given_splits_that_share_classes(tmp_path: Path, write) -> None:
    for split in ("train", "val"):
        for name in "abcd":
            write(f"{split}/{name}/1.png")
    with pytest.raises(
        DataError, match=r"train and val splits .* share classes \(a, b, c, \.\.\. \(4 in all\)\)"
    ) as caught:
        split_by_class(load_images(tmp_path))
    assert "remove the split column or the split folders" in str(caught.value)


def test_given_splits_without_training() -> None:
    with pytest.raises(DataError, match="no training images"):
        split_by_class(made(4, splits=["val", "val", "test", "test"]))


def test_given_split_of_one_class() -> None:
    with pytest.raises(DataError, match=r"the validation split has too few classes \(1\)"):
        split_by_class(made(4, splits=["train", "train", "train", "val"]))


def test_validation_needs_a_class_of_two_images() -> None:
    with pytest.raises(DataError, match="no class of the validation split has two images"):
        split_by_class(made(4, each=1))
    names = ["a", "b", "c", "d", "d"]
    lonely = FileSet.of_names("root", [str(i) for i in range(5)], names)
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
