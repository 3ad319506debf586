"""Measure lengths and distances of embeddings of a pretrained network with a random projection.

    python scripts/embedding_length.py

Proxies of CCP start as such embeddings. An optimizer moves long ones slowly, and C2 ignores pairs that are farther
apart than its margin. Needs CUB-200-2011 in data/cub200 and weights in data/resnet50_v1_imagenet_fp16.pth. Takes a
minute and writes results/embedding_length.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnow.data.datasets import DATASETS
from winnow.functional import l2_normalize
from winnow.models import Embedder
from winnow.seeding import seed_everything
from winnow.training.results import collect_provenance

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = str(ROOT / "data" / "resnet50_v1_imagenet_fp16.pth")
CLASSES, EACH = 8, 8
HEADS = {"fair": ("gap", 128), "conventional": ("gap_gmp", 512)}


MARGINS = (0.3841, 1.0)  # of C2 on CUB: in [Thesis], and in the authors' code for the conventional protocol


def measure(protocol: str, images: list[Any], labels: Tensor) -> dict[str, Any]:
    pooling, dim = HEADS[protocol]
    seed_everything(0)
    settings = {"backbone": {"name": "resnet50_v1", "weights": WEIGHTS}, "pooling": pooling, "dim": dim,
                "image": {"resize": 256, "crop": 227}}  # fmt: skip
    vectors = torch.as_tensor(Embedder.create(settings).encode(images, normalize=False))
    lengths = vectors.norm(dim=1)
    unit = l2_normalize(vectors)
    unlike = torch.cdist(unit, unit)[labels[:, None] != labels]
    return {"protocol": protocol, "pooling": pooling, "dim": dim, "images": len(vectors),
            "length": float(lengths.mean()), "shortest": float(lengths.min()), "longest": float(lengths.max()),
            "root mean square of a number": float(vectors.square().mean().sqrt()),
            "distance of other classes": float(unlike.mean()), "nearest": float(unlike.min()),
            "share nearer than a margin": {f"{margin:g}": float((unlike < margin).float().mean())
                                           for margin in MARGINS}}  # fmt: skip


def main() -> None:
    train = DATASETS["cub200"].load(ROOT / "data" / "cub200").train
    first = [int(index) for label in range(CLASSES) for index in np.flatnonzero(train.labels == label)[:EACH]]
    images = [train.read(index) for index in first]
    rows = [measure(protocol, images, torch.from_numpy(train.labels[first])) for protocol in HEADS]
    for row in rows:
        print(json.dumps(row))
    report = {**collect_provenance().to_dict(), "command": "python scripts/embedding_length.py",
            "about": f"the first {EACH} images of each of CUB's first {CLASSES} classes; a random projection, seed 0",
            "rows": rows}  # fmt: skip
    (ROOT / "results" / "embedding_length.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
