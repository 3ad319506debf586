"""Learning-rate reduction as in Keras and after a resume; monitored metrics; saved embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from tests.training.test_trainer import StopAfter, make_trainer, same, small_config, weights
from winnow.data import load_images, split_by_class
from winnow.errors import ConfigError, ModelError
from winnow.evaluation import retrieval_metrics
from winnow.training import RunDir, load_config, train
from winnow.training.config import PlateauConfig
from winnow.training.schedules import GraphLearningRates, ReduceOnPlateau

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


@pytest.mark.parametrize("at", [3, 13, 28])
def test_resumed_run_continues_with_its_rate(tmp_path: Path, at: int) -> None:
    config = small_config(*PLATEAU, "train.lr_multipliers={'*.prototypes': 10}")
    whole = make_trainer(config)
    whole.fit()
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
