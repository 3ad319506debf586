"""The untrained backbone's features: made once of each image that is asked for, and the same for any company."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import TINY, MakeFolder
from tests.training.test_trainer import same
from winnow.data import Crops, ImageStore, StoreView, load_images
from winnow.evaluation import RetrievalResult
from winnow.models import Embedder
from winnow.training import Monitor, RunFolder, prepare, run_training
from winnow.training.distributed import Processes
from winnow.training.inputs import CropInputs, FeatureInputs, Inputs, QueryGallery
from winnow.training.pack import run_pack
from winnow.training.plan import Planned, plan_runs
from winnow.training.untrained import AverageOfFeatures, Averages

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The pixels of every image that the untrained backbone is applied to."""
    seen: list[bytes] = []
    plain = AverageOfFeatures.forward

    def forward(self: AverageOfFeatures, inputs: Tensor) -> Tensor:
        assert self.backbone is not None
        seen.extend(image.numpy().tobytes() for image in inputs)
        return plain(self, inputs)

    monkeypatch.setattr(AverageOfFeatures, "forward", forward)
    return seen


def folds(tmp_path: Path, data: Path, *words: str) -> list[Planned]:
    """Two runs of each of two folds of classes 1-6; classes 7-10 test. Each class has 4 images."""
    settings = [f"data={data}", *TINY, "train.device=cpu", "backbone.train=full", "train.steps=1", *words]
    planned = [
        plan_runs(
            tmp_path / f"validated on {val}",
            None,
            [*settings, f"data.train_classes={train}", f"data.val_classes={val}", "data.test_classes=7-10"],
            ["pooling=gap,gsp"],
        )
        for train, val in (("1-4", "5-6"), ("1-2,5-6", "3-4"))
    ]
    return [run for fold in planned for run in fold]


@pytest.mark.parametrize(
    ("words", "images"),
    [
        (("train.start=random",), 32),
        (("train.start=principal",), 40),
        (("train.start=random", "train.test=false"), 16),
        (("train.start=random", "data.cache=none"), 32),
    ],
)
def test_the_backbone_sees_each_image_that_is_needed_once_for_all_folds(
    make_folder: MakeFolder, tmp_path: Path, counted: list[bytes], words: tuple[str, ...], images: int
) -> None:
    outcomes = run_pack(folds(tmp_path, make_folder(classes=10), *words), at_once=2)
    assert all(outcome.result is not None for outcome in outcomes), outcomes
    assert len(counted) == len(set(counted)) == images


def test_each_split_is_judged_once_for_all_runs(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[tuple[int, ...]] = []
    plain = prepare.compare

    def compare(embeddings: Tensor, inputs: Inputs, *, ks: tuple[int, ...], processes: Processes) -> RetrievalResult:
        judged.append(tuple(embeddings.shape))
        return plain(embeddings, inputs, ks=ks, processes=processes)

    monkeypatch.setattr(prepare, "compare", compare)
    first, _, second, _ = run_pack(folds(tmp_path, make_folder(classes=10)), at_once=2)
    assert judged == [(8, 64), (16, 64), (8, 64)]  # a validation and the test, and the other validation
    assert first.result is not None
    assert second.result is not None
    assert first.result["untrained"]["test"] == second.result["untrained"]["test"]


@pytest.mark.parametrize("broken", [[], [2, 17, 30]], ids=["whole", "with images left out"])
def test_runs_of_folds_that_share_features_equal_runs_alone(
    make_folder: MakeFolder, tmp_path: Path, broken: list[int]
) -> None:
    photos = make_folder(classes=10)
    files = sorted(photos.rglob("*.png"))
    for number in broken:  # in training, in validation or training, in the test
        files[number].write_bytes(b"")
    # Batches of 7 leave one of the 8 images of a validation over, but none of the 16 that train.
    runs = folds(tmp_path, photos, "train.eval_batch=7", "data.on_error=skip")
    for run, outcome in zip(runs, run_pack(runs, at_once=2), strict=True):
        alone = RunFolder(tmp_path / "alone" / run.folder.path.parent.name / run.folder.path.name)
        expected = run_training(run.config, alone)
        assert outcome.result is not None, outcome.error
        assert outcome.result["untrained"] == expected["untrained"]
        assert outcome.result["metrics"] == expected["metrics"]
        assert same(run.folder.load(run.folder.best_file), alone.load(alone.best_file))


def test_weights_or_crops_of_another_run_are_not_taken_for_ones_own(
    make_folder: MakeFolder, tmp_path: Path, counted: list[bytes]
) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "backbone.train=full", "train.steps=1",
             "data.train_classes=1-2", "data.val_classes=3-4", "train.test=false", "train.start=random"]  # fmt: skip
    run_pack(plan_runs(tmp_path / "pack", None, words, ["seed=0,1", "image.crop=32,28"]))  # a seed draws the weights
    assert len(counted) == 4 * 8


def test_validation_on_the_test_classes_embeds_them_once(
    make_folder: MakeFolder, tmp_path: Path, counted: list[bytes]
) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "backbone.train=full", "train.steps=1",
             "data.train_classes=1-4", "data.val_classes=test", "data.test_classes=5-8",
             "train.start=random"]  # fmt: skip
    (run,) = plan_runs(tmp_path / "pack", None, words, ["seed=0"])
    untrained = run_training(run.config, run.folder)["untrained"]
    assert untrained["val"] == untrained["test"]
    assert len(counted) == 16


@pytest.fixture
def scene(make_folder: MakeFolder) -> tuple[ImageStore, Crops, AverageOfFeatures]:
    """24 images, and a network that computes in another order when it is given one of them than when given 8."""
    store = ImageStore(load_images(make_folder(images=3)), resize=32)
    network = {"name": "resnet20", "weights": "random"}
    settings: dict[str, Any] = {"backbone": network, "image": {"resize": 32, "crop": 32}, "dim": 8}
    torch.manual_seed(0)
    return store, Crops(resize=32, size=32), AverageOfFeatures(Embedder.create(settings).backbone, batch=8)


def test_features_are_the_averages_of_the_backbones_map(scene: tuple[ImageStore, Crops, AverageOfFeatures]) -> None:
    store, crops, model = scene
    inputs = CropInputs(store, crops)
    backbone = model.backbone
    assert backbone is not None
    with torch.no_grad():
        maps = torch.cat([backbone.eval()(inputs.test([i])) for i in range(len(store))])
    expected = maps.flatten(2).mean(dim=2)
    ready = FeatureInputs(maps, store.labels, [""] * len(store), torch.device("cpu"))
    for found in (Averages().of(model, inputs), Averages().of(AverageOfFeatures(None), ready)):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


def test_features_are_the_same_to_the_bit_whatever_is_asked_for_before_and_beside(
    scene: tuple[ImageStore, Crops, AverageOfFeatures],
) -> None:
    store, crops, model = scene
    shared, alone = Averages(), Averages().of(model, CropInputs(store, crops))
    for classes in ([4], [5, 2], [7, 0, 1]):  # the last leaves one image over
        images = store.images.of_classes(classes)
        view = StoreView(store, images)
        assert torch.equal(shared.of(model, CropInputs(view, crops)), alone[view.rows])
        own = CropInputs(ImageStore(images, resize=32), crops)
        assert torch.equal(Averages().of(model, own), alone[view.rows])


def test_queries_come_before_their_gallery(scene: tuple[ImageStore, Crops, AverageOfFeatures]) -> None:
    store, crops, model = scene
    sides = [CropInputs(StoreView(store, store.images.of_classes(part)), crops) for part in ([5, 2], [0, 1, 7])]
    both = QueryGallery(*sides)
    averages = Averages()
    found = averages.of(model, both)
    assert torch.equal(found, torch.cat([averages.of(model, side) for side in sides]))
    assert len(found) == len(both.labels) == 15


class OneOfSeveral(Processes):
    """A process whose others never answer: their rows are zero."""

    def gather(self, rows: Tensor, total: int) -> Tensor:
        whole = rows.new_zeros(total, *rows.shape[1:])
        whole[self.share(total)] = rows
        return whole


@pytest.mark.parametrize("count", [2, 5, 30], ids=["two", "some", "more than images"])
def test_processes_share_the_work_and_change_no_bit(
    scene: tuple[ImageStore, Crops, AverageOfFeatures], count: int
) -> None:
    store, crops, model = scene
    inputs = CropInputs(store, crops)
    shares = [Averages().of(model, inputs, OneOfSeveral(rank, count)) for rank in range(count)]
    assert torch.equal(torch.stack(shares).sum(dim=0), Averages().of(model, inputs))


def test_a_run_alone_does_not_keep_what_nobody_asks_for_again(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: weakref.WeakSet[Averages] = weakref.WeakSet()
    kept: list[int] = []

    class Noted(Averages):
        def __init__(self) -> None:
            super().__init__()
            made.add(self)

    class Looking(Monitor):
        def start(self, steps: int, done: int) -> None:
            kept.append(sum(len(one._kept) for one in made))

    monkeypatch.setattr(prepare, "Averages", Noted)
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "backbone.train=full", "train.steps=1"]
    (run,) = plan_runs(tmp_path / "one", None, words, ["seed=0"])
    run_training(run.config, run.folder, monitor=Looking())
    assert kept == [0]
    run_pack([replace(run, folder=RunFolder(tmp_path / "pack"))], monitor=lambda run: Looking())
    assert kept == [0, 1]  # the next run of a pack may ask for them
