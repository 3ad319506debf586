"""Record a sample of the images of an official archive, which copies of the dataset are compared with.

python scripts/sample_official.py cub200 FOLDER
python scripts/sample_official.py cars196 FOLDER

FOLDER holds the unpacked archive. Writes src/winnow/data/datasets/NAME_sample.csv: names, sizes, and digests of 64
images, evenly over the classes. Pictures are not stored.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from winnow.data.datasets import DATASETS
from winnow.data.datasets.label_files import find
from winnow.data.datasets.official import COLUMNS, OfficialImage, class_files, digest_image, image_size

TARGET = Path(__file__).resolve().parents[1] / "src/winnow/data/datasets"
COUNT = 64


def sample(dataset: str, root: Path, count: int = COUNT) -> list[OfficialImage]:
    """Return images at random positions in evenly spaced classes of all parts."""
    parts = DATASETS[dataset].read(root).parts
    others = cars_names(root) if dataset == "cars196" else {}
    classes = [(part, label) for part, images in parts.items() for label in range(len(images.class_names))]
    rng = random.Random(0)
    rows = []
    for number in range(count):
        part, label = classes[number * len(classes) // count]
        path = rng.choice(class_files(parts[part], label))
        size = image_size(path)
        assert size is not None, f"{path}: cannot be read"
        relative = f"{path.parent.name}/{path.name}"
        names = (path.stem, *others.get(relative, ()))
        rows.append(OfficialImage(part, label, names, path.stat().st_size, *size, digest_image(path)))
    return rows


def cars_names(root: Path) -> dict[str, tuple[str, ...]]:
    """Return the name in `car_ims` of each image of `cars_train` and `cars_test`.

    The archive of all images and the archives of the two lists number them differently. Box and class identify an
    image in the annotations of both.
    """
    whole: dict[tuple[int, ...], list[str]] = {}
    for one in _annotations(root, "cars_annos.mat"):
        whole.setdefault(_identity(one), []).append(Path(str(one["relative_im_path"])).stem)
    names = {}
    for file, folder in (("cars_train_annos.mat", "cars_train"), ("cars_test_annos_withlabels.mat", "cars_test")):
        for one in _annotations(root, file):
            names[f"{folder}/{one['fname']}"] = tuple(whole[_identity(one)])
    return names


def _annotations(root: Path, name: str) -> list[Mapping[str, Any]]:
    from scipy.io import loadmat

    file = find(root, name)
    assert file is not None, f"{root}: {name} not found"
    annotations: list[Mapping[str, Any]] = list(loadmat(file, simplify_cells=True)["annotations"])
    return annotations


def _identity(annotation: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(annotation[key]) for key in ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=("cub200", "cars196"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    rows = sample(options.dataset, options.folder)
    with open(TARGET / f"{options.dataset}_sample.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows(row.to_row() for row in rows)


if __name__ == "__main__":
    main()
