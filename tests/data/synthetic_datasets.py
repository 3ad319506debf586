"""Small synthetic copies of datasets, with the layout and the label files of the originals."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def picture(path: Path, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(path)


def cub(root: Path, classes: int = 4, images: int = 3, suffix: str = ".jpg", size: int = 8) -> None:
    """CUB_200_2011: ids in images.txt and image_class_labels.txt, files below images/."""
    base = root / "CUB_200_2011"
    rows = [
        (f"{label:03d}.Bird_{label}/Bird_{label}_{n:04d}.jpg", label)
        for label in range(1, classes + 1)
        for n in range(images)
    ]
    for path, _ in rows:
        picture((base / "images" / path).with_suffix(suffix), size)
    listed = enumerate(rows, start=1)
    (base / "images.txt").write_text("".join(f"{i} {path}\n" for i, (path, _) in listed))
    (base / "image_class_labels.txt").write_text("".join(f"{i} {label}\n" for i, (_, label) in enumerate(rows, 1)))


def cars(root: Path, names: Sequence[str], images: int = 2, *, compress: bool = True) -> None:
    """cars_annos.mat (a struct array and the class names) and car_ims/, numbered across the classes."""
    from scipy.io import savemat

    labels = [1 + n % len(names) for n in range(images * len(names))]
    kind = [(key, object) for key in ("relative_im_path", "bbox_x1", "class", "test")]
    entries = np.empty((1, len(labels)), dtype=kind)
    for n, label in enumerate(labels):
        path = f"car_ims/{n + 1:06d}.jpg"
        picture(root / path)
        entries[0, n] = (path, float(n), np.uint8(label), np.uint8(n % 2))
    cells = np.empty((1, len(names)), dtype=object)
    cells[0, :] = list(names)
    savemat(root / "cars_annos.mat", {"annotations": entries, "class_names": cells}, do_compression=compress)


def sop(root: Path) -> None:
    """Ebay_train.txt and Ebay_test.txt with a header; class ids continue from one to the other."""
    base = root / "Stanford_Online_Products"
    number = 0
    for part, ids in (("train", (1, 2, 3)), ("test", (4, 5))):
        lines = ["image_id class_id super_class_id path"]
        for class_id in ids:
            for shot in range(2):
                number += 1
                path = f"bicycle_final/{1000 + class_id}_{shot}.JPG"
                picture(base / path.replace(".JPG", ".png"))
                lines.append(f"{number} {class_id} 1 {path}")
        (base / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")


def inshop(root: Path, train: int = 8, test: int = 6, images: int = 2, size: int = 8) -> None:
    """Eval/list_eval_partition.txt: count, header, columns padded with spaces; files below Img/img."""
    lines = []
    for item in range(1, train + test + 1):
        statuses = ["train"] * 2 * images if item <= train else ["query"] * images + ["gallery"] * images
        for n, status in enumerate(statuses):
            path = f"img/WOMEN/Dresses/id_{item:08d}/{n:02d}_1_front.jpg"
            picture(root / "Img" / path, size)
            lines.append(f"{path:<80}{f'id_{item:08d}':<20}{status}")
    (root / "Eval").mkdir(parents=True)
    head = f"{len(lines)}\nimage_name item_id evaluation_status\n"
    (root / "Eval" / "list_eval_partition.txt").write_text(head + "\n".join(lines) + "\n")


def old_pickle(pixels: np.ndarray, labels: Sequence[int], key: bytes) -> bytes:
    """Return the Python 2 pickle of a dictionary of labels and an array, as in the official files."""

    def text(word: bytes) -> bytes:
        return b"U" + bytes([len(word)]) + word

    rows, columns = pixels.shape
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    shape = b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86"
    kind = (
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\0K\1\x87R(K\3" + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )  # fmt: skip
    content = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R(K\1"
        + shape + kind + b"\x89T" + struct.pack("<I", len(content)) + content + b"tb"
    )  # fmt: skip
    return b"\x80\2}(" + text(b"data") + array + text(key) + b"](" + numbers + b"eu."


def cifar100(root: Path, version: str, per_class: int = 2) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Write CIFAR-100 with `per_class` training and half as many test images per class, and return its arrays."""
    from winnow.data.datasets.cifar import CIFAR100_CLASSES

    made = {}
    for part, each in (("train", per_class), ("test", max(1, per_class // 2))):
        labels = np.tile(np.arange(100), each)
        pixels = RNG.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
        made[part] = pixels, labels
        flat = pixels.transpose(0, 3, 1, 2).reshape(len(labels), -1)
        if version == "python2":
            (root / "cifar-100-python").mkdir(exist_ok=True)
            content = old_pickle(flat, labels.tolist(), b"fine_labels")
            (root / "cifar-100-python" / part).write_bytes(content)
        elif version == "python3":
            (root / part).write_bytes(pickle.dumps({b"data": flat, b"fine_labels": labels.tolist()}, protocol=2))
        elif version == "binary":
            rows = np.concatenate([np.zeros((len(labels), 1), "u1"), labels[:, None].astype("u1"), flat], axis=1)
            (root / f"{part}.bin").write_bytes(rows.tobytes())
        else:
            for n, label in enumerate(labels):
                path = root / part / CIFAR100_CLASSES[label] / f"{n:05d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[n]).save(path)
    return made
