"""Files that pages use: photos, a trained run, a demo model, and an index, made small and once."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.data import synthetic_datasets
from tests.docs.reader import TINY, Belongings
from winnow.data.datasets import CUB200, Cars196, InShop
from winnow.index import Index
from winnow.models import Embedder, ensure_torchvision
from winnow.training import RunDir, load_config, train

CLASSES = [
    "oak",
    "birch",
    "old",
    "elm",
    "ash",
    "yew",
    "fir",
    "pine",
    "lime",
    "alder",
    "beech",
    "hazel",
    "larch",
    "maple",
    "rowan",
    "willow",
]
HALF, ITEMS = 100, 16  # classes of each half of synthetic CUB-200-2011 and In-shop
RUN = [
    *TINY,
    "pooling.memory_size=16",
    "pooling.num_prototypes=4",
    "dim=8",
    "backbone=resnet20",
    "backbone.weights=random",
]


def make_photos(root: Path, classes: list[str]) -> Path:
    """Make class folders of two images each; each class has a color, each image different noise."""
    rng = np.random.default_rng(0)
    for label in classes:
        (root / label).mkdir(parents=True)
        color = rng.integers(30, 220, 3)
        for number in (1, 2):
            pixels = np.clip(color + rng.normal(0, 25, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.jpg")
    return root


@pytest.fixture(scope="session")
def belongings(tmp_path_factory: pytest.TempPathFactory) -> Belongings:
    root = tmp_path_factory.mktemp("granted")
    photos = make_photos(root / "photos", CLASSES)
    run = root / "run"
    train(load_config(None, [f"data={photos}", *RUN]), RunDir(run))
    model = Embedder.from_pretrained(run)
    model.save_pretrained(root / "model")
    Index.build(model, photos, root / "index")
    birds, cars, clothes = root / "data" / "cub200", root / "data" / "cars196", root / "data" / "inshop"
    synthetic_datasets.cub(birds, classes=2 * HALF, images=2, size=40)
    models = [f"model {number}" for number in range(4)]
    synthetic_datasets.cars(cars, models)
    synthetic_datasets.inshop(clothes, train=ITEMS, test=ITEMS, size=40)
    archive = shutil.make_archive(str(root / "archives" / "CUB_200_2011"), "gztar", birds)
    Path(archive).rename(root / "archives" / "CUB_200_2011.tgz")
    ensure_torchvision()
    import timm

    torch.manual_seed(0)
    save_file(timm.create_model("resnet50").state_dict(), root / "resnet50.safetensors")
    datasets = [
        CUB200(train=2 * HALF, test=2 * HALF, classes=HALF),
        Cars196(train=4, test=4, class_names=models),
        InShop(train=4 * ITEMS, queries=2 * ITEMS, gallery=2 * ITEMS, train_classes=ITEMS, test_classes=ITEMS),
    ]
    return Belongings({
        "photos": photos, "CUB_200_2011/images": photos, "other_photos": make_photos(root / "other", CLASSES[:4]),
        "birds": make_photos(root / "birds", [f"bird {number}" for number in range(1, 101)]),
        "cat.jpg": photos / "oak" / "1.jpg", "query.jpg": photos / "birch" / "2.jpg",
        "runs/first": run, "runs/mine": run, "winnow-demo/model": root / "model", "photos.index": root / "index",
        "photo.jpg": photos / "oak" / "2.jpg", "resnet50.safetensors": root / "resnet50.safetensors",
        "CUB_200_2011.tgz": root / "archives" / "CUB_200_2011.tgz", "downloads/inshop": clothes,
        "scratch/cub200": birds, "scratch/cars196": cars,
        "data/cub200": birds, "data/cars196": cars, "data/inshop": clothes,
    }, datasets, root / "archives")  # fmt: skip
