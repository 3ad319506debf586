"""Stanford Online Products dataset."""

from __future__ import annotations

from pathlib import Path

from winnow.data.datasets.base import Dataset, DatasetParts, Source
from winnow.data.datasets.label_files import Row, build_listed_parts, find, line_error, read_lines
from winnow.errors import DataError


class SOP(Dataset):
    """Stanford Online Products: 120,053 images (Song et al., CVPR 2016).

    Split by class: 11,318 products of `Ebay_train.txt` train (59,551 images), 11,316 products of `Ebay_test.txt` test
    (60,502 images).
    Layout: `Ebay_train.txt`, `Ebay_test.txt`, and the image folders such as `bicycle_final`.
    License: as its owners state.

    Args:
        train: Expected number of training images.
        test: Expected number of test images.
        train_classes: Expected number of training classes.
        test_classes: Expected number of test classes.
    """

    name = "sop"
    title = "Stanford Online Products"
    about = "120,053 photos of 22,634 products; 11,318 products train, 11,316 test"
    terms = "as its owners state (Stanford)"
    home = "https://cvgl.stanford.edu/projects/lifted_struct/"
    layout = "Ebay_train.txt, Ebay_test.txt, and the folders bicycle_final, cabinet_final, ..."
    ks = (1, 10, 100, 1000)
    sources = (
        Source(
            "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            "Stanford_Online_Products.zip",
            "7f73d41a2f44250d4779881525aea32e",
        ),
    )

    def __init__(
        self, *, train: int = 59_551, test: int = 60_502, train_classes: int = 11_318, test_classes: int = 11_316
    ) -> None:
        self.counts = {"train": train, "test": test}
        self.classes = {"train": train_classes, "test": test_classes}

    def read(self, root: Path) -> DatasetParts:
        """Read Ebay_train.txt and Ebay_test.txt.

        They contain a header, then image_id, class_id, super_class_id, and path.
        """
        first = find(root, "Ebay_train.txt")
        if first is None:
            raise DataError(f"{root}: Ebay_train.txt not found. Name a folder of {self.title}.")
        rows: list[Row] = []
        parts: dict[str, list[int]] = {}
        names: list[str] = []
        for part in ("train", "test"):
            file = first.with_name(f"Ebay_{part}.txt")
            read = [_row(file, number, words) for number, words in enumerate(read_lines(file)[1:], start=2)]
            ids = sorted({class_id for class_id, _ in read})
            position = {class_id: len(names) + number for number, class_id in enumerate(ids)}
            parts[part] = list(position.values())
            names += [str(class_id) for class_id in ids]
            rows += [Row(part, path, position[class_id]) for class_id, path in read]
        return build_listed_parts(root, rows, names, parts, at=first.parent)


def _row(file: Path, number: int, words: list[str]) -> tuple[int, str]:
    if len(words) != 4 or not words[1].isdigit():
        raise line_error(file, number, "expected image_id, class_id, super_class_id, and path")
    return int(words[1]), words[3]
