"""Features of the pretrained baseline: computed once for each image, equal for all runs."""

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
from winnow.data import CropTransform, ImageCache, ImageCacheView, load_images
from winnow.evaluation import RetrievalResult
from winnow.models import Embedder
from winnow.training import Callback, RunDir, build, train
from winnow.training.baseline import MeanFeatureCache, MeanPoolBaseline
from winnow.training.engine.distributed import Processes
from winnow.training.inputs import CropInputs, FeatureInputs, Inputs, QueryGallery
from winnow.training.parallel import train_in_parallel
from winnow.training.sweep import PlannedRun, plan_runs

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Pixels of every image that the baseline embeds."""
    seen: list[bytes] = []
    plain = MeanPoolBaseline.forward

    def forward(self: MeanPoolBaseline, inputs: Tensor) -> Tensor:
        assert self.backbone is not None
        seen.extend(image.numpy().tobytes() for image in inputs)
        return plain(self, inputs)

    monkeypatch.setattr(MeanPoolBaseline, "forward", forward)
    return seen


def folds(tmp_path: Path, data: Path, *words: str) -> list[PlannedRun]:
    """Two runs of two folds of classes 1-6; classes 7-10 are the test split. Each class has 4 images."""
    settings = [f"data={data}", *TINY, "train.device=cpu", "backbone.train=full", "train.max_steps=1", *words]
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "images"),
    [
        (("train.projection_init=random",), 32),
        (("train.projection_init=pca",), 40),
        (("train.projection_init=random", "train.run_test=false"), 16),
        (("train.projection_init=random", "data.image_cache=none"), 32),
    ],
)
def test_backbone_embeds_each_needed_image_once_for_all_folds(
    make_folder: MakeFolder, tmp_path: Path, counted: list[bytes], words: tuple[str, ...], images: int
) -> None:
    outcomes = train_in_parallel(folds(tmp_path, make_folder(classes=10), *words), jobs=2)
    assert all(outcome.result is not None for outcome in outcomes), outcomes
    assert len(counted) == len(set(counted)) == images


@pytest.mark.slow
def test_each_split_is_evaluated_once_for_all_runs(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[tuple[int, ...]] = []
    plain = build.evaluate_embeddings

    def compare(embeddings: Tensor, inputs: Inputs, *, ks: tuple[int, ...], processes: Processes) -> RetrievalResult:
        judged.append(tuple(embeddings.shape))
        return plain(embeddings, inputs, ks=ks, processes=processes)

    monkeypatch.setattr(build, "evaluate_embeddings", compare)
    first, _, second, _ = train_in_parallel(folds(tmp_path, make_folder(classes=10)), jobs=2)
    assert judged == [(8, 64), (16, 64), (8, 64)]  # a validation and the test, and the other validation
    assert first.result is not None
    assert second.result is not None
    assert first.result.untrained["test"] == second.result.untrained["test"]


@pytest.mark.slow
@pytest.mark.parametrize("broken", [[], [2, 17, 30]], ids=["whole", "with images left out"])
def test_runs_with_shared_features_equal_single_runs(
    make_folder: MakeFolder, tmp_path: Path, broken: list[int]
) -> None:
    photos = make_folder(classes=10)
    files = sorted(photos.rglob("*.png"))
    for number in broken:  # in training, in validation or training, in the test
        files[number].write_bytes(b"")
    # Batches of 7 leave one of the 8 images of a validation over, but none of the 16 that train.
    runs = folds(tmp_path, photos, "train.eval_batch_size=7", "data.unreadable_images=skip")
    for run, outcome in zip(runs, train_in_parallel(runs, jobs=2), strict=True):
        alone = RunDir(tmp_path / "alone" / run.run_dir.path.parent.name / run.run_dir.path.name)
        expected = train(run.config, alone)
        assert outcome.result is not None, outcome.error
        assert outcome.result.untrained == expected.untrained
        assert outcome.result.metrics == expected.metrics
        assert same(run.run_dir.load(run.run_dir.best_file), alone.load(alone.best_file))


@pytest.mark.slow
def test_features_are_not_shared_between_weights_or_crops(
    make_folder: MakeFolder, tmp_path: Path, counted: list[bytes]
) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "backbone.train=full", "train.max_steps=1",
             "data.train_classes=1-2", "data.val_classes=3-4", "train.run_test=false",
             "train.projection_init=random"]  # fmt: skip
    train_in_parallel(
        plan_runs(tmp_path / "pack", None, words, ["seed=0,1", "image.crop=32,28"])
    )  # a seed draws the weights
    assert len(counted) == 4 * 8


def test_validation_on_test_classes_embeds_them_once(
    make_folder: MakeFolder, tmp_path: Path, counted: list[bytes]
) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "backbone.train=full", "train.max_steps=1",
             "data.train_classes=1-4", "data.val_classes=test", "data.test_classes=5-8",
             "train.projection_init=random"]  # fmt: skip
    (run,) = plan_runs(tmp_path / "pack", None, words, ["seed=0"])
    untrained = train(run.config, run.run_dir).untrained
    assert untrained["val"] == untrained["test"]
    assert len(counted) == 16


@pytest.fixture
def scene(make_folder: MakeFolder) -> tuple[ImageCache, CropTransform, MeanPoolBaseline]:
    """24 images, and a network that adds in another order for one image than for 8."""
    store = ImageCache(load_images(make_folder(images=3)), resize=32)
    network = {"name": "resnet20", "weights": "random"}
    settings: dict[str, Any] = {"backbone": network, "image": {"resize": 32, "crop": 32}, "dim": 8}
    torch.manual_seed(0)
    return store, CropTransform(resize=32, size=32), MeanPoolBaseline(Embedder.create(settings).backbone, batch=8)


def test_baseline_features_are_means_of_the_feature_map(
    scene: tuple[ImageCache, CropTransform, MeanPoolBaseline],
) -> None:
    store, crops, model = scene
    inputs = CropInputs(store, crops)
    backbone = model.backbone
    assert backbone is not None
    with torch.no_grad():
        maps = torch.cat([backbone.eval()(inputs.test([i])) for i in range(len(store))])
    expected = maps.flatten(2).mean(dim=2)
    ready = FeatureInputs(maps, store.labels, [""] * len(store), torch.device("cpu"))
    for found in (MeanFeatureCache().get(model, inputs), MeanFeatureCache().get(MeanPoolBaseline(None), ready)):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


def test_features_do_not_depend_on_other_requests(
    scene: tuple[ImageCache, CropTransform, MeanPoolBaseline],
) -> None:
    store, crops, model = scene
    shared, alone = MeanFeatureCache(), MeanFeatureCache().get(model, CropInputs(store, crops))
    for classes in ([4], [5, 2], [7, 0, 1]):  # the last leaves one image over
        images = store.images.select_classes(classes)
        view = ImageCacheView(store, images)
        assert torch.equal(shared.get(model, CropInputs(view, crops)), alone[view.rows])
        own = CropInputs(ImageCache(images, resize=32), crops)
        assert torch.equal(MeanFeatureCache().get(model, own), alone[view.rows])


def test_queries_precede_their_gallery(scene: tuple[ImageCache, CropTransform, MeanPoolBaseline]) -> None:
    store, crops, model = scene
    sides = [
        CropInputs(ImageCacheView(store, store.images.select_classes(part)), crops) for part in ([5, 2], [0, 1, 7])
    ]
    both = QueryGallery(*sides)
    averages = MeanFeatureCache()
    found = averages.get(model, both)
    assert torch.equal(found, torch.cat([averages.get(model, side) for side in sides]))
    assert len(found) == len(both.labels) == 15


class IsolatedProcess(Processes):
    """A process that receives zeros from all others."""

    def gather(self, rows: Tensor, total: int) -> Tensor:
        whole = rows.new_zeros(total, *rows.shape[1:])
        whole[self.own_slice(total)] = rows
        return whole


@pytest.mark.parametrize("count", [2, 5, 30], ids=["two", "some", "more than images"])
def test_processes_share_the_work_exactly(
    scene: tuple[ImageCache, CropTransform, MeanPoolBaseline], count: int
) -> None:
    store, crops, model = scene
    inputs = CropInputs(store, crops)
    shares = [MeanFeatureCache().get(model, inputs, IsolatedProcess(rank, count)) for rank in range(count)]
    assert torch.equal(torch.stack(shares).sum(dim=0), MeanFeatureCache().get(model, inputs))


def test_single_run_frees_baseline_features(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: weakref.WeakSet[MeanFeatureCache] = weakref.WeakSet()
    kept: list[int] = []

    class TrackedCache(MeanFeatureCache):
        def __init__(self) -> None:
            super().__init__()
            made.add(self)

    class CountAtStart(Callback):
        def start(self, steps: int, done: int) -> None:
            kept.append(sum(len(one._stores) for one in made))

    monkeypatch.setattr(build, "MeanFeatureCache", TrackedCache)
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "backbone.train=full", "train.max_steps=1"]
    (run,) = plan_runs(tmp_path / "one", None, words, ["seed=0"])
    train(run.config, run.run_dir, callback=CountAtStart())
    assert kept == [0]
    train_in_parallel([replace(run, run_dir=RunDir(tmp_path / "pack"))], callback=lambda run: CountAtStart())
    assert kept == [0, 1]  # the next run of a pack may ask for them
