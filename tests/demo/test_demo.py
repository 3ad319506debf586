from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from winnow import Embedder
from winnow.data import Splits
from winnow.data.emoji import load_emoji
from winnow.demo import METHODS, SHARED, run_demo, select_evenly
from winnow.training import Callback

NAMES = [method.name for method in METHODS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo on a few classes and steps."""
    whole = load_emoji(images_per_class=4)
    assert whole.test is not None
    parts = [part.select_classes(range(40)) for part in (whole.train, whole.val, whole.test)]
    folder = tmp_path_factory.mktemp("demo")
    run_demo(folder, seeds=2, steps=100, callback=Callback(), splits=Splits(*parts))
    return folder


@pytest.mark.slow
def test_every_method_and_seed_is_recorded_with_its_provenance(made: Path) -> None:
    results = json.loads((made / "results.json").read_text())
    assert {"command", "commit", "machine", "versions", "config", "table", "untrained"} <= results.keys()
    pairs = [(run["method"], run["seed"]) for run in results["runs"]]
    assert pairs == [(name, seed) for name in NAMES for seed in (0, 1)]
    for run in results["runs"]:
        assert 0 <= run["MAP@R"] <= run["P@R"] <= 1


@pytest.mark.slow
def test_the_report_names_every_method_and_stands_alone(made: Path) -> None:
    page = (made / "report.html").read_text()
    for name in NAMES:
        assert name in page
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("<img") > 40


@pytest.mark.slow
def test_the_model_left_behind_works(made: Path) -> None:
    embedder = Embedder.from_pretrained(made / "model")
    assert embedder.prototypes_ready
    images = load_emoji(images_per_class=1).val
    assert embedder.encode([images.read(0), images.read(1)]).shape == (2, 128)


def test_methods_differ_in_pooling_and_zsr_alone() -> None:
    dumps = [method.config(seed=0, steps=10).model_dump() for method in METHODS]
    for dump in dumps:
        dump.pop("pooling")
        dump.pop("zsr")
    assert all(dump == dumps[0] for dump in dumps)
    assert dumps[0]["loss"]["name"] == SHARED["loss"]["name"]


@pytest.mark.parametrize(("count", "wanted"), [(8, 8), (100, 8), (3, 8), (1, 1), (0, 4)])
def test_what_is_shown_is_spread_evenly_without_repeats(count: int, wanted: int) -> None:
    chosen = select_evenly(count, wanted)
    assert len(chosen) == min(count, wanted) == len(set(chosen))
    assert all(0 <= index < count for index in chosen)
    if count > 2 * wanted:
        assert np.ptp(np.diff(chosen)) <= 1
