"""Shared by all tests: one thread per worker, skips by marker, and small synthetic image folders."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.browser import CHROMIUM

gc.disable()  # until all tests are imported
torch.set_num_threads(1)

MakeFolder = Callable[..., Path]

NEEDS = {
    "gpu": (torch.cuda.is_available(), "needs a CUDA device"),
    "browser": (
        CHROMIUM is not None and all(map(importlib.util.find_spec, ("playwright", "axe_playwright_python"))),
        "needs Chromium (apt-get install chromium), Playwright, and axe (pip install axe-playwright-python)",
    ),
}
"""Per marker: whether its tests can run on this machine, and the reason if not."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-gpu-skips", action="store_true", help="fail skipped tests that lack the marker gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose markers name what this machine lacks."""
    for item in items:
        for marker, (available, reason) in NEEDS.items():
            if not available and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Exempt imported modules from garbage collection, which takes a tenth of the time otherwise."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that another reason than the marker `gpu` skips, under `--only-gpu-skips`."""
    report = yield
    _fail_skipped(item, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a file that is skipped as a whole, under `--only-gpu-skips`."""
    report = yield
    _fail_skipped(collector, report)
    return report


def _fail_skipped(node: pytest.Item | pytest.Collector, report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and node.config.getoption("--only-gpu-skips") and not node.get_closest_marker("gpu"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}. Only tests with the marker gpu may be skipped."


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Make a folder of class folders; each class has a color, each image different noise."""

    def make(name: str = "photos", classes: int = 8, images: int = 4, size: int = 40) -> Path:
        root = tmp_path / name
        rng = np.random.default_rng(0)
        for label in range(classes):
            folder = root / f"class_{label:02d}"
            folder.mkdir(parents=True)
            color = rng.integers(30, 220, 3)
            for index in range(images):
                noise = rng.normal(0, 25, (size, size, 3))
                pixels = np.clip(color + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
        return root

    return make


@pytest.fixture(scope="session", autouse=True)
def cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Write cached features to a temporary folder, not to that of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINNOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


TINY = [
    "backbone=resnet20",
    "backbone.weights=random",
    "image.resize=32",
    "image.crop=32",
    "dim=8",
    "pooling.num_prototypes=4",
    "pooling.memory_size=16",
    "train.classes_per_batch=3",
    "train.samples_per_class=2",
    "train.max_steps=12",
    "train.eval_steps=4",
    "train.lr=1e-3",
]
"""A run of seconds: a small network on 32-pixel images."""
