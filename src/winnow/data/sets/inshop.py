"""In-shop Clothes Retrieval of DeepFashion (Liu et al., CVPR 2016)."""

from __future__ import annotations

from pathlib import Path

from winnow.data.sets.base import Contents, Dataset
from winnow.data.sets.listed import Row, find, lines, listed, refuse
from winnow.errors import DataError

_PARTS = {"train": "train", "query": "test", "gallery": "gallery"}


class InShop(Dataset):
    """Clothes: queries are compared with a gallery, not with one another.

    Items are in the order of their ids; the folds of the training items are cut in that order.
    """

    name = "inshop"
    title = "In-shop Clothes Retrieval"
    about = "52,712 photographs of 7,982 items; 3,997 items train, 14,218 queries search a gallery of 12,612"
    terms = "for non-commercial research; its owners give the files on request (CUHK)"
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

    def read(self, root: Path) -> Contents:
        """Read list_eval_partition.txt: the count, a header, then image_name, item_id and evaluation_status."""
        file = find(root, "list_eval_partition.txt", "Eval/list_eval_partition.txt")
        if file is None:
            raise DataError(f"{root} has no list_eval_partition.txt: name a folder of {self.title}")
        read: list[tuple[str, str, str]] = []
        for number, words in enumerate(lines(file)[2:], start=3):
            if len(words) != 3 or words[2] not in _PARTS:
                raise refuse(file, number, "it does not hold image_name, item_id and train, query or gallery")
            read.append((words[0], words[1], _PARTS[words[2]]))
        # An item is in training or in the test; a name for each of the two, should a copy have one in both.
        train = sorted({item for _, item, part in read if part == "train"})
        test = sorted({item for _, item, part in read if part != "train"})
        position = {(True, item): place for place, item in enumerate(train)}
        position |= {(False, item): len(train) + place for place, item in enumerate(test)}
        rows = [Row(part, path, position[part == "train", item]) for path, item, part in read]
        judged = range(len(train), len(train) + len(test))
        parts = {"train": range(len(train)), "test": judged, "gallery": judged}
        pictures = find(root, "img", "Img/img")
        if pictures is None:
            raise DataError(f"{root} has no folder img: unpack the images beside list_eval_partition.txt")
        return listed(root, rows, [*train, *test], parts, at=pictures.parent)
