"""Concurrent runs: each equals the run alone, and no error ends another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.conftest import TINY, MakeFolder
from tests.training.test_trainer import StopAfter, same
from winnow.data import CropTransform, ImageCache
from winnow.data.augmentation import Augmentation
from winnow.errors import ConfigError, DataError, ModelError, OutputError, TrainingError, WinnowError
from winnow.training import Callback, RunDir, load_config, train
from winnow.training.build import build_setup, load_splits, make_crops, resolve_config
from winnow.training.cache import RunCache
from winnow.training.parallel import RunOutcome, train_in_parallel
from winnow.training.sweep import PlannedRun, is_plan, plan_runs, read_plan, write_plan

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def planned(tmp_path: Path, data: Path, *each: str, words: tuple[str, ...] = ()) -> list[PlannedRun]:
    return plan_runs(tmp_path / "pack", None, [f"data={data}", *TINY, "train.device=cpu", *words], each)


def untimed(folder: RunDir) -> list[dict[str, Any]]:
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in folder.read_history()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("each", "words"),
    [
        (["seed=0,1", "pooling=gap,gsp"], ("backbone.train=full",)),
        (["zsr=0,0.2", "loss=c2,ms"], ("backbone.train=full",)),
        (["seed=0,1,2"], ("backbone.train=frozen", "zsr=0.2")),
        (["seed=0,1"], ("backbone.train=full", "references=ccp", "references.proxies_per_class=2",
                        "references.pool_size=3", "references.patience=1")),
    ],
)  # fmt: skip
def test_concurrent_runs_equal_single_runs(
    make_folder: MakeFolder, tmp_path: Path, each: list[str], words: tuple[str, ...]
) -> None:
    runs = planned(tmp_path, make_folder(), *each, words=words)
    outcomes = train_in_parallel(runs, jobs=3)
    assert [outcome.run for outcome in outcomes] == runs
    for run, outcome in zip(runs, outcomes, strict=True):
        alone = RunDir(tmp_path / "alone" / run.run_dir.path.name)
        expected = train(run.config, alone)
        assert outcome.result is not None, outcome.error
        assert outcome.result.metrics == expected.metrics
        assert outcome.result.untrained == expected.untrained
        assert untimed(run.run_dir) == untimed(alone)
        for file in ("checkpoint_file", "best_file"):
            a, b = (folder.load(getattr(folder, file)) for folder in (run.run_dir, alone))
            assert same(a.get("learner", a), b.get("learner", b)), (run.name, file)


@pytest.mark.slow
def test_images_are_decoded_once_for_all_runs(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winnow.data import FileImages

    read: list[str] = []
    plain = FileImages.read
    monkeypatch.setattr(FileImages, "read", lambda self, i: read.append(self.name(i)) or plain(self, i))
    words = ("backbone.train=full", "data.image_cache=ram", "train.max_steps=4")
    runs = planned(tmp_path, make_folder(), "seed=0,1,2", words=words)  # seeds deal the classes differently
    train_in_parallel(runs, jobs=3)
    assert len(read) == 8 * 4


class Interrupted(Callback):
    """Interrupts all runs at a step."""

    def step(self, step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt


class Broken(Callback):
    """Raises an unexpected error at a step."""

    def step(self, step: int) -> None:
        if step == 3:
            raise ZeroDivisionError("oh")


def test_augmentation_by_name() -> None:
    words = ["augment.rand_augment=9", "augment.color_jitter=0.4", "augment.random_erasing=0.25"]
    assert make_crops(load_config(None, words)).augmentation == Augmentation(9, 0.4, 0.25)
    assert make_crops(load_config()).augmentation.changes_nothing


@pytest.mark.parametrize("resize", [40, "original"])
def test_training_crops_of_larger_images(make_folder: MakeFolder, tmp_path: Path, resize: int | str) -> None:
    words = [*TINY, f"data={make_folder()}", "train.device=cpu", "backbone.train=full", f"augment.resize={resize}"]
    config = load_config(None, words)
    splits = load_splits(config)
    for shared in (None, RunCache()):
        made = build_setup(resolve_config(config), splits, Callback(), shared)
        expected = make_crops(config).train(
            ImageCache(splits.train, resize=resize), [3, 1], torch.Generator().manual_seed(0)
        )
        assert torch.equal(made.train.train([3, 1], torch.Generator().manual_seed(0)), expected)
        middle = CropTransform(resize=config.image.resize, size=config.image.crop)
        for inputs, images in ((made.train, splits.train), (made.val, splits.val)):
            stored = ImageCache(images, resize=config.image.resize)
            assert torch.equal(inputs.test([0, 2]), middle.test(stored, [0, 2]))


@pytest.mark.slow
def test_failed_run_does_not_end_the_others(make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    each = ("train.lr_multipliers={},{nothing: 2}", "train.lr=1e-3,1e30")
    runs = planned(tmp_path, data, *each, words=("backbone.train=full",))
    told: list[RunOutcome] = []
    outcomes = train_in_parallel(runs, jobs=2, on_end=told.append)
    good, infinite, *impossible = outcomes
    assert good.result is not None
    assert isinstance(infinite.error, TrainingError)
    assert "not finite" in str(infinite.error)
    assert all(isinstance(outcome.error, ConfigError) for outcome in impossible)
    assert {id(outcome) for outcome in told} == {id(outcome) for outcome in outcomes}


def test_run_that_cannot_start_leaves_no_folder(make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    folder = RunDir(tmp_path / "run")
    for word in (f"backbone.weights={tmp_path}/nothing.pth", "train.lr_multipliers={nothing: 2}"):
        config = load_config(None, [f"data={data}", *TINY, "train.device=cpu", "backbone.train=full", word])
        with pytest.raises(WinnowError, match="nothing"):
            train(config, folder)
        assert not folder.path.exists()  # where it would refuse a setting that puts it right


def test_run_is_trained_by_one_process_at_a_time(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = ("backbone.train=full", "train.average=0")  # a value: the folder of a started run has no open ones
    first, second = planned(tmp_path, make_folder(), "seed=0,1", words=words)
    first.run_dir.create(first.config)
    with first.run_dir.lock():
        taken, free = train_in_parallel([first, second])
    assert isinstance(taken.error, OutputError)
    assert f"another process is training {first.run_dir.path}" in str(taken.error)
    assert free.result is not None


@pytest.mark.slow
def test_interrupted_runs_can_resume_at_once(make_folder: MakeFolder, tmp_path: Path) -> None:
    runs = planned(tmp_path, make_folder(), "seed=0,1", words=("backbone.train=full",))
    with pytest.raises(KeyboardInterrupt) as kept:  # its frames hold both, as a notebook's last error does
        train_in_parallel(runs, jobs=2, callback=lambda run: Interrupted() if run is runs[0] else Callback())
    assert all(outcome.error is None for outcome in train_in_parallel(runs, jobs=2))
    assert kept.tb is not None


def test_unexpected_error_has_a_traceback(make_folder: MakeFolder, tmp_path: Path) -> None:
    runs = planned(tmp_path, make_folder(), "seed=0,1")
    outcomes = train_in_parallel(runs, jobs=2, callback=lambda run: Broken() if run is runs[0] else Callback())
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    assert outcomes[0].error.__traceback__ is None
    assert "in step" in outcomes[0].traceback
    assert outcomes[1].result is not None


def test_unreadable_image_ends_only_runs_that_use_it(make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder(classes=12)
    Image.new("RGB", (9, 9)).save(data / "class_11" / "bad.png")
    (data / "class_11" / "bad.png").write_bytes(b"no image")
    splits = ("data.train_classes=1-4", "data.val_classes=5-7", "backbone.train=full")
    runs = planned(tmp_path, data, "data.test_classes=8-10,10-12", words=splits)
    first, second = train_in_parallel(runs, jobs=2)
    assert first.result is not None, first.error
    assert isinstance(second.error, DataError)
    assert "bad.png: image cannot be read" in str(second.error)


def test_out_of_memory_is_a_training_error(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("winnow.training.trainer.Trainer.take_step", full)
    (outcome,) = train_in_parallel(planned(tmp_path, make_folder(), "seed=0"))
    assert isinstance(outcome.error, TrainingError)
    assert "fewer runs concurrently" in str(outcome.error)


@pytest.mark.slow
def test_unfinished_runs_resume_and_finished_runs_are_read(make_folder: MakeFolder, tmp_path: Path) -> None:
    runs = planned(tmp_path, make_folder(), "seed=0,1,2", words=("backbone.train=full",))
    write_plan(tmp_path / "pack", runs)
    assert is_plan(tmp_path / "pack")
    first = train_in_parallel(runs[:2], jobs=2, callback=lambda run: StopAfter(6) if run is runs[1] else Callback())
    assert first[0].result is not None
    assert isinstance(first[1].error, RuntimeError)
    written = runs[0].run_dir.result_file.stat().st_mtime_ns
    again = read_plan(tmp_path / "pack")
    assert [run.name for run in again] == ["seed=0", "seed=1", "seed=2"]
    outcomes = train_in_parallel(again, jobs=2)
    assert runs[0].run_dir.result_file.stat().st_mtime_ns == written
    for run, outcome in zip(runs, outcomes, strict=True):
        assert outcome.result.to_dict() == json.loads(run.run_dir.result_file.read_text())
        alone = RunDir(tmp_path / "alone" / run.name)
        assert train(run.config, alone).metrics == outcome.result.metrics


def test_sweep_is_the_product_of_its_lists(tmp_path: Path) -> None:
    runs = plan_runs(tmp_path, None, ["dim=8"], ["augment.scale=[0.2,1],[0.5,1]", "pooling=gap,gsp", "seed=3,4"])
    assert [run.name for run in runs][:3] == [
        "augment.scale=[0.2,1],pooling=gap,seed=3", "augment.scale=[0.2,1],pooling=gap,seed=4",
        "augment.scale=[0.2,1],pooling=gsp,seed=3",
    ]  # fmt: skip
    assert len(runs) == 8
    assert {run.config.dim for run in runs} == {8}
    assert runs[-1].config.augment.scale == (0.5, 1.0)
    assert runs[-1].config.seed == 4
    assert runs[-1].method() == "augment.scale=[0.5,1],pooling=gsp"
    assert plan_runs(tmp_path, None, [], ["data=a/b,c"])[0].run_dir.path == tmp_path / "data=a_b"


@pytest.mark.parametrize(
    ("each", "message"),
    [
        (["seed"], "expected KEY=VALUE"),
        (["sead=0,1"], "did you mean 'seed'"),
        (["seed=0,x"], "seed="),
        (["pooling=gap,gps"], "did you mean 'gsp'"),
        (["seed=0,1", "seed=2"], "duplicate key seed"),
        (["seed=1,1"], "run seed=1 occurs twice"),
        (["pooling=gsp,gap", "zsr=0.1"], "has no attributes"),
        (["pooling.mu=0.2,7"], "mu: expected a fraction"),
        (["pooling.mu=0.2,0.3", "pooling=gap,gsp"], "pooling.mu: unknown setting of 'gap'"),
    ],
)
def test_invalid_sweeps_are_rejected_before_training(tmp_path: Path, each: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_runs(tmp_path, None, [], each)


def test_plan_rejects_existing_runs(tmp_path: Path) -> None:
    runs = plan_runs(tmp_path, None, [], ["seed=0,1"])
    runs[1].run_dir.create(runs[0].config)
    with pytest.raises(ConfigError, match="seed=1: folder already contains runs"):
        write_plan(tmp_path, runs)
    assert not is_plan(tmp_path)


def test_plan_is_never_overwritten_and_a_damaged_plan_is_rejected(tmp_path: Path) -> None:
    runs = plan_runs(tmp_path, None, [], ["seed=0,1"])
    write_plan(tmp_path, runs)
    with pytest.raises(ConfigError, match="already contains runs"):
        write_plan(tmp_path, runs)
    (tmp_path / "plan.yaml").write_text("- [")
    with pytest.raises(ModelError, match="does not match its checksum"):
        read_plan(tmp_path)


class StartElsewhere(Callback):
    """Starts the run elsewhere while its data are read, and keeps all messages."""

    def __init__(self, run: PlannedRun) -> None:
        self.run, self.told = run, list[str]()

    def message(self, text: str) -> None:
        self.told.append(text)
        if not self.run.run_dir.config_file.exists():
            config = self.run.config
            self.run.run_dir.create(resolve_config(config, load_splits(config).train))


def test_run_started_elsewhere_while_data_are_read_is_resumed(make_folder: MakeFolder, tmp_path: Path) -> None:
    (run,) = planned(tmp_path, make_folder(), "seed=0")
    (outcome,) = train_in_parallel([run], callback=StartElsewhere)
    assert outcome.error is None


def test_resumed_run_reports_its_step(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = ("train.max_steps=6", "train.eval_steps=2")
    (run,) = planned(tmp_path, make_folder(), "seed=0", words=words)
    (outcome,) = train_in_parallel([run], callback=lambda run: StopAfter(5))
    assert outcome.error is not None
    again = StartElsewhere(run)
    (outcome,) = train_in_parallel([run], callback=lambda run: again)
    assert outcome.error is None
    assert "resuming at step 4" in again.told
