"""The training loop: early stopping, resuming, errors, and precision."""

from __future__ import annotations

import functools
import math
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
from winnow.data import load_images
from winnow.errors import ConfigError, ModelError, TrainingError
from winnow.models import Embedder, Head
from winnow.seeding import seed_everything
from winnow.training import Callback, RunDir, Trainer, load_config, train
from winnow.training.build import resolve_config
from winnow.training.config import RunConfig, first_difference
from winnow.training.engine.step import FiniteCheck
from winnow.training.engine.stream import Steps, run_to_end
from winnow.training.inputs import FeatureInputs
from winnow.training.objective import build_objective, count_parameters, parameter_groups

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def separable(classes: int, each: int, seed: int) -> FeatureInputs:
    """Maps of 16 channels on a 3x3 grid: one location has the direction of the class, the others noise."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(classes, 16))
    labels = np.repeat(np.arange(classes), each)
    maps = rng.normal(size=(len(labels), 16, 3, 3)) * 0.3
    for row, label in enumerate(labels):
        maps[row, :, rng.integers(3), rng.integers(3)] += 2 * directions[label]
    names = [f"image {i}" for i in range(len(labels))]
    return FeatureInputs(torch.from_numpy(maps).float(), labels.astype(np.int64), names, torch.device("cpu"))


def small_config(*words: str) -> RunConfig:
    base = ["dim=8", "pooling.num_prototypes=4", "pooling.memory_size=24",
            "train.classes_per_batch=4", "train.max_steps=30",
            "train.samples_per_class=3", "train.eval_steps=5", "train.lr=3e-3", "train.device=cpu"]  # fmt: skip
    return resolve_config(load_config(None, [*base, *words]))


def make_trainer(config: RunConfig, folder: RunDir | None = None, monitor: Callback | None = None) -> Trainer:
    torch.manual_seed(config.seed)
    objective = build_objective(config, Head(16, config.dim, config.pooling), num_classes=10)
    train, val = separable(10, 6, seed=0), separable(6, 6, seed=1)
    return Trainer(config, objective, train, val, run_dir=folder, callback=monitor)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in trainer.objective.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_training_improves_validation_and_ends_with_the_best_weights() -> None:
    trainer = make_trainer(
        small_config("pooling=gap", "train.max_steps=120", "train.lr=1e-2", "loss=c2", "loss.neg_margin=1.0")
    )
    progress = trainer.fit()
    first, values = progress.history[0]["val/MAP@R"], [e["val/MAP@R"] for e in progress.history]
    assert progress.best == max(values) > first + 0.05
    trainer.state.history.clear()
    run_to_end(trainer._iter_validate({}, time.perf_counter()))
    assert trainer.state.history[0]["val/MAP@R"] == pytest.approx(progress.best)


def test_training_is_a_function_of_the_seed() -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = make_trainer(small_config(f"seed={seed}", "zsr=0.2"))
        trainer.fit()
        runs.append(weights(trainer))
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_training_stops_after_patience_validations_without_gain() -> None:
    trainer = make_trainer(small_config("train.lr=1e-12", "train.patience=2", "pooling=gap", "train.max_steps=1000"))
    progress = trainer.fit()
    assert progress.best_step == 0
    assert progress.step == 3 * 5  # one to compare with, and two that are no better


class Scripted:
    """An evaluation with given values."""

    def __init__(self, values: list[float]) -> None:
        self._values = iter(values)

    def __call__(self, *args: Any, **kwargs: Any) -> Steps[Any]:
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
def test_patience_ignores_the_value_before_training(
    values: list[float], best_step: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.training.trainer.iter_evaluate", Scripted(values))
    progress = make_trainer(small_config("train.patience=2", "pooling=gap", "train.max_steps=1000")).fit()
    assert (progress.best_step, progress.step) == (best_step, steps)
    assert progress.best == values[best_step // 5]


class StopAfter(Callback):
    """Ends training at a step, as a crash does."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, step: int) -> None:
        if step == self.at:
            raise RuntimeError("crash")


CCP = [
    "references=ccp",
    "references.proxies_per_class=2",
    "references.pool_size=4",
    "references.patience=1",
    "references.proximal_weight=0.1",
]


@pytest.mark.parametrize(
    "at", [3, pytest.param(5, marks=pytest.mark.slow), 13, pytest.param(28, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "words",
    [["pooling=gmp"], ["zsr=0.2"], ["zsr=0.2", "train.precision=64-true"], ["zsr=0.2", "train.precision=bf16-mixed"],
     ["loss=c1", "references=memory", "references.num_batches=2", "references.start_step=1"], ["loss=proxy_anchor"],
     ["loss=soft_triple", "references.proxies_per_class=2"],
     ["loss=margin", "loss.per_class=true", "miner=distance_weighted", "references=memory", "references.num_batches=2",
      "references.start_step=1"],
     [*CCP, "loss=c2", "pooling=gap"], ["loss=proxy_anchor", "zsr=0.2", "zsr.class_embeddings=proxies"],
     [*CCP, "references.start_from=last", "zsr=0.2", "zsr.preset=authors", "loss=c2"],
     [*CCP, "loss=ms", "pooling=gap", "references.lr_multiplier=30", "train.average=0.9"],
     [*CCP, "loss=c2", "pooling=gap", "references.patience=9", "references.max_steps=8", "train.average=0.9"],
     ["loss=proxy_anchor", "zsr=0.2", "distill=1", "distill.decay=0.9", "train.average=0.8"]],
)  # fmt: skip
def test_resumed_run_equals_uninterrupted_run(tmp_path: Path, at: int, words: list[str]) -> None:
    config = small_config(*words)
    whole = uninterrupted_run(*words)
    folder = interrupted_run(config, tmp_path / "run", at)
    resumed = make_trainer(config, folder)
    resumed.restore()
    assert resumed.state.step == (at - 1) // 5 * 5  # the crash comes before the validation of its step
    resumed.fit()
    assert same(weights(whole), weights(resumed))
    steps = [entry["step"] for entry in resumed.state.history]
    assert steps == [entry["step"] for entry in whole.state.history]
    assert len(folder.log_file.read_text().splitlines()) == len(steps)
    if whole.ccp_solver is not None:
        assert resumed.ccp_solver is not None
        assert resumed.ccp_solver.records() == whole.ccp_solver.records()
        assert len(whole.ccp_solver.history) > 1
        assert same(whole.objective.proximal.target, resumed.objective.proximal.target)


@functools.cache
def uninterrupted_run(*words: str) -> Trainer:
    """Return the trainer of a finished run, which several tests compare with."""
    trainer = make_trainer(small_config(*words))
    trainer.fit()
    return trainer


def interrupted_run(config: RunConfig, path: Path, at: int) -> RunDir:
    """Return the folder of a run that crashed at a step."""
    folder = RunDir(path)
    folder.create(config)
    with pytest.raises(RuntimeError, match="crash"):
        make_trainer(config, folder, StopAfter(at)).fit()
    return folder


@pytest.mark.parametrize("words", [["pooling=gap"], ["zsr=0.2"], ["zsr=0.2", "references.start_from=last"]])
def test_ccp_is_stable_to_rounding(words: list[str]) -> None:
    """Proxies start as embeddings of training images, so some distances are zero except for rounding."""
    config = small_config(*CCP, "loss=c2", *words)
    losses = []
    for noise in (0.0, 1e-7):
        trainer = make_trainer(config)
        with torch.no_grad():
            for parameter in trainer.objective.parameters():
                parameter.mul_(1 + noise * torch.randn_like(parameter))
        losses.append([entry["loss"] for entry in trainer.fit().history[1:]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_checkpoint_of_another_config_or_model_is_rejected(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    config = small_config()
    folder.create(config)
    make_trainer(config, folder).fit()
    with pytest.raises(ModelError, match="another dim"):
        make_trainer(small_config("dim=4"), folder).restore()
    state = folder.load(folder.checkpoint_file)
    state["learner"].pop("model.projection.weight")
    folder.save(folder.checkpoint_file, state)
    with pytest.raises(ModelError, match="does not fit the model"):
        make_trainer(config, folder).restore()
    folder.checkpoint_file.write_text("not a checkpoint")
    with pytest.raises(ModelError, match=r"checkpoint\.pt.*damaged"):
        make_trainer(config, folder).restore()


def test_checkpoint_without_a_newer_setting_resumes_with_its_default(tmp_path: Path) -> None:
    config = small_config("zsr=0.2", "plateau=0.5")
    whole = make_trainer(config)
    whole.fit()
    folder = interrupted_run(config, tmp_path / "run", 13)
    state = folder.load(folder.checkpoint_file)
    del state["config"]["train"]["freeze_backbone_steps"], state["config"]["pooling"]["learn_mu"]
    del state["config"]["regularizer"], state["config"]["plateau"]["cooldown"]
    folder.save(folder.checkpoint_file, state)
    for word in ("train.freeze_backbone_steps=1", "plateau.cooldown=1", "regularizer=r1"):
        other = small_config("zsr=0.2", "plateau=0.5", word)
        with pytest.raises(ModelError, match=f"another {word.partition('=')[0]}"):
            make_trainer(other, folder).restore()
    resumed = make_trainer(config, folder)
    resumed.restore()
    resumed.fit()
    assert same(weights(whole), weights(resumed))
    state["config"]["train"]["gone"] = 1
    folder.save(folder.checkpoint_file, state)
    with pytest.raises(ModelError, match=r"settings that this version does not have .*train\.gone"):
        make_trainer(config, folder).restore()


def test_checkpoint_of_an_early_version_resumes(tmp_path: Path) -> None:
    config = small_config(*CCP, "loss=c2", "pooling=gap")
    whole = make_trainer(config)
    whole.fit()
    folder = interrupted_run(config, tmp_path / "run", 13)
    state = folder.load(folder.checkpoint_file)
    kept = state["progress"].pop("peak")
    del state["problems"]["picked"]
    folder.save(folder.checkpoint_file, state)
    resumed = make_trainer(config, folder)
    resumed.restore()
    assert resumed.state.best_after_start == kept > 0
    resumed.fit()
    assert same(weights(whole), weights(resumed))


def test_first_difference_compares_requested_settings() -> None:
    made = small_config("train.lr_multipliers={'*.prototypes': 10}", "loss=ms").model_dump(mode="json")
    assert first_difference({}, made) is None
    assert first_difference({"train": {"max_steps": 30}, "dim": 8, "loss": made["loss"]}, made) is None
    assert first_difference({"dim": 8, "train": {"steps": 31}}, made) == "train.max_steps"
    assert first_difference({"train": {"lr_multipliers": {}}}, made) == "train.lr_multipliers.*.prototypes"
    assert first_difference({"loss": {**made["loss"], "name": "c2"}}, made) == "loss.name"
    first = next(key for key in made["loss"] if key != "name")
    assert first_difference({"loss": {**made["loss"], first: 123.0}}, made) == f"loss.{first}"


def test_non_finite_loss_names_step_images_and_checkpoint(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    config = small_config()
    folder.create(config)
    trainer = make_trainer(config, folder)
    bad = int(trainer.sampler.batch(7)[2])
    trainer.train.maps[bad] = torch.nan  # type: ignore[attr-defined]
    first = next(s for s in range(30) if bad in trainer.sampler.batch(s))
    with pytest.raises(TrainingError) as caught:
        trainer.fit()
    message = str(caught.value)
    assert message.startswith(f"step {first}: ")
    assert "precision" not in message  # nothing to gain over 32-true
    assert str(folder.checkpoint_file) in message
    assert f"(step {first - first % 5})" in message
    assert f"image {bad}" in (folder.path / "bad_batch.txt").read_text().splitlines()
    assert all(torch.isfinite(v).all() for v in folder.load(folder.checkpoint_file)["learner"].values())


@pytest.mark.parametrize("every", [1, 5])
def test_overflowing_weights_stop_training(tmp_path: Path, every: int) -> None:
    folder = RunDir(tmp_path / "run")
    config = small_config("train.lr=1e30", f"train.eval_steps={every}")
    folder.create(config)
    with pytest.raises(TrainingError, match=r"step \d+: .* not finite.*last good checkpoint"):
        make_trainer(config, folder).fit()
    assert all(torch.isfinite(v).all() for v in folder.load(folder.checkpoint_file)["learner"].values())


def test_seed_everything_seeds_numpy_and_python() -> None:
    drawn = []
    for _ in range(2):
        seed_everything(5)
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))  # noqa: NPY002
    assert drawn[0] == drawn[1]


def test_run_restores_the_generators_of_its_caller(make_folder: MakeFolder, tmp_path: Path) -> None:
    seed_everything(5)
    expected = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
    seed_everything(5)
    train(load_config(None, [f"data={make_folder()}", *TINY, "train.device=cpu"]), RunDir(tmp_path / "run"))
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected  # noqa: NPY002


def test_finite_check_keeps_the_first_bad_step() -> None:
    watch = FiniteCheck(torch.device("cpu"))
    for step, value in enumerate([1.0, float("inf"), 2.0, float("nan")]):
        watch.update(torch.tensor(step), torch.tensor(value))
    assert watch.first_bad_step() == 1
    assert FiniteCheck(torch.device("cpu")).first_bad_step() is None


def test_every_parameter_of_model_and_losses_is_in_exactly_one_group() -> None:
    config = small_config("zsr=0.1")
    objective = build_objective(config, Head(16, 8, config.pooling), num_classes=10)
    groups = parameter_groups(objective, 1e-3, {"*prototypes": 10, "zsr.*": 0.5})
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in objective.parameters())
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert objective.zsr is not None
    assert rates[id(objective.head.pooling.prototypes)] == pytest.approx(1e-2)
    assert rates[id(objective.zsr.class_embeddings)] == pytest.approx(5e-4)
    assert rates[id(objective.head.projection.weight)] == pytest.approx(1e-3)
    assert count_parameters(objective)["trained"] == sum(p.numel() for p in objective.parameters())


def test_class_embeddings_have_a_learning_rate_of_their_own() -> None:
    config = small_config("zsr=0.1", "zsr.lr_multiplier=100")
    objective = build_objective(config, Head(16, 8, config.pooling), num_classes=10)
    assert objective.zsr is not None

    def rates(multipliers: dict[str, float]) -> tuple[float, float]:
        groups = parameter_groups(objective, 1e-3, multipliers)
        found = {id(p): group["lr"] for group in groups for p in group["params"]}
        assert objective.zsr is not None
        return found[id(objective.zsr.class_embeddings)], found[id(objective.head.projection.weight)]

    assert rates({}) == pytest.approx((1e-1, 1e-3))
    assert rates({"*": 2}) == pytest.approx((2e-3, 2e-3))  # patterns precede
    assert rates({"zsr.*": 3}) == pytest.approx((3e-3, 1e-3))


class Messages(Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def test_the_loss_of_zsr_is_logged_beside_that_of_guessing_and_warned_of_once(tmp_path: Path) -> None:
    words = ["zsr=0.1", "zsr.preset=authors", "zsr.lr_multiplier=0", "train.max_steps=40", "train.eval_steps=2"]
    config, heard, folder = small_config(*words), Messages(), RunDir(tmp_path / "run")
    folder.create(config)
    trainer = make_trainer(config, folder, heard)
    assert trainer.objective.zsr is not None
    trainer.objective.zsr.class_embeddings.data.mul_(4)  # long class embeddings, which do not move
    state = trainer.fit()
    assert [entry["zsr/guess"] for entry in state.history[1:]] == [math.log(10)] * len(state.history[1:])
    assert "zsr/guess" not in state.history[0]
    (note,) = heard.texts
    assert "zsr.logit_scale=1" in note
    again = make_trainer(config, folder, heard)
    again.restore()
    again._warn_of_guessing()
    assert len(heard.texts) == 1


def test_pattern_without_a_match_is_rejected() -> None:
    config = small_config()
    objective = build_objective(config, Head(16, 8, config.pooling), num_classes=10)
    with pytest.raises(ConfigError, match="'proxies' matches no whole parameter name"):
        parameter_groups(objective, 1e-3, {"proxies": 100})


def test_shared_class_embeddings_need_proxies() -> None:
    words = ["zsr=0.1", "zsr.class_embeddings=proxies"]
    with pytest.raises(ConfigError, match=r"zsr\.class_embeddings: references=batch has no proxies"):
        build_objective(small_config(*words, "loss=c2"), Head(16, 8, {"name": "gsp"}), num_classes=10)
    trainer = make_trainer(small_config(*words, "loss=proxy_anchor"))
    trainer.fit()
    assert "zsr.class_embeddings" not in weights(trainer)
    assert any(entry.losses.get("zsr", 0) > 0 for entry in trainer.state.history)


def test_zsr_needs_a_pooling_with_attributes() -> None:
    with pytest.raises(ConfigError, match=r"zsr\.weight: pooling=gap has no attributes.*gsp"):
        build_objective(small_config("pooling=gap", "zsr=0.1"), Head(16, 8, {"name": "gap"}), num_classes=10)


def test_mixed_precision_trains_and_leaves_parameters_in_float32() -> None:
    trainer = make_trainer(small_config("train.precision=bf16-mixed", "zsr=0.1"))
    trainer.fit()
    assert {p.dtype for p in trainer.objective.parameters()} == {torch.float32}
    assert all(torch.isfinite(p).all() for p in trainer.objective.parameters())


@pytest.mark.parametrize(
    "words",
    [["zsr=0.1", "loss=c2"], ["pooling=otp", "loss=triplet"], ["pooling=solar", "references=memory",
     "references.start_step=1", "references.num_batches=2"], ["loss=proxy_anchor", "regularizer=r1"],
     ["pooling=gmp_gsp", "loss=c2", "references=ccp", "references.proxies_per_class=2", "references.pool_size=3",
      "references.patience=1"]],
    ids=" ".join,
)  # fmt: skip
def test_mixed_precision_applies_only_to_the_backbone(words: list[str]) -> None:
    """Frozen features are pooled and compared in float32, in training and evaluation."""
    runs = []
    for precision in ("32-true", "bf16-mixed"):
        trainer = make_trainer(small_config(*words, f"train.precision={precision}", "train.max_steps=15"))
        trainer.fit()
        runs.append(trainer)
    assert same(*map(weights, runs))
    first, second = ([{**e, "seconds": 0} for e in trainer.state.history] for trainer in runs)
    assert first == second


def test_checkpoint_without_a_scaler_resumes_with_one(tmp_path: Path) -> None:
    """A run in 16-mixed that started on a CPU, where it is bf16-mixed, and resumes on a GPU."""
    config = small_config("train.precision=16-mixed", "train.max_steps=5")
    folder = RunDir(tmp_path / "run")
    folder.create(config)
    make_trainer(config, folder).fit()
    resumed = make_trainer(config, folder)
    resumed.fabric.strategy.precision.scaler = torch.amp.GradScaler("cpu")  # type: ignore[attr-defined]
    resumed.restore()
    assert resumed.state.step == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("validations", "more"),
    [
        (0, ["zsr=0.2"]),
        (3, ["zsr=0.2"]),
        (5, [*CCP, "loss=c2", "train.average=0.9", "train.schedule=cosine", "train.chunk_size=4",
             "augment.resize=original", "augment.random_erasing=0.5", "train.patience=99"]),
    ],
)  # fmt: skip
def test_run_killed_by_sigkill_resumes_bit_identical(
    make_folder: MakeFolder, tmp_path: Path, validations: int, more: list[str]
) -> None:
    """A real process is killed while it fine-tunes a network on random crops."""
    data = make_folder()
    words = [f"data={data}", *TINY, "backbone.train=full", *more, "train.max_steps=40", "train.device=cpu"]
    whole = RunDir(tmp_path / "whole")
    train(load_config(None, words), whole)

    script = "import torch, sys; torch.set_num_threads(1); from winnow.cli import run; sys.argv[0] = 'winnow'; run()"
    broken = RunDir(tmp_path / "broken")
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
    averages = [folder.load(folder.checkpoint_file)["average"] for folder in (whole, broken)]
    assert same(*averages)
    assert _untimed(whole) == _untimed(broken)


def _untimed(folder: RunDir) -> list[dict[str, Any]]:
    history = folder.load(folder.checkpoint_file)["progress"]["history"]
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in history]


def test_backbone_is_frozen_during_warm_up(tmp_path: Path) -> None:
    words = [
        *TINY,
        "backbone.train=full",
        "train.device=cpu",
        "train.freeze_backbone_steps=3",
        "train.max_steps=8",
        "train.patience=99",
    ]
    config = resolve_config(load_config(None, [*words, "loss=proxy_anchor"]))

    def make(folder: RunDir | None = None) -> Trainer:
        torch.manual_seed(0)
        objective = build_objective(config, Embedder.create(config), num_classes=4)
        images = torch.rand(24, 3, 32, 32)
        labels = np.repeat(np.arange(4), 6)
        inputs = FeatureInputs(images, labels, [str(i) for i in range(24)], torch.device("cpu"))
        return Trainer(config, objective, inputs, inputs, run_dir=folder)

    trainer = make()
    before = weights(trainer)

    def moved(part: str) -> bool:
        return any(
            not torch.equal(before[name], parameter)
            for name, parameter in trainer.objective.named_parameters()
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
    folder = RunDir(tmp_path / "run")
    folder.create(config)
    broken = make(folder)
    pieces = broken.iter_fit()
    while broken.state.step < 6:  # two steps beyond the checkpoint of step 4
        next(pieces)
    assert broken.writer is not None
    broken.writer.wait()
    resumed = make(folder)
    resumed.restore()
    resumed.fit()
    assert same(weights(whole), weights(resumed))


RANDOM = ["train.sampler=random", "train.batch_size=7", "loss=proxy_nca", "pooling=gap"]


def test_random_batches_resume_exactly(tmp_path: Path) -> None:
    whole = make_trainer(small_config(*RANDOM, "train.max_steps=25"))
    whole.fit()
    assert len(whole.sampler) == 60 // 7
    with pytest.raises(RuntimeError, match="crash"):
        make_trainer(small_config(*RANDOM, "train.max_steps=25"), RunDir(tmp_path), StopAfter(13)).fit()
    resumed = make_trainer(small_config(*RANDOM, "train.max_steps=25"), RunDir(tmp_path))
    resumed.restore()
    resumed.fit()
    assert same(weights(whole), weights(resumed))
    assert whole.state.best_step > 0


def test_random_batches_need_references_other_than_the_batch() -> None:
    with pytest.raises(ConfigError, match=r"train\.sampler: .*few positive pairs with references=batch.*proxies"):
        small_config("train.sampler=random", "loss=triplet")
    for words in (["loss=c2", "references=ccp"], ["loss=c1", "references=memory"], ["loss=proxy_anchor"]):
        assert small_config("train.sampler=random", *words).train.images_per_batch == 12
    with pytest.raises(ConfigError, match=r"train\.batch_size: no effect with train\.sampler=classes"):
        small_config("train.batch_size=9")


def test_random_batches_are_not_larger_than_the_training_set(make_folder: MakeFolder) -> None:
    images = load_images(str(make_folder()))
    config = resolve_config(load_config(None, [*TINY, *RANDOM[:1], *RANDOM[2:], "train.batch_size=999"]), images)
    assert config.train.batch_size == len(images)
    config = resolve_config(load_config(None, [*TINY, *RANDOM, "train.unit=epochs", "train.max_steps=3"]), images)
    assert config.train.max_steps == 3 * (len(images) // 7)
