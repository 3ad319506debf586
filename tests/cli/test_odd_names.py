"""Names that are not UTF-8, with control characters, and with line ends, from training to search."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import TINY


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Make a folder of 5 classes of 3 images, whose names hold bytes that are not UTF-8."""
    rng = np.random.default_rng(0)
    root = tmp_path / "odd"
    for label in range(5):
        folder = os.fsencode(root) + b"/c\xff%d\x1b" % label
        try:
            os.makedirs(folder)
        except OSError:
            pytest.skip("the file system requires names in UTF-8")
        for name in (b"\xfe.png", b"a\rb.png", b"\x1b[2J\n.png"):
            Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(
                os.fsdecode(folder + b"/" + name), "PNG"
            )
    return root


def test_odd_names_work_from_training_to_search(winnow, odd: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    images = sorted(odd.rglob("*.png"))
    calls = [
        ["train", f"data={odd}", "--out", run, *TINY, "train.max_steps=4"],
        ["index", run, odd, "-o", "odd.index"],
        ["index", run, odd, "-o", "odd.index"],
        ["search", "odd.index", *images[:3]],
        ["search", "odd.index", images[0], "--json"],
        ["embed", run, odd, "-o", "odd.npy"],
        ["explain", run, images[0]],
        ["verify", run, "odd.index"],
    ]
    for words in calls:
        said = winnow(*words)
        assert said.code == 0, said.err
        assert "\x1b" not in said.out + said.err
        assert "\r" not in said.out
    with open("odd.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 16
    assert len({tuple(row) for row in rows}) == 16
