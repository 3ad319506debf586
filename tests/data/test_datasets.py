"""Datasets: readers of synthetic copies in the official layout, published splits, and missing images."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data import synthetic_datasets
from winnow.data import Decoder
from winnow.data import decoder as decoder_module
from winnow.data.datasets import (
    CIFAR10,
    CIFAR100,
    CUB200,
    DATASETS,
    MNIST,
    SOP,
    Benchmark,
    Cars196,
    CIFARCollage,
    FashionMNIST,
    InShop,
    cub200,
    fold_range,
)
from winnow.data.datasets.cars196 import official_classes
from winnow.data.datasets.cifar import CIFAR100_CLASSES, CIFAR100_SUPERCLASSES, read_batch
from winnow.data.datasets.cifar_collage import BACKGROUND, TARGETS, Collages
from winnow.data.datasets.cub200 import SIZES
from winnow.errors import ConfigError, DataError

CARS = ("Zed Coupe 2012", "Audi A/B 2010", "Mini Van 2001", "Beta SUV 1999")


def test_counts_are_the_published_ones() -> None:
    counts = {name: tuple(one.counts.values()) for name, one in DATASETS.items()}
    assert counts["cub200"] == (5864, 5924)
    assert counts["cars196"] == (8054, 8131)
    assert counts["sop"] == (59551, 60502)
    assert counts["inshop"] == (25882, 14218, 12612)
    assert counts["cifar_collage"] == (16 * 1200, 16 * 600, 16 * 1200)
    assert counts["cifar_collage_authors"] == (16 * 1800, 16 * 1200)
    ks = {name: one.ks for name, one in DATASETS.items()}
    assert ks["cub200"] == ks["cars196"] == (1, 2, 4, 8)
    assert ks["sop"] == (1, 10, 100, 1000)
    assert ks["inshop"] == (1, 10, 20, 30, 40)
    assert (sum(SIZES[:100]), sum(SIZES[100:])) == counts["cub200"]
    cars, sizes = official_classes()
    assert len(set(cars)) == len(sizes) == 196
    assert (sum(sizes[:98]), sum(sizes[98:])) == counts["cars196"]
    assert cars[97:99] == ("Eagle Talon Hatchback 1998", "FIAT 500 Abarth 2012")
    assert (max(sizes), cars[sizes.index(136)]) == (136, "GMC Savana Van 2012")
    assert len(CIFAR100_CLASSES) == 100
    assert len(TARGETS) == 16


def test_an_unknown_name_suggests_a_similar_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'cub200'"):
        DATASETS["cub20"]


@pytest.mark.parametrize(("count", "edges"), [
    (100, [0, 25, 50, 75, 100]), (98, [0, 24, 49, 73, 98]), (3997, [0, 999, 1998, 2997, 3997]),
    (11318, [0, 2829, 5659, 8488, 11318]),
])  # fmt: skip
def test_folds_are_those_of_the_thesis(count: int, edges: list[int]) -> None:
    for fold in (1, 2, 3, 4):  # model 1 validates on the last part
        assert fold_range(count, fold, 4) == range(edges[4 - fold], edges[5 - fold])


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_cub_is_read_by_its_label_files(tmp_path: Path, suffix: str) -> None:
    synthetic_datasets.cub(tmp_path, classes=16, suffix=suffix)
    found = CUB200(train=24, test=24, classes=8).load(tmp_path)
    assert found.train.class_names[0] == "001.Bird_1"
    assert found.test.class_names == tuple(f"{n:03d}.Bird_{n}" for n in range(9, 17))
    assert found.test.name(0) == f"CUB_200_2011/images/009.Bird_9/Bird_9_0000{suffix}"
    assert found.test.read(0).size == (8, 8)
    splits = found.splits(fold=1)
    assert splits.val.class_names == ("007.Bird_7", "008.Bird_8")
    assert splits.train.class_names == found.train.class_names[:6]
    assert splits.train.labels.tolist() == [label for label in range(6) for _ in range(3)]
    assert found.splits(fold=4).val.class_names == ("001.Bird_1", "002.Bird_2")
    conventional = found.splits(on_test=True)
    assert conventional.val is conventional.test
    assert len(conventional.train) == 24
    for wrong in ({"fold": 5}, {"fold": 1, "on_test": True}, {"folds": 5}):
        with pytest.raises(ConfigError):
            found.splits(**wrong)


def test_cub_is_read_from_class_folders_alone(tmp_path: Path) -> None:
    for label in (2, 10, 1, 3):
        synthetic_datasets.picture(tmp_path / "images" / f"{label:03d}.Bird" / "a.webp")
    found = CUB200(train=2, test=2, classes=2).load(tmp_path)
    assert found.train.class_names == ("001.Bird", "002.Bird")
    assert found.test.class_names == ("003.Bird", "010.Bird")
    shutil.rmtree(tmp_path / "images" / "002.Bird")
    with pytest.raises(DataError, match=r"3 class folders; the first missing is 002"):
        CUB200(train=2, test=2, classes=2).load(tmp_path)


def test_a_surplus_image_does_not_hide_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cub200, "SIZES", (2,) * 200)
    for label in range(1, 201):
        folder = tmp_path / f"{label:03d}.Bird"
        folder.mkdir()
        for name in {1: "abc", 2: "a"}.get(label, "ab"):
            (folder / f"{name}.jpg").touch()
    birds = CUB200(train=200, test=200)
    with pytest.raises(DataError, match=r"more images than published: 001\.Bird \(3, published 2\)"):
        birds.check(tmp_path)
    (tmp_path / "001.Bird" / "c.jpg").unlink()
    (short,) = birds.check(tmp_path)[1]
    assert (short.found, short.expected, short.names) == (199, 200, ("002.Bird (1 of 2 images)",))
    assert not birds.is_accepted(tmp_path, short)
    birds.accept_missing(tmp_path, [short])
    assert birds.is_accepted(tmp_path, short)


def test_cub_is_read_from_train_and_test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cub200, "SIZES", (2,) * 4)
    birds = CUB200(train=4, test=4, classes=2)
    for label in range(1, 5):
        for part, name in (("train", "a"), ("test", "b")):
            synthetic_datasets.picture(tmp_path / part / f"{label:03d}.Bird" / f"{name}{label}.jpg")
    found, short = birds.check(tmp_path)
    assert short == []
    images = found.parts["train"]
    assert [(images.name(i), int(images.labels[i])) for i in range(4)] == [
        ("test/001.Bird/b1.jpg", 0), ("train/001.Bird/a1.jpg", 0), ("test/002.Bird/b2.jpg", 1),
        ("train/002.Bird/a2.jpg", 1),
    ]  # fmt: skip
    (tmp_path / "test/003.Bird/b3.jpg").rename(tmp_path / "test/003.Bird/a3.webp")  # the one there is, twice
    with pytest.raises(DataError, match=r"a3 is in both test/003\.Bird and train/003\.Bird"):
        birds.check(tmp_path)
    (tmp_path / "test/003.Bird/a3.webp").unlink()
    assert [one.describe() for one in birds.check(tmp_path)[1]] == [
        "test has 3 of 4 images: 003.Bird (1 of 2 images)"
    ]  # fmt: skip


def test_the_listed_file_is_used_and_duplicates_are_rejected(tmp_path: Path) -> None:
    synthetic_datasets.cub(tmp_path)
    small, base = CUB200(train=6, test=6, classes=2), tmp_path / "CUB_200_2011"
    folder = base / "images/001.Bird_1"
    for suffix in (".png", ".webp", ".bmp"):
        synthetic_datasets.picture(folder / f"Bird_1_0000{suffix}")
    assert small.load(tmp_path).train.name(0).endswith("Bird_1_0000.jpg")
    (folder / "Bird_1_0000.jpg").unlink()
    assert small.load(tmp_path).train.name(0).endswith("Bird_1_0000.bmp")
    for file, line in (("image_class_labels.txt", "1 2"), ("images.txt", "1 001.Bird_1/Bird_1_0001.jpg"),
                       ("images.txt", "no-path")):  # fmt: skip
        whole = (base / file).read_text()
        (base / file).write_text(f"{whole}{line}\n")
        with pytest.raises(DataError, match=r"Bird_1_0000\.jpg twice|images\.txt, line 13: expected a unique id"):
            small.load(tmp_path)
        (base / file).write_text(whole)
    (base / "images.txt").write_text((base / "images.txt").read_text().replace("Bird_1_0001", "Bird_1_0000"))
    with pytest.raises(DataError, match=r"list 001\.Bird_1/Bird_1_0000\.jpg twice"):
        small.load(tmp_path)
    (base / "image_class_labels.txt").unlink()  # class folders alone, of which a file is there thrice
    with pytest.raises(DataError, match=r"several files \(Bird_1_0000\.bmp, Bird_1_0000\.png, Bird_1_0000\.webp\)"):
        small.load(tmp_path)


@pytest.mark.slow
def test_cars_in_class_folders_are_held_to_their_sizes(tmp_path: Path) -> None:
    cars = Cars196()
    names, sizes = official_classes()
    for name, size in zip(names, sizes, strict=True):
        folder = tmp_path / name.replace("/", "-")
        folder.mkdir()
        for number in range(size):
            (folder / f"{number}.jpg").touch()
    assert cars.check(tmp_path)[1] == []
    (tmp_path / names[0] / "5.jpg").rename(tmp_path / names[1] / "double.jpg")  # as many as before
    with pytest.raises(DataError, match=r"more images than published: Acura RL Sedan 2012 \(65, published 64\)"):
        cars.check(tmp_path)
    (tmp_path / names[1] / "double.jpg").unlink()
    (short,) = cars.check(tmp_path)[1]
    assert short.describe() == f"train has 8,053 of 8,054 images: {names[0]} (88 of 89 images)"


@pytest.mark.parametrize("compress", [False, True])
def test_cars_are_read_by_their_annotations(tmp_path: Path, compress: bool) -> None:
    synthetic_datasets.cars(tmp_path, CARS, compress=compress)
    found = Cars196(train=4, test=4, class_names=CARS).load(tmp_path)
    assert found.train.class_names == CARS[:2]  # by number, not by the alphabet
    assert [found.test.name(i) for i in range(4)] == [f"car_ims/{n:06d}.jpg" for n in (3, 4, 7, 8)]
    assert found.test.labels.tolist() == [0, 1, 0, 1]


def test_cars_are_read_from_their_two_lists_and_from_class_folders(tmp_path: Path) -> None:
    from scipy.io import savemat

    lists = tmp_path / "lists"
    for part, file in (("train", "cars_train_annos"), ("test", "cars_test_annos_withlabels")):
        entries = np.empty((1, 4), dtype=[("class", object), ("fname", object)])
        for n in range(4):
            synthetic_datasets.picture(lists / f"cars_{part}" / f"cars_{part}" / f"{n + 1:05d}.jpg")
            entries[0, n] = (np.uint8(n + 1), f"{n + 1:05d}.jpg")
        (lists / "devkit").mkdir(exist_ok=True)
        savemat(lists / "devkit" / f"{file}.mat", {"annotations": entries})
    (lists / "cars_annos.mat").write_bytes(b"paths below a car_ims/ that is not there")  # as in copies of the lists
    small = Cars196(train=4, test=4, class_names=CARS)
    found = small.load(lists)
    assert sorted(found.train.labels.tolist()) == [0, 0, 1, 1]
    (lists / "devkit" / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(DataError, match=r"\(cars_test_annos_withlabels\.mat missing\)"):
        small.load(lists)
    folders = tmp_path / "folders"
    for name in ("Zed Coupe 2012", "Audi A-B 2010", "mini_van_2001", "Beta SUV 1999"):
        for part in ("train", "test"):
            synthetic_datasets.picture(folders / "car_data" / part / name / "0.jpg")
    found = small.load(folders)
    assert found.train.class_names == CARS[:2]
    assert {found.train.name(i).split("/")[2] for i in range(4)} == {"Zed Coupe 2012", "Audi A-B 2010"}
    with pytest.raises(DataError, match="cars_annos"):
        small.load(_empty(tmp_path))


def _empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.mark.parametrize("damage", ["header", "cut", "noise"])
def test_damaged_annotations_are_rejected(tmp_path: Path, damage: str) -> None:
    synthetic_datasets.cars(tmp_path, CARS)
    path = tmp_path / "cars_annos.mat"
    content = path.read_bytes()
    path.write_bytes({"header": b"x" * 200, "cut": content[:-9], "noise": content[:140] + b"\7" * 300}[damage])
    with pytest.raises(DataError, match=r"cars_annos\.mat"):
        Cars196(train=4, test=4, class_names=CARS).load(tmp_path)


def test_sop_is_read_by_its_lists(tmp_path: Path) -> None:
    synthetic_datasets.sop(tmp_path)
    small = SOP(train=6, test=4, train_classes=3, test_classes=2)
    found = small.load(tmp_path)
    assert found.train.class_names == ("1", "2", "3")
    assert found.test.labels.tolist() == [0, 0, 1, 1]
    assert found.test.name(3) == "Stanford_Online_Products/bicycle_final/1005_1.png"
    (tmp_path / "Stanford_Online_Products" / "Ebay_test.txt").write_text("header\n1 2\n")
    with pytest.raises(DataError, match=r"Ebay_test\.txt, line 2"):
        small.load(tmp_path)


def test_inshop_has_queries_and_a_gallery_of_the_same_items(tmp_path: Path) -> None:
    synthetic_datasets.inshop(tmp_path)
    found = InShop(train=32, queries=12, gallery=12, train_classes=8, test_classes=6).load(tmp_path)
    assert found.gallery is not None
    assert found.test.class_names == found.gallery.class_names
    assert found.test.class_names[0] == "id_00000009"
    assert found.test.labels.tolist() == found.gallery.labels.tolist()
    assert "/00_" in found.test.name(0)
    assert "/02_" in found.gallery.name(0)
    assert found.splits(fold=1).val.class_names == ("id_00000007", "id_00000008")
    assert found.splits(fold=1).gallery is found.gallery


@pytest.mark.parametrize(("size", "expected"), [(256, "as in Img/img.zip"), (300, "not the images of Img/img.zip")])
def test_inshop_names_the_archive_of_its_images(tmp_path: Path, size: int, expected: str) -> None:
    synthetic_datasets.inshop(tmp_path, train=2, test=2, size=size)
    small = InShop(train=8, queries=4, gallery=4, train_classes=2, test_classes=2)
    (note,) = small.load(tmp_path).splits(on_test=True).notes
    assert expected in note
    for file in tmp_path.rglob("*.jpg"):
        file.write_bytes(b"no image")
    assert "unknown" in small.check(tmp_path)[0].notes[0]


@pytest.mark.parametrize("version", ["python2", "python3", "binary", "folders"])
def test_cifar_is_read_in_all_versions(tmp_path: Path, version: str) -> None:
    made = synthetic_datasets.cifar100(tmp_path, version)
    found = CIFAR100(train=200, test=100).load(tmp_path)
    for part, images in (("train", found.train), ("test", found.test)):
        pixels, labels = made[part]
        if version == "folders":  # in the order of the classes
            order = np.argsort(labels, kind="stable")
            pixels, labels = pixels[order], labels[order]
        assert images.labels.tolist() == labels.tolist()
        assert np.array_equal(np.asarray(images.read(7)), pixels[7])
    assert found.train.class_names[:2] == ("apple", "aquarium_fish")
    # The test has the same classes, so that folds are of images: the last of each class validate.
    splits = found.splits(fold=1, folds=2)
    assert splits.val.labels.tolist() == list(range(100))
    assert len(splits.train) == len(splits.val) == 100


def test_cifar10_is_read_from_its_batches(tmp_path: Path) -> None:
    pixels = synthetic_datasets.RNG.integers(0, 256, (12, 3072), dtype=np.uint8)
    for n in range(6):
        name = "test_batch" if n == 5 else f"data_batch_{n + 1}"
        (tmp_path / name).write_bytes(synthetic_datasets.old_pickle(pixels[2 * n : 2 * n + 2], [n, 9], b"labels"))
    found = CIFAR10(train=10, test=2).load(tmp_path)
    assert found.train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert np.asarray(found.test.read(1))[3, 5].tolist() == pixels[11].reshape(3, 32, 32)[:, 3, 5].tolist()
    (tmp_path / "data_batch_3").unlink()
    with pytest.raises(DataError, match="data_batch_3: file not found"):
        CIFAR10(train=10, test=2).load(tmp_path)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("was-run",)


@pytest.mark.parametrize("content", [
    pickle.dumps({"data": Evil()}, protocol=2), pickle.dumps({"data": np.zeros(3)}, protocol=2),
    pickle.dumps([1]), b"", b"\x80\2}(",
], ids=["code", "floats", "list", "empty", "cut"])  # fmt: skip
def test_code_in_a_pickle_is_not_run(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DataError, match="not a CIFAR file"):
        read_batch(tmp_path / "batch")
    assert not (tmp_path / "was-run").exists()


def collage(root: Path, **settings: object) -> Benchmark:
    return CIFARCollage(per_class=3, **settings).load(root)  # type: ignore[arg-type]


@pytest.mark.parametrize(("parts", "sizes"), [("2/1/2", (2, 1, 2)), ("3/0/2", (3, 0, 2))])
def test_collages_divide_classes_and_background(tmp_path: Path, parts: str, sizes: tuple[int, ...]) -> None:
    synthetic_datasets.cifar100(tmp_path, "binary")
    found = collage(tmp_path, parts=parts)
    splits = [found.train, found.val, found.test]
    used: list[set[str]] = []
    for images, size, start in zip(splits, sizes, (0, sizes[0], 3), strict=True):
        if size == 0:
            assert images is None
            continue
        assert isinstance(images, Collages)
        assert images.class_names == TARGETS
        assert np.bincount(images.labels).tolist() == [3 * size] * 16
        assert len(set(images.foreground.tolist())) == len(images)  # each once
        of_front = {CIFAR100_CLASSES[label] for label in images.images.labels[images.foreground]}
        assert of_front == {name for target in TARGETS for name in CIFAR100_SUPERCLASSES[target][start : start + size]}
        of_back = {CIFAR100_CLASSES[label] for label in images.images.labels[images.background.ravel()]}
        assert of_back == {name for one in BACKGROUND for name in CIFAR100_SUPERCLASSES[one][start : start + size]}
        pool = 3 * size * 4
        first = images.background.ravel()[: pool * (len(images) * 3 // pool)].reshape(-1, pool)
        assert all(len(set(row)) == pool for row in first.tolist())  # no image again before all have come
        used += [of_front, of_back]
    assert sum(map(len, used)) == len(set().union(*used))
    if parts == "3/0/2":
        with pytest.raises(ConfigError, match=r"no validation images.*val_classes=test"):
            found.splits()
    else:
        assert found.splits().val is found.val
    with pytest.raises(ConfigError):
        found.splits(fold=1)


def test_a_collage_contains_its_foreground_and_background(tmp_path: Path) -> None:
    synthetic_datasets.cifar100(tmp_path, "binary")
    found, again, other = collage(tmp_path), collage(tmp_path), collage(tmp_path, seed=1)
    distilled = collage(tmp_path, distilled=True)
    images = found.test
    assert isinstance(images, Collages)
    for index in (0, 50, 95):
        whole = np.asarray(images.read(index))
        assert whole.shape == (64, 64, 3)
        row, column = divmod(int(images.cells[index]), 2)
        cells = {(r, c): whole[32 * r : 32 * r + 32, 32 * c : 32 * c + 32] for r in (0, 1) for c in (0, 1)}
        front = cells.pop((row, column))
        assert np.array_equal(front, np.asarray(distilled.test.read(index)))
        behind = [np.asarray(images.images.read(int(i))) for i in images.background[index]]
        assert all(np.array_equal(cell, one) for cell, one in zip(cells.values(), behind, strict=True))
        assert np.array_equal(whole, np.asarray(again.test.read(index)))
    assert set(images.cells.tolist()) == {0, 1, 2, 3}
    assert found.test.fingerprint() == again.test.fingerprint()
    assert len({one.test.fingerprint() for one in (found, other, distilled)}) == 3


def test_mnist_keeps_its_own_test_images(tmp_path: Path) -> None:
    from tests.data.test_mnist import write

    (tmp_path / "raw").mkdir()
    write(tmp_path / "raw", packed=True)
    found = MNIST(train=20, test=10).load(tmp_path)
    assert (len(found.train), len(found.test)) == (20, 10)
    splits = found.splits(folds=2)
    assert sorted(splits.val.labels.tolist()) == list(range(10))


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_distinguished_from_datasets_with_the_same_names(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip
    import hashlib

    from tests.data.test_mnist import idx

    sums: dict[str, list[str]] = {"train": [], "t10k": []}
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        pixels = np.full((count, 1, 1), 7, dtype=np.uint8)  # one pixel each
        for name, array in (("images-idx3", pixels), ("labels-idx1", np.arange(count, dtype=np.uint8) % 10)):
            content = idx(array)
            sums[part].append(hashlib.md5(content).hexdigest())
            file = tmp_path / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(content, 1) if packed else content)
    for one in (MNIST(), FashionMNIST()):
        with pytest.raises(DataError, match=f"the train files are not those of {one.title}"):
            one.load(tmp_path)
    made = {"train": tuple(sums["train"]), "test": tuple(sums["t10k"])}
    monkeypatch.setattr(FashionMNIST, "checksums", made)
    assert len(FashionMNIST().load(tmp_path).test) == 10_000
    monkeypatch.setattr(FashionMNIST, "checksums", {**made, "test": (made["test"][0], "another")})
    with pytest.raises(DataError, match="the test files are not those of Fashion-MNIST"):
        FashionMNIST().load(tmp_path)


def test_missing_images_are_named_and_must_be_accepted(tmp_path: Path) -> None:
    synthetic_datasets.cub(tmp_path)
    small = CUB200(train=6, test=6, classes=2)
    assert small.load(tmp_path).missing == {}
    gone = tmp_path / "CUB_200_2011/images/003.Bird_3/Bird_3_0001.jpg"
    gone.unlink()
    _, short = small.check(tmp_path)
    assert [(one.part, one.found, one.expected) for one in short] == [("test", 5, 6)]
    assert short[0].names == ("003.Bird_3/Bird_3_0001.jpg",)
    with pytest.raises(DataError, match=r"test has 5 of 6 images: 003\.Bird_3/Bird_3_0001\.jpg"):
        small.load(tmp_path)
    small.accept_missing(tmp_path, short)
    splits = small.load(tmp_path).splits(on_test=True)
    assert splits.missing == {"test": {"found": 5, "expected": 6, "names": ["003.Bird_3/Bird_3_0001.jpg"]}}
    assert "test has 5 of 6 images" in splits.notes[0]
    (gone.parent / "Bird_3_0002.jpg").unlink()  # more than was noted
    with pytest.raises(DataError, match="test has 4 of 6"):
        small.load(tmp_path)
    (tmp_path / "missing.json").write_text("[]")
    with pytest.raises(DataError, match=r"missing\.json: record cannot be read"):
        small.load(tmp_path)


def test_surplus_images_are_never_accepted(tmp_path: Path) -> None:
    synthetic_datasets.cub(tmp_path)
    small = CUB200(train=5, test=6, classes=2)
    small.accept_missing(tmp_path, small.check(tmp_path)[1])
    with pytest.raises(DataError, match="train has 6 of 5"):
        small.load(tmp_path)
    synthetic_datasets.sop(tmp_path / "sop")
    with pytest.raises(DataError, match="test has 2 classes, expected 3 of Stanford Online Products"):
        SOP(train=6, test=4, train_classes=3, test_classes=3).load(tmp_path / "sop")


def test_datasets_of_one_folder_have_separate_records(tmp_path: Path) -> None:
    synthetic_datasets.cifar100(tmp_path, "folders")
    next((tmp_path / "train" / "beaver").iterdir()).unlink()
    plain, collages = CIFAR100(train=200, test=100), CIFARCollage(per_class=3)
    for one in (plain, collages):
        with pytest.raises(DataError, match="train has"):
            one.load(tmp_path)
        one.accept_missing(tmp_path, one.check(tmp_path)[1])
    assert plain.load(tmp_path).missing["train"]["found"] == 199
    assert collages.load(tmp_path).missing["train"]["found"] == 16 * 6 - 1
    assert plain.default_root == DATASETS["cifar_collage_distilled"].default_root


def test_images_in_memory_are_decoded_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "MIN_IMAGES_FOR_PROCESSES", 10)
    monkeypatch.setattr(decoder_module, "available_cores", lambda: 2)
    for version in ("binary", "folders"):
        (tmp_path / version).mkdir()
        synthetic_datasets.cifar100(tmp_path / version, version)
        plain = CIFAR100(train=200, test=100).load(tmp_path / version).splits().train
        for images in (plain, CIFARCollage(per_class=3).load(tmp_path / version).train):
            decoder = Decoder(images, 32)
            assert decoder.uses_processes == (version == "folders")
            assert decoder.read(3).shape == (32, 32, 3)
            decoder.close()


def test_a_dataset_of_ones_own_is_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "_datasets", dict(DATASETS))

    class Birds(CUB200):
        name = "my_birds"

    birds = Birds()
    DATASETS.add(birds)
    DATASETS.add(birds)  # The same object again is no error.
    assert DATASETS["my_birds"] is birds
    with pytest.raises(ConfigError, match="my_birds"):
        DATASETS.add(Birds())
