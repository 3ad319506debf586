from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TINY, MakeFolder
from winnow.errors import ConfigError, ModelError, TrainingError
from winnow.models import Embedder, Head
from winnow.seeding import seed_everything
from winnow.training import Monitor, RunFolder, Trainer, load_config, run_training
from winnow.training.config import Config
from winnow.training.inputs import FeatureInputs
from winnow.training.lane import Work, finish
from winnow.training.learner import build_learner, count_parameters, parameter_groups
from winnow.training.prepare import resolve_config
from winnow.training.same import differing
from winnow.training.step import FiniteWatch

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")


def separable(classes: int, each: int, seed: int) -> FeatureInputs:
    """Maps of 16 channels on a 3x3 grid: one place holds the class's direction, the others noise."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(classes, 16))
    labels = np.repeat(np.arange(classes), each)
    maps = rng.normal(size=(len(labels), 16, 3, 3)) * 0.3
    for row, label in enumerate(labels):
        maps[row, :, rng.integers(3), rng.integers(3)] += 2 * directions[label]
    names = [f"image {i}" for i in range(len(labels))]
    return FeatureInputs(torch.from_numpy(maps).float(), labels.astype(np.int64), names, torch.device("cpu"))


def small_config(*words: str) -> Config:
    base = ["dim=8", "pooling.prototypes=4", "pooling.memory=24", "train.classes_per_batch=4", "train.steps=30",
            "train.samples_per_class=3", "train.eval_every=5", "train.lr=3e-3", "train.device=cpu"]  # fmt: skip
    return resolve_config(load_config(None, [*base, *words]))


def make_trainer(config: Config, folder: RunFolder | None = None, monitor: Monitor | None = None) -> Trainer:
    torch.manual_seed(config.seed)
    learner = build_learner(config, Head(16, config.dim, config.pooling), num_classes=10)
    train, val = separable(10, 6, seed=0), separable(6, 6, seed=1)
    return Trainer(config, learner, train, val, folder=folder, monitor=monitor)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in trainer.learner.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_training_improves_validation_and_ends_with_the_best_weights() -> None:
    trainer = make_trainer(
        small_config("pooling=gap", "train.steps=120", "train.lr=1e-2", "loss=c2", "loss.negative_margin=1.0")
    )
    progress = trainer.fit()
    first, values = progress.history[0]["val/MAP@R"], [e["val/MAP@R"] for e in progress.history]
    assert progress.best == max(values) > first + 0.05
    trainer.progress.history.clear()
    finish(trainer._validate({}, time.perf_counter()))
    assert trainer.progress.history[0]["val/MAP@R"] == pytest.approx(progress.best)


def test_the_seed_fixes_everything_and_another_seed_changes_it() -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = make_trainer(small_config(f"seed={seed}", "zsr=0.2"))
        trainer.fit()
        runs.append(weights(trainer))
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_training_stops_after_patience_validations_without_gain() -> None:
    trainer = make_trainer(small_config("train.lr=1e-12", "train.patience=2", "pooling=gap", "train.steps=1000"))
    progress = trainer.fit()
    assert progress.best_step == 0
    assert progress.step == 3 * 5  # one to compare with, and two that are no better


class Scripted:
    """A judge whose values are given."""

    def __init__(self, values: list[float]) -> None:
        self._values = iter(values)

    def __call__(self, *args: Any, **kwargs: Any) -> Work[Any]:
        yield
        value = next(self._values)
        return type("Result", (), {"metrics": lambda self: {"MAP@R": value, "P@1": value}})()


@pytest.mark.parametrize(
    ("values", "best_step", "steps"),
    [
        ([0.5, 0.2, 0.3, 0.4, 0.6, 0.55, 0.55], 20, 30),  # falls first, and catches up later than patience lasts
        ([0.5, 0.2, 0.3, 0.25, 0.3], 0, 20),  # never catches up: the weights before training are kept
        ([0.1, 0.2, 0.2, 0.2], 5, 15),
    ],
)
def test_patience_does_not_count_from_the_value_before_training(
    values: list[float], best_step: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.training.trainer.judging", Scripted(values))
    progress = make_trainer(small_config("train.patience=2", "pooling=gap", "train.steps=1000")).fit()
    assert (progress.best_step, progress.step) == (best_step, steps)
    assert progress.best == values[best_step // 5]


class StopAfter(Monitor):
    """Ends the process's training at a step, as a crash would."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, step: int) -> None:
        if step == self.at:
            raise RuntimeError("crash")


CCP = ["references=ccp", "references.per_class=2", "references.pool=4", "references.patience=1", "references.pull=0.1"]


@pytest.mark.parametrize("at", [3, 5, 13, 28])
@pytest.mark.parametrize(
    "words",
    [["pooling=gmp"], ["zsr=0.2"], ["zsr=0.2", "train.precision=64-true"], ["zsr=0.2", "train.precision=bf16-mixed"],
     ["loss=c1", "references=memory", "references.batches=2", "references.start=1"], ["loss=proxy_anchor"],
     ["loss=soft_triple", "references.per_class=2"],
     ["loss=margin", "loss.per_class=true", "mining=distance_weighted", "references=memory", "references.batches=2",
      "references.start=1"],
     [*CCP, "loss=c2", "pooling=gap"], [*CCP, "references.start=last", "zsr=0.2", "loss=c2"]],
)  # fmt: skip
def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path, at: int, words: list[str]) -> None:
    config = small_config(*words)
    whole = make_trainer(config)
    whole.fit()
    folder = broken_off(config, tmp_path / "run", at)
    resumed = make_trainer(config, folder)
    resumed.restore()
    assert resumed.progress.step == (at - 1) // 5 * 5  # the crash comes before the validation of its step
    resumed.fit()
    assert same(weights(whole), weights(resumed))
    steps = [entry["step"] for entry in resumed.progress.history]
    assert steps == [entry["step"] for entry in whole.progress.history]
    assert len(folder.log_file.read_text().splitlines()) == len(steps)
    if whole.problems is not None:
        assert resumed.problems is not None
        assert resumed.problems.records() == whole.problems.records()
        assert len(whole.problems.history) > 1
        assert same(whole.learner.pull.previous, resumed.learner.pull.previous)


def broken_off(config: Config, path: Path, at: int) -> RunFolder:
    """Return the folder of a run that crashed at a step."""
    folder = RunFolder(path)
    folder.create(config)
    with pytest.raises(RuntimeError, match="crash"):
        make_trainer(config, folder, StopAfter(at)).fit()
    return folder


@pytest.mark.parametrize("words", [["pooling=gap"], ["zsr=0.2"], ["zsr=0.2", "references.start=last"]])
def test_the_last_digit_does_not_decide_how_ccp_trains(words: list[str]) -> None:
    """Its proxies begin as embeddings of images that batches hold too; whether the two differ is up to rounding."""
    config = small_config(*CCP, "loss=c2", *words)
    losses = []
    for noise in (0.0, 1e-7):
        trainer = make_trainer(config)
        with torch.no_grad():
            for parameter in trainer.learner.parameters():
                parameter.mul_(1 + noise * torch.randn_like(parameter))
        losses.append([entry["loss"] for entry in trainer.fit().history[1:]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_checkpoint_of_another_config_or_model_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = small_config()
    folder.create(config)
    make_trainer(config, folder).fit()
    with pytest.raises(ModelError, match="another config"):
        make_trainer(small_config("dim=4"), folder).restore()
    state = folder.load(folder.checkpoint_file)
    state["learner"].pop("model.projection.weight")
    folder.save(folder.checkpoint_file, state)
    with pytest.raises(ModelError, match="of another model"):
        make_trainer(config, folder).restore()
    folder.checkpoint_file.write_text("not a checkpoint")
    with pytest.raises(ModelError, match="is not a checkpoint"):
        make_trainer(config, folder).restore()


def test_a_checkpoint_of_before_a_setting_is_resumed_at_its_default_alone(tmp_path: Path) -> None:
    config = small_config("zsr=0.2", "plateau=0.5")
    whole = make_trainer(config)
    whole.fit()
    folder = broken_off(config, tmp_path / "run", 13)
    state = folder.load(folder.checkpoint_file)
    del state["config"]["train"]["warm_up"], state["config"]["pooling"]["learn_mu"]
    del state["config"]["centres"], state["config"]["plateau"]["cooldown"]
    folder.save(folder.checkpoint_file, state)
    for word in ("train.warm_up=1", "plateau.cooldown=1", "centres=r1"):
        other = small_config("zsr=0.2", "plateau=0.5", word)
        with pytest.raises(ModelError, match=f"another {word.partition('=')[0]}"):
            make_trainer(other, folder).restore()
    resumed = make_trainer(config, folder)
    resumed.restore()
    resumed.fit()
    assert same(weights(whole), weights(resumed))
    state["config"]["train"]["gone"] = 1
    folder.save(folder.checkpoint_file, state)
    with pytest.raises(ModelError, match=r"of a version of winnow with other settings: .*train\.gone"):
        make_trainer(config, folder).restore()


def test_a_checkpoint_of_before_patience_and_angles_is_resumed(tmp_path: Path) -> None:
    config = small_config(*CCP, "loss=c2", "pooling=gap")
    whole = make_trainer(config)
    whole.fit()
    folder = broken_off(config, tmp_path / "run", 13)
    state = folder.load(folder.checkpoint_file)
    kept = state["progress"].pop("peak")
    del state["problems"]["picked"]
    folder.save(folder.checkpoint_file, state)
    resumed = make_trainer(config, folder)
    resumed.restore()
    assert resumed.progress.peak == kept > 0
    resumed.fit()
    assert same(weights(whole), weights(resumed))


def test_a_run_differs_in_what_was_asked_for_alone() -> None:
    made = small_config("train.lr_multipliers={'*.prototypes': 10}", "loss=ms").model_dump(mode="json")
    assert differing({}, made) is None
    assert differing({"train": {"steps": 30}, "dim": 8, "loss": made["loss"]}, made) is None
    assert differing({"dim": 8, "train": {"steps": 31}}, made) == "train.steps"
    assert differing({"train": {"lr_multipliers": {}}}, made) == "train.lr_multipliers.*.prototypes"
    assert differing({"loss": {**made["loss"], "name": "c2"}}, made) == "loss.name"
    first = next(key for key in made["loss"] if key != "name")
    assert differing({"loss": {**made["loss"], first: 123.0}}, made) == f"loss.{first}"


def test_a_loss_that_is_not_finite_stops_with_step_files_and_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = small_config()
    folder.create(config)
    trainer = make_trainer(config, folder)
    bad = int(trainer.sampler.batch(7)[2])
    trainer.train.maps[bad] = torch.nan  # type: ignore[attr-defined]
    first = next(s for s in range(30) if bad in trainer.sampler.batch(s))
    with pytest.raises(TrainingError) as caught:
        trainer.fit()
    message = str(caught.value)
    assert f"was not finite at step {first}," in message
    assert "precision" not in message  # nothing to gain over 32-true
    assert str(folder.checkpoint_file) in message
    assert f"(step {first - first % 5})" in message
    assert f"image {bad}" in (folder.path / "bad_batch.txt").read_text().splitlines()
    assert all(torch.isfinite(v).all() for v in folder.load(folder.checkpoint_file)["learner"].values())


@pytest.mark.parametrize("every", [1, 5])
def test_weights_that_overflow_stop_with_the_step_too(tmp_path: Path, every: int) -> None:
    folder = RunFolder(tmp_path / "run")
    config = small_config("train.lr=1e30", f"train.eval_every={every}")
    folder.create(config)
    with pytest.raises(TrainingError, match=r"was not finite at step \d+.*last good checkpoint"):
        make_trainer(config, folder).fit()
    assert all(torch.isfinite(v).all() for v in folder.load(folder.checkpoint_file)["learner"].values())


def test_the_seed_reaches_the_generators_of_numpy_and_python() -> None:
    drawn = []
    for _ in range(2):
        seed_everything(5)
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))  # noqa: NPY002
    assert drawn[0] == drawn[1]


def test_a_run_leaves_the_generators_of_its_caller_alone(make_folder: MakeFolder, tmp_path: Path) -> None:
    seed_everything(5)
    expected = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
    seed_everything(5)
    run_training(load_config(None, [f"data={make_folder()}", *TINY, "train.device=cpu"]), RunFolder(tmp_path / "run"))
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected  # noqa: NPY002


def test_the_finite_watch_keeps_the_first_bad_step() -> None:
    watch = FiniteWatch(torch.device("cpu"))
    for step, value in enumerate([1.0, float("inf"), 2.0, float("nan")]):
        watch.update(torch.tensor(step), torch.tensor(value))
    assert watch.first_bad_step() == 1
    assert FiniteWatch(torch.device("cpu")).first_bad_step() is None


def test_every_parameter_of_model_and_losses_is_in_exactly_one_group() -> None:
    config = small_config("zsr=0.1")
    learner = build_learner(config, Head(16, 8, config.pooling), num_classes=10)
    groups = parameter_groups(learner, 1e-3, {"*prototypes": 10, "zsr.*": 0.5})
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in learner.parameters())
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert learner.zsr is not None
    assert rates[id(learner.head.pooling.prototypes)] == pytest.approx(1e-2)
    assert rates[id(learner.zsr.class_embeddings)] == pytest.approx(5e-4)
    assert rates[id(learner.head.projection.weight)] == pytest.approx(1e-3)
    assert count_parameters(learner)["trained"] == sum(p.numel() for p in learner.parameters())


def test_a_pattern_that_matches_no_parameter_is_refused() -> None:
    config = small_config()
    learner = build_learner(config, Head(16, 8, config.pooling), num_classes=10)
    with pytest.raises(ConfigError, match="whole name matches 'proxies'"):
        parameter_groups(learner, 1e-3, {"proxies": 100})


def test_zsr_needs_a_pooling_with_attributes() -> None:
    with pytest.raises(ConfigError, match=r"needs a pooling with attributes \(gsp, .*\), not gap"):
        build_learner(small_config("pooling=gap", "zsr=0.1"), Head(16, 8, {"name": "gap"}), num_classes=10)


def test_mixed_precision_trains_and_leaves_parameters_in_float32() -> None:
    trainer = make_trainer(small_config("train.precision=bf16-mixed", "zsr=0.1"))
    trainer.fit()
    assert {p.dtype for p in trainer.learner.parameters()} == {torch.float32}
    assert all(torch.isfinite(p).all() for p in trainer.learner.parameters())


@pytest.mark.parametrize(
    "words",
    [["zsr=0.1", "loss=c2"], ["pooling=otp", "loss=triplet"], ["pooling=solar", "references=memory",
     "references.start=1", "references.batches=2"], ["loss=proxy_anchor", "centres=r1"],
     ["pooling=gmp_gsp", "loss=c2", "references=ccp", "references.per_class=2", "references.pool=3",
      "references.patience=1"]],
    ids=" ".join,
)  # fmt: skip
def test_mixed_precision_is_the_backbones_alone(words: list[str]) -> None:
    """Features of a frozen one are pooled and compared in float32, and are the same in training as in judging."""
    runs = []
    for precision in ("32-true", "bf16-mixed"):
        trainer = make_trainer(small_config(*words, f"train.precision={precision}", "train.steps=15"))
        trainer.fit()
        runs.append(trainer)
    assert same(*map(weights, runs))
    first, second = ([e | {"seconds": 0} for e in trainer.progress.history] for trainer in runs)
    assert first == second


def test_a_checkpoint_without_a_scaler_is_gone_on_with_where_there_is_one(tmp_path: Path) -> None:
    """As of a run in 16-mixed that began on a CPU, where it is bf16-mixed, and goes on on a GPU."""
    config = small_config("train.precision=16-mixed", "train.steps=5")
    folder = RunFolder(tmp_path / "run")
    folder.create(config)
    make_trainer(config, folder).fit()
    resumed = make_trainer(config, folder)
    resumed.fabric.strategy.precision.scaler = torch.amp.GradScaler("cpu")  # type: ignore[attr-defined]
    resumed.restore()
    assert resumed.progress.step == 5


@pytest.mark.parametrize("validations", [0, 3])
def test_a_run_killed_by_sigkill_and_resumed_is_bit_identical(
    make_folder: MakeFolder, tmp_path: Path, validations: int
) -> None:
    """A real process, really killed in the middle of fine-tuning a whole network with ZSR and crops."""
    data = make_folder()
    words = [f"data={data}", *TINY, "backbone.train=full", "zsr=0.2", "train.steps=40", "train.device=cpu"]
    whole = RunFolder(tmp_path / "whole")
    run_training(load_config(None, words), whole)

    script = "import torch, sys; torch.set_num_threads(1); from winnow.cli import run; sys.argv[0] = 'winnow'; run()"
    broken = RunFolder(tmp_path / "broken")
    command = [sys.executable, "-c", script, "train", *words, "--out", str(broken.path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while validations and not (
        broken.log_file.exists() and len(broken.log_file.read_text().splitlines()) >= validations
    ):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    while not broken.config_file.exists():  # where no validation is waited for, it is killed as soon as it began
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not broken.result_file.exists()

    resume = subprocess.run([*command[:3], "train", "--resume", str(broken.path)], capture_output=True, text=True)
    assert resume.returncode == 0, resume.stderr
    for file in ("checkpoint_file", "best_file"):
        a, b = (folder.load(getattr(folder, file)) for folder in (whole, broken))
        a, b = (state.get("learner", state) for state in (a, b))
        assert same(a, b), file
    assert _untimed(whole) == _untimed(broken)


def _untimed(folder: RunFolder) -> list[dict[str, Any]]:
    history = folder.load(folder.checkpoint_file)["progress"]["history"]
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in history]


def test_the_backbone_waits_while_the_rest_warms_up(tmp_path: Path) -> None:
    words = [*TINY, "backbone.train=full", "train.device=cpu", "train.warm_up=3", "train.steps=8", "train.patience=99"]
    config = resolve_config(load_config(None, [*words, "loss=proxy_anchor"]))

    def make(folder: RunFolder | None = None) -> Trainer:
        torch.manual_seed(0)
        learner = build_learner(config, Embedder.create(config), num_classes=4)
        images = torch.rand(24, 3, 32, 32)
        labels = np.repeat(np.arange(4), 6)
        inputs = FeatureInputs(images, labels, [str(i) for i in range(24)], torch.device("cpu"))
        return Trainer(config, learner, inputs, inputs, folder=folder)

    trainer = make()
    before = weights(trainer)

    def moved(part: str) -> bool:
        return any(
            not torch.equal(before[name], parameter)
            for name, parameter in trainer.learner.named_parameters()
            if name.startswith(part)
        )

    trainer.wrapped.train()
    for step in range(3):
        trainer.take_step(step)
    assert not moved("model.backbone")
    assert moved("model.head")
    assert moved("references")
    trainer.take_step(3)
    assert moved("model.backbone")

    whole = make()
    whole.fit()
    folder = RunFolder(tmp_path / "run")
    folder.create(config)
    broken = make(folder)
    pieces = broken.pieces()
    while broken.progress.step < 6:  # two steps beyond the checkpoint of step 4
        next(pieces)
    assert broken.writer is not None
    broken.writer.wait()
    resumed = make(folder)
    resumed.restore()
    resumed.fit()
    assert same(weights(whole), weights(resumed))
