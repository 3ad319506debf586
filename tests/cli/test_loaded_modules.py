"""Packages that a command loads: start-up time, and no training code where nothing is trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from winnow import Embedder, Index

LIST = "import sys; from winnow.cli import run\ntry: run()\nfinally: print(*sys.modules, file=sys.stderr)"

ABOVE_SEARCH = {"cli.progress", "demo", "export", "losses", "miners", "protocols", "references",
                "regularizers", "serve", "studies", "training", "tuning"}  # fmt: skip


def loaded(*words: object) -> set[str]:
    """Return the modules that a command has loaded when it ends."""
    call = [sys.executable, "-W", "ignore", "-c", LIST, *map(str, words)]
    run = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return set(run.stderr.splitlines()[-1].split())


def winnow_modules(modules: set[str]) -> set[str]:
    return {name.removeprefix("winnow.") for name in modules if name.startswith("winnow.")}


def test_help_loads_no_torch() -> None:
    modules = loaded("train", "-h")
    assert not {"torch", "numpy"} & modules


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:backbone .* starts from random weights")
def test_search_loads_no_training_code(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8)
    (tmp_path / "photos").mkdir()
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / "photos" / f"{number}.png")
    Image.fromarray(pixels[0][::-1]).save(tmp_path / "new.png")
    settings = {"backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": 32, "crop": 32}, "dim": 8}
    Index.build(Embedder.create(settings), str(tmp_path / "photos"), tmp_path / "i")
    own = winnow_modules(loaded("search", tmp_path / "i", tmp_path / "photos" / "0.png"))
    new = winnow_modules(loaded("search", tmp_path / "i", tmp_path / "new.png"))
    assert len(own) <= 60
    assert own < new  # the model embeds a new image
    for modules in (own, new):
        assert not [name for name in modules if any(f"{name}.".startswith(f"{one}.") for one in ABOVE_SEARCH)]
