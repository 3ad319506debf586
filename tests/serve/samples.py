"""Small models and images to serve."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from winnow import Embedder
from winnow.index import Index
from winnow.serve import Limits, create_app
from winnow.serve.app import base_url, bind
from winnow.serve.middleware import LOOPBACK

CLASSES, IMAGES = 5, 4


def tiny_model(pooling: str = "gsp", **settings: object) -> Embedder:
    """Return a model whose prototypes, if it has any, are set from random images."""
    torch.manual_seed(0)
    model = Embedder.create(
        {
            "backbone": {"name": "resnet20", "weights": "random"},
            "image": {"resize": 40, "crop": 32},
            "dim": 8,
            "pooling": {"name": pooling, **settings},
        }
    )
    model.train()
    with torch.no_grad():
        for _ in range(2):
            model(torch.rand(16, 3, 32, 32))
    return model.eval()


def make_photos(root: Path, size: tuple[int, int] = (60, 48)) -> Path:
    """Make a folder of class folders; each class has a color, each image its own noise."""
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        folder = root / f"class_{label}"
        folder.mkdir(parents=True)
        color = rng.integers(30, 220, 3)
        for number in range(IMAGES):
            pixels = np.clip(color + rng.normal(0, 40, (size[1], size[0], 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def encoded(image: Image.Image, kind: str = "PNG", **settings: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def resident_bytes(process: int | str = "self") -> int:
    """Return the memory of a process in RAM; 0 where the system does not report it."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@contextmanager
def served(index: Index, *, limits: Limits | None = None, **settings: Any) -> Iterator[str]:
    """Run the service in a thread, on a free port; it stops at once, also during requests."""
    import uvicorn

    from winnow.serve.connections import connection_class

    limits = limits or Limits()
    listener = bind("127.0.0.1", 0)
    app = create_app(index, limits=limits, hosts=LOOPBACK, **settings)
    config = uvicorn.Config(
        app, log_level="warning", ws="none", http=connection_class(limits), timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield base_url(listener, "127.0.0.1")
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
