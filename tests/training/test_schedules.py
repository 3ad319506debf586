"""Learning-rate schedules against torch and Keras, and after a resume; monitored metrics; saved embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from tests.training.test_trainer import StopAfter, make_trainer, same, small_config, uninterrupted_run, weights
from winnow.data import load_images, split_by_class
from winnow.errors import ConfigError, ModelError
from winnow.evaluation import retrieval_metrics
from winnow.training import RunDir, load_config, train
from winnow.training.build import resolve_config
from winnow.training.config import PlateauConfig, make_config
from winnow.training.schedules import GraphLearningRates, RateSchedule, ReduceOnPlateau, make_schedule
from winnow.training.sweep import first_run_difference

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def keras(values: list[float], *, lr: float, factor: float, patience: int, threshold: float, cooldown: int,
          min_lr: float) -> list[float]:  # fmt: skip
    """Reproduce keras.callbacks.ReduceLROnPlateau with mode="max", line by line."""
    best, wait, cooldown_counter, rates = float("-inf"), 0, 0, []
    for current in values:
        if cooldown_counter > 0:
            cooldown_counter -= 1
            wait = 0
        if current > best + threshold:
            best = current
            wait = 0
        elif not cooldown_counter > 0:
            wait += 1
            if wait >= patience and lr > min_lr:
                lr = max(lr * factor, min_lr)
                cooldown_counter = cooldown
                wait = 0
        rates.append(lr)
    return rates


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("patience", "cooldown"), [(4, 2), (1, 0), (2, 5)])
def test_rate_follows_keras(seed: int, patience: int, cooldown: int) -> None:
    values = torch.randn(60, generator=torch.Generator().manual_seed(seed)).tolist()
    settings = {"factor": 0.5, "patience": patience, "threshold": 0.2, "cooldown": cooldown, "min_lr": 1e-6}
    plateau = ReduceOnPlateau(PlateauConfig(**settings), 1e-5)
    rates = []
    for value in values:
        before = plateau.rate
        lowered = plateau.update(value)
        assert lowered == (plateau.rate < before)
        rates.append(plateau.rate)
    assert rates == keras(values, lr=1e-5, **settings)
    assert rates[-1] == 1e-6


@pytest.mark.parametrize("device", [None, torch.device("cpu")], ids=["numbers", "tensors"])
def test_groups_keep_their_multipliers(device: torch.device | None) -> None:
    a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.Adam([{"params": [a], "lr": 1e-3}, {"params": [b], "lr": 1e-1}])
    rates = GraphLearningRates(optimizer, device)
    first = [group["lr"] for group in optimizer.param_groups]
    rates.scale(0.25)
    now = [group["lr"] for group in optimizer.param_groups]
    assert [float(rate) for rate in now] == pytest.approx([2.5e-4, 2.5e-2])
    if device is not None:  # a graph goes on reading the same place
        assert all(x is y for x, y in zip(first, now, strict=True))


def rates_of(scheduler: Any, steps: int) -> list[float]:
    """Return the rates that a scheduler of torch gives to the steps of its optimizer."""
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def test_cosine_with_warm_up_follows_torch() -> None:
    optimizer, warmup, total = sgd(), 4, 30
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, total_iters=warmup - 1)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warmup)
    expected = rates_of(torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup]), total)
    schedule = RateSchedule("cosine", total, warmup)
    assert [schedule.factor(step) for step in range(total)] == pytest.approx(expected, abs=1e-12)
    assert schedule.factor(total) == pytest.approx(0, abs=1e-12)


def test_steps_follow_torch() -> None:
    expected = rates_of(torch.optim.lr_scheduler.MultiStepLR(sgd(), [3, 7, 8], gamma=0.3), 12)
    schedule = RateSchedule("step", 12, 0, [3, 7, 8], 0.3)
    assert [schedule.factor(step) for step in range(12)] == pytest.approx(expected)
    expected = rates_of(torch.optim.lr_scheduler.StepLR(sgd(), 5, gamma=0.5), 12)
    assert [RateSchedule("step", 12, 0, 5).factor(step) for step in range(12)] == pytest.approx(expected)


@pytest.mark.parametrize(
    "words",
    [
        ["train.schedule=step"],
        ["train.milestones=[3]"],
        ["train.schedule=step", "train.milestones=[7,3]"],
        ["train.schedule=step", "train.milestones=[0,3]"],
        ["train.warmup_steps=30"],
        ["train.schedule=cosine", "plateau=0.5"],
        ["train.schedule=plateau", "plateau=1"],
        ["train.schedule=sine"],
    ],
)
def test_contradictory_schedules_are_config_errors(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        small_config(*words)


def test_plateau_section_alone_means_the_plateau_schedule() -> None:
    old, new = load_config(None, ["plateau=0.5"]), load_config(None, ["train.schedule=plateau"])
    assert old == new
    tree = old.model_dump(mode="json")
    del tree["train"]["schedule"]  # a file of 0.1.0
    assert make_config(tree) == old


def test_epochs_become_steps_of_the_data(make_folder: MakeFolder) -> None:
    images = load_images(make_folder(classes=8, images=4))  # 32 images in batches of 3 x 2: 5 steps
    words = [*TINY, "train.unit=epochs", "train.schedule=step", "train.milestones=[1,3]", "train.max_steps=4",
             "train.freeze_backbone_steps=1", "train.warmup_steps=2"]  # fmt: skip
    asked = load_config(None, words)
    made = resolve_config(asked, images).train
    assert (made.max_steps, made.freeze_backbone_steps, made.warmup_steps) == (20, 5, 10)
    assert (made.milestones, made.unit) == ([5, 15], "steps")
    assert first_run_difference(asked, resolve_config(asked, images), None) is None
    every = resolve_config(load_config(None, [*words, "train.milestones=2"]), images).train
    assert make_schedule(every).factor(10) == make_schedule(every).factor(19) == 0.5


COSINE = ["train.schedule=cosine", "train.warmup_steps=7", "pooling=gap"]
STEP = ["train.schedule=step", "train.milestones=[4,11,12]", "train.step_factor=0.3", "pooling=gap"]


@pytest.mark.parametrize("words", [COSINE, STEP, ["train.warmup_steps=9", "plateau=0.5", "plateau.patience=1"]])
def test_schedule_gives_each_step_its_rate(words: list[str]) -> None:
    trainer = make_trainer(small_config(*words, "train.lr_multipliers={'*.weight': 10}", "train.max_steps=15"))
    seen: list[float] = []
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda *a, **k: (seen.append(float(trainer.optimizer.param_groups[0]["lr"])), step())[1]
    trainer.fit()
    if trainer.plateau is None:
        assert seen == pytest.approx([3e-2 * trainer.schedule.factor(step) for step in range(15)])
    assert [entry["lr"] for entry in trainer.state.history[1:]] == pytest.approx(
        [seen[at - 1] / 10 for at in (5, 10, 15)]
    )


PLATEAU = ["plateau=0.5", "plateau.patience=1", "plateau.cooldown=0", "plateau.threshold=10", "plateau.min_lr=1e-5"]


def test_reduced_rate_is_logged_and_used() -> None:
    trainer = make_trainer(small_config(*PLATEAU, "pooling=gap"))
    progress = trainer.fit()
    rates = [entry["lr"] for entry in progress.history]
    # Step 0 does not count, step 5 sets the best; after that nothing is a gain of 10.
    assert rates == pytest.approx([3e-3, 3e-3, *(3e-3 * 0.5**k for k in range(5))])
    plain = make_trainer(small_config("pooling=gap"))
    plain.fit()
    assert "lr" not in plain.state.history[0]
    assert not same(weights(trainer), weights(plain))


@pytest.mark.parametrize("at", [3, 13, pytest.param(28, marks=pytest.mark.slow)])
@pytest.mark.parametrize("words", [PLATEAU, COSINE[:2], STEP[:3], [*PLATEAU, "train.warmup_steps=16"]])
def test_resumed_run_continues_with_its_rate(tmp_path: Path, at: int, words: list[str]) -> None:
    words = [*words, "train.lr_multipliers={'*.prototypes': 10}"]
    config, whole = small_config(*words), uninterrupted_run(*words)
    folder = RunDir(tmp_path)
    with pytest.raises(RuntimeError, match="crash"):
        make_trainer(config, folder, StopAfter(at)).fit()
    resumed = make_trainer(config, folder)
    if folder.checkpoint_file.exists():
        resumed.restore()
    resumed.fit()
    assert same(weights(whole), weights(resumed))
    assert [e["lr"] for e in whole.state.history] == [e["lr"] for e in resumed.state.history]


@pytest.mark.parametrize("name", ["MAP@R", "P@1"])
def test_monitored_metric_selects_the_best_weights(name: str) -> None:
    trainer = make_trainer(small_config(f"train.monitor={name}", "pooling=gap", "train.lr=1e-2"))
    progress = trainer.fit()
    values = [entry[f"val/{name}"] for entry in progress.history]
    assert progress.best == max(values)
    assert progress.best_step == progress.history[values.index(max(values))]["step"]
    with pytest.raises(ConfigError):
        load_config(None, ["train.monitor=R@3"])


def test_run_saves_test_embeddings(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "backbone.train=full"]
    kept, plain = RunDir(tmp_path / "kept"), RunDir(tmp_path / "plain")
    result = train(load_config(None, [*words, "train.save_embeddings=true"]), kept)
    assert retrieval_metrics(*kept.read_embeddings()) == result.metrics["test"]
    assert train(load_config(None, words), plain).metrics == result.metrics
    with pytest.raises(ModelError, match="save_embeddings"):
        plain.read_embeddings()
    kept.drop_checkpoint()
    assert not kept.checkpoint_file.exists()
    kept.result_file.unlink()
    with pytest.raises(ModelError, match="not finished"):
        kept.drop_checkpoint()


def test_validation_on_test_classes(make_folder: MakeFolder, tmp_path: Path) -> None:
    images = load_images(make_folder())
    splits = split_by_class(images, train_classes="1-4", val_classes="test", test_classes="5-7")
    assert splits.val is splits.test
    assert splits.train.class_names == images.class_names[:4]
    assert splits.val.class_names == images.class_names[4:7]
    assert splits.notes == ("1 of 8 classes are in no split and are skipped",)
    with pytest.raises(ConfigError, match="test_classes"):
        split_by_class(images, train_classes="1-4", val_classes="test")
    with pytest.raises(ConfigError, match="share"):
        split_by_class(images, train_classes="1-4", val_classes="test", test_classes="4-7")
    words = [f"data={tmp_path / 'photos'}", "data.train_classes=1-4", "data.val_classes=test", "data.test_classes=5-8"]
    result = train(
        load_config(None, [*words, *TINY, "train.device=cpu", "train.monitor=P@1"]), RunDir(tmp_path / "run")
    )
    assert result.metrics["val"] == result.metrics["test"]
