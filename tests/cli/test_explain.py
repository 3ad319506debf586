"""`winnow explain` with one run and with several."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from winnow import Embedder
from winnow.cli.main import app
from winnow.cli.models import split_paths
from winnow.errors import ConfigError, ModelError
from winnow.pooling import POOLINGS

pytestmark = pytest.mark.filterwarnings("ignore:backbone .* starts from random weights")


def explain(*words: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("cat.png")
    Image.fromarray(pixels[::-1]).save("dog.png")
    return tmp_path


def model(name: str, pooling: str, size: int = 32, **settings: object) -> str:
    torch.manual_seed(0)
    tree = {
        "backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": size, "crop": size}, "dim": 8,
        "pooling": {"name": pooling, **settings},
    }  # fmt: skip
    Embedder.create(tree).save_pretrained(name)
    return name


def width(file: str) -> int:
    with Image.open(file) as image:
        return image.width


@pytest.mark.slow
def test_every_pooling_with_weights_is_explained_in_one_picture(folder: Path) -> None:
    names = [name for name in POOLINGS if POOLINGS[name].has_weights]
    shown = explain(*(model(name, name) for name in names), "cat.png", "dog.png")
    assert shown.exit_code == 0, shown.output
    assert {file.name for file in (folder / "explained").iterdir()} == {"cat.png", "dog.png"}
    alone = explain("gmp", "cat.png", "--out", "alone")
    assert alone.exit_code == 0, alone.output
    assert width("explained/cat.png") > 2 * width("alone/cat.png")


def test_poolings_without_weights_are_skipped_and_named(folder: Path) -> None:
    without = model("vlad", "netvlad")
    assert "NETVLAD: this pooling has no weights to draw" in explain(without, model("gmp", "gmp"), "cat.png").output
    assert isinstance(error := explain(without, "cat.png").exception, ModelError)
    assert "NETVLAD: this pooling has no weights" in str(error)


def test_models_of_one_pooling_have_distinct_titles_and_may_differ_in_crops(folder: Path) -> None:
    runs = [model("fine", "gap", size=40), model("coarse", "gap", size=32), model("x/fine", "gap")]
    assert explain(*runs, "cat.png").exit_code == 0


def test_prototypes_that_were_never_initialized_are_reported_for_each_model(folder: Path) -> None:
    said = explain(model("a", "gsp", num_prototypes=4, memory_size=8), model("b", "gap"), "cat.png").output
    assert "a: the prototypes were never initialized" in said
    assert "b: the prototypes" not in said


def test_an_image_is_needed(folder: Path) -> None:
    assert isinstance(error := explain(model("a", "gap")).exception, ConfigError)
    assert "Name image files after a" in str(error)


def test_folders_are_runs_and_the_rest_are_images(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    words = [Path(word) for word in ("missing", "a", "b", "cat.png", "a")]
    assert split_paths(words) == (words[:3], words[3:])


def test_a_folder_of_images_after_a_run_is_no_run(folder: Path) -> None:
    (folder / "cats").mkdir()
    shown = explain(model("gmp", "gmp"), "cats")
    assert isinstance(shown.exception, ConfigError)
    assert "cats: folder without a model. Name image files after the runs, such as cats/*.jpg" in str(shown.exception)
