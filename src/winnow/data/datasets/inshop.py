"""In-shop Clothes Retrieval dataset of DeepFashion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from winnow.data.datasets.base import Dataset, DatasetParts
from winnow.data.datasets.label_files import Row, build_listed_parts, find, line_error, read_lines
from winnow.data.datasets.official import image_size
from winnow.errors import DataError

_PARTS = {"train": "train", "query": "test", "gallery": "gallery"}
_OFFICIAL_SIZE = (256, 256)
_SAMPLE = 50


class InShop(Dataset):
    """In-shop Clothes Retrieval: 52,712 images of 7,982 items (Liu et al., CVPR 2016).

    Split by class: 3,997 items train (25,882 images), 3,985 items test (14,218 queries, 12,612 gallery images). Items
    are in the order of their ids, and so are the folds of the training items.
    Layout: `list_eval_partition.txt` and `img/`, from the archive `Img/img.zip` and not `img_highres.zip`. A note names
    the archive that the images are from.
    License: non-commercial research; the owners give the files on request.

    Args:
        train: Expected number of training images.
        queries: Expected number of test queries.
        gallery: Expected number of gallery images.
        train_classes: Expected number of training items.
        test_classes: Expected number of test items.
    """

    name = "inshop"
    title = "In-shop Clothes Retrieval"
    about = "52,712 photos of 7,982 items; 3,997 items train, 14,218 queries search a gallery of 12,612"
    terms = "for non-commercial research; the owners give the files on request (CUHK)"
    home = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html"
    layout = "list_eval_partition.txt (or Eval/list_eval_partition.txt) and img/ (or Img/img/)"
    ks = (1, 10, 20, 30, 40)

    def __init__(
        self,
        *,
        train: int = 25_882,
        queries: int = 14_218,
        gallery: int = 12_612,
        train_classes: int = 3_997,
        test_classes: int = 3_985,
    ) -> None:
        self.counts = {"train": train, "test": queries, "gallery": gallery}
        self.classes = {"train": train_classes, "test": test_classes}

    def read(self, root: Path) -> DatasetParts:
        """Read list_eval_partition.txt.

        It contains the count, a header, then image_name, item_id, and evaluation_status.
        """
        file = find(root, "list_eval_partition.txt", "Eval/list_eval_partition.txt")
        if file is None:
            raise DataError(f"{root}: list_eval_partition.txt not found. Name a folder of {self.title}.")
        read: list[tuple[str, str, str]] = []
        for number, words in enumerate(read_lines(file)[2:], start=3):
            if len(words) != 3 or words[2] not in _PARTS:
                raise line_error(file, number, "expected image_name, item_id, and train, query, or gallery")
            read.append((words[0], words[1], _PARTS[words[2]]))
        # An item is in training or in the test. If a copy has one in both, it becomes two classes.
        train = sorted({item for _, item, part in read if part == "train"})
        test = sorted({item for _, item, part in read if part != "train"})
        position = {(True, item): index for index, item in enumerate(train)}
        position |= {(False, item): len(train) + index for index, item in enumerate(test)}
        rows = [Row(part, path, position[part == "train", item]) for path, item, part in read]
        test_labels = range(len(train), len(train) + len(test))
        parts = {"train": range(len(train)), "test": test_labels, "gallery": test_labels}
        images = find(root, "img", "Img/img")
        if images is None:
            raise DataError(f"{root}: folder img not found. Unpack the images next to list_eval_partition.txt.")
        found = build_listed_parts(root, rows, [*train, *test], parts, at=images.parent)
        return replace(found, notes=(describe_archive([images.parent / row.path for row in rows]),))


def describe_archive(files: Sequence[Path]) -> str:
    """Describe which archive of the dataset a folder holds, by the sizes of a sample of its images.

    The published results use `Img/img.zip`, whose images are 256 x 256. The images of `img_highres.zip` are larger.
    """
    sizes = [size for file in files[:: max(1, len(files) // _SAMPLE)] if (size := image_size(file)) is not None]
    if not sizes:
        return "inshop: no image of the sample can be read, so the archive is unknown"
    other = [size for size in sizes if size != _OFFICIAL_SIZE]
    if not other:
        return f"inshop: {len(sizes)} sampled images are 256 x 256, as in Img/img.zip"
    width, height = other[0]
    return (
        f"inshop: {len(other)} of {len(sizes)} sampled images are not 256 x 256 (first: {width} x {height}), so these "
        "are not the images of Img/img.zip. Results are not comparable with published ones."
    )
