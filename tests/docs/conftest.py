"""Files that pages use: photos, a trained run, a demo model, and an index, made small and once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.docs.reader import TINY, Belongings
from winnow.index import Index
from winnow.models import Embedder
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
    return Belongings({
        "photos": photos, "CUB_200_2011/images": photos, "other_photos": make_photos(root / "other", CLASSES[:4]),
        "birds": make_photos(root / "birds", [f"bird {number}" for number in range(1, 101)]),
        "cat.jpg": photos / "oak" / "1.jpg", "query.jpg": photos / "birch" / "2.jpg",
        "runs/first": run, "runs/mine": run, "winnow-demo/model": root / "model", "photos.index": root / "index",
    })  # fmt: skip
