"""Tests that need a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import TINY, MakeFolder
from tests.training.test_trainer import CCP, StopAfter, separable, small_config
from winnow.functional import gsp
from winnow.functional.pairs import compare_within_batch
from winnow.losses import LOSSES, ZeroShotRegularizer
from winnow.models import Head
from winnow.regularizers import REGULARIZERS
from winnow.training import Callback, RunDir, Trainer, load_config, train
from winnow.training.engine.stream import DeviceStream
from winnow.training.objective import build_objective
from winnow.training.parallel import train_in_parallel
from winnow.training.sweep import plan_runs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights"),
]


def values_and_gradients(device: str, dtype: torch.dtype, eps: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    prototypes = 0.2 * torch.randn(16, 32, generator=generator, dtype=torch.float64)
    features = 0.2 * torch.randn(8, 49, 32, generator=generator, dtype=torch.float64)
    features[:, :4] = prototypes[:4] + 1e-3 * torch.randn(8, 4, 32, generator=generator, dtype=torch.float64)
    f, w = (t.to(device, dtype).requires_grad_() for t in (features, prototypes))
    out = gsp(f, w, 0.3, eps)
    (out.vector.square().sum() + out.attributes.square().sum()).backward()
    assert f.grad is not None
    assert w.grad is not None
    return [t.detach().double().cpu() for t in (*out, f.grad, w.grad)]


@pytest.mark.parametrize("eps", [0.5, 5.0, 20.0])
def test_gsp_in_float32_on_the_gpu_equals_float64_on_the_cpu(eps: float) -> None:
    exact = values_and_gradients("cpu", torch.float64, eps)
    for a, b in zip(values_and_gradients("cuda", torch.float32, eps), exact, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5


def test_gsp_compiles_to_one_graph_on_the_gpu() -> None:
    f, w = torch.randn(4, 49, 32, device="cuda"), torch.randn(8, 32, device="cuda")
    compiled = torch.compile(gsp, fullgraph=True)
    for a, b in zip(compiled(f, w, 0.3, 5.0), gsp(f, w, 0.3, 5.0), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", list(LOSSES))
def test_losses_agree_between_devices_and_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(24, 16), torch.arange(24) // 4
    loss = LOSSES.build({"name": name})
    expected = compare_within_batch(loss, x, labels)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = compare_within_batch(loss.cuda(), x.cuda(), labels.cuda())
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("name", list(REGULARIZERS))
def test_center_regularizers_agree_between_devices_and_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(24, 16), torch.arange(24) // 2
    regulariser = REGULARIZERS.build({"name": name})
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = regulariser(x.cuda(), labels.cuda())
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(regulariser(x, labels)), rel=1e-4)


def test_zsr_runs_on_the_gpu() -> None:
    zsr = ZeroShotRegularizer(6, 16).cuda()
    z = torch.rand(24, 8, device="cuda", requires_grad=True)
    zsr(z, torch.arange(24, device="cuda") // 4).backward()
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())


@pytest.mark.parametrize("mode", ["full", "frozen"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_training_on_the_gpu(make_folder: MakeFolder, tmp_path: Path, mode: str, precision: str) -> None:
    words = [f"data={make_folder()}", *TINY, f"backbone.train={mode}", f"train.precision={precision}", "zsr=0.1"]
    folder = RunDir(tmp_path / "run")
    result = train(load_config(None, [*words, "train.device=cuda"]), folder)
    assert result.machine.gpu
    assert result.prototypes_ready or result.best_step == 0
    assert json.loads(folder.result_file.read_text())["metrics"]["test"]["MAP@R"] > 0


# Captured steps.


def trainer_on(device: str, *words: str, folder: RunDir | None = None, monitor: Callback | None = None) -> Trainer:
    config = small_config(*words)
    config.train.device = device  # type: ignore[assignment]
    torch.manual_seed(config.seed)
    objective = build_objective(config, Head(16, config.dim, config.pooling), num_classes=10)
    inputs = [separable(10, 6, seed=0), separable(6, 6, seed=1)]
    for each in inputs:
        each.device = torch.device(device)
        each.maps = each.maps.to(device)
    return Trainer(config, objective, *inputs, run_dir=folder, callback=monitor)


def learned(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().cpu().flatten() for p in trainer.objective.parameters()])


class LastWeights(Callback):
    """Keeps the weights of the last validation: the best weights may be the initial ones."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.weights = trainer, learned(trainer)
        self.first = self.weights

    def validated(self, entry: dict[str, Any], improved: bool, by: str = "MAP@R") -> None:
        self.weights = learned(self.trainer)


@pytest.mark.parametrize(
    "words",
    [["pooling=gap"], ["zsr=0.2", "pooling.memory_size=100"],
     ["zsr=0.2", "pooling.memory_size=260", "pooling.num_prototypes=130"],  # more than the fused kernel takes
     ["zsr=0.2", "loss=triplet"],
     ["pooling=gap", "regularizer=r2", "regularizer.measure=distance", "train.optimizer=adamw"],
     ["pooling=gap", "loss=proxy_anchor", "regularizer=r1", "regularizer.num_samples=5"],
     ["pooling=gap", "loss=soft_triple", "references.proxies_per_class=2"],
     ["pooling=gap", "loss=margin", "loss.per_class=true", "miner=distance_weighted"],
     ["pooling=gap", "loss=triplet", "miner=semi_hard", "references=memory", "references.num_batches=2",
      "references.start_step=1"],
     ["pooling=gap", "plateau=0.5", "plateau.patience=1", "plateau.cooldown=0", "plateau.threshold=10"],
     ["pooling=gap", "train.schedule=cosine", "train.warmup_steps=7"],
     ["pooling=gap", "train.schedule=step", "train.milestones=[8,20]"],
     ["pooling=gap", "distill=2", "distill.decay=0.9", "train.average=0.8"],
     ["zsr=0.2", "pooling.memory_size=100", "distill=2", "distill.decay=0.9"],
     [*CCP, "pooling=gap", "loss=c2"],
     [*CCP, "zsr=0.2", "loss=c2", "references.start_from=last", "train.precision=64-true"]],
)  # fmt: skip
def test_replayed_training_equals_eager_training_and_cpu_training(words: list[str]) -> None:
    graphed, eager = (trainer_on("cuda", *words, f"train.cuda_graph={flag}") for flag in ("true", "false"))
    cpu = trainer_on("cpu", *words, "train.cuda_graph=false")
    keepers = [LastWeights(trainer) for trainer in (graphed, eager, cpu)]
    for keeper in keepers:
        keeper.trainer.callback = keeper
        keeper.trainer.fit()
    last, computed, on_cpu = (kept.weights for kept in keepers)
    assert graphed.training_step._replays
    assert (last - keepers[0].first).abs().max() > 1e-3  # so that there is something to compare
    assert len(graphed.state.history) == len(eager.state.history)
    for a, b in zip(graphed.state.history, eager.state.history, strict=True):
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-3)
    torch.testing.assert_close(last, computed, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learned(graphed), learned(eager), rtol=1e-3, atol=1e-4)
    if words == ["pooling=gap"]:  # no random numbers, which differ between devices
        torch.testing.assert_close(last, on_cpu, rtol=1e-2, atol=1e-3)


def test_loop_never_waits_for_the_device() -> None:
    trainer = trainer_on("cuda", "zsr=0.2", "pooling.memory_size=100")
    trainer.wrapped.train()
    torch.cuda.synchronize()
    with trainer.stream.activate():
        for step in range(20):  # both phases are captured by then
            trainer.take_step(step)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(20, 30):
                trainer.take_step(step)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(trainer.training_step._replays) == 2
    trainer._check_finite()


def drawing(lane: DeviceStream) -> tuple[Callable[[int], Tensor], Callable[[int], Tensor]]:
    """Return eager and replayed random numbers as functions of the seed."""
    place, noise = torch.zeros(3, 1000, device="cuda"), torch.ones(1000, device="cuda")
    torch.cuda.synchronize()

    def draw() -> None:
        place[0] = torch.randperm(1000, device="cuda").float()
        place[1] = nn.functional.dropout(noise)
        place[2] = torch.rand(1000, device="cuda")

    def computed(seed: int) -> Tensor:
        with lane.activate():
            torch.manual_seed(seed)
            draw()
            return place.clone()

    with lane.activate():
        draw()
        replay = lane.capture(draw)

    def replayed(seed: int) -> Tensor:
        with lane.activate():
            torch.manual_seed(seed)
            replay()
            return place.clone()

    return computed, replayed


def test_replayed_random_numbers_depend_on_the_seed_in_concurrent_streams() -> None:
    lanes = [DeviceStream(torch.device("cuda")) for _ in range(3)]
    made = [drawing(lane) for lane in lanes]
    alone = {(i, seed): made[i][0](seed) for i in range(3) for seed in range(20)}
    torch.cuda.synchronize()
    found = {(i, seed): made[i][1](seed + i) for seed in range(19) for i in range(2)}
    torch.cuda.synchronize()
    for (i, seed), value in found.items():
        assert torch.equal(value, alone[i, seed + i]), (i, seed)
    assert not torch.equal(alone[0, 0], alone[0, 1])


def test_stream_restores_the_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4, device="cuda")
    torch.manual_seed(3)
    lane = DeviceStream(torch.device("cuda"))
    with lane.activate():
        torch.manual_seed(7)
        torch.rand(4, device="cuda")
    assert torch.equal(torch.rand(4, device="cuda"), expected)


@pytest.mark.parametrize(("first", "second"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_run_resumes_on_the_same_or_another_device(tmp_path: Path, first: str, second: str) -> None:
    folder = RunDir(tmp_path / "run")
    words = ("zsr=0.2", "train.device=auto")
    broken = trainer_on(first, *words, folder=folder, monitor=StopAfter(13))
    folder.create(broken.config)
    with pytest.raises(RuntimeError, match="crash"):
        broken.fit()
    resumed = trainer_on(second, *words, folder=folder)
    resumed.config.train.device = broken.config.train.device
    resumed.restore()
    resumed.fit()
    whole = trainer_on(second, *words)
    whole.fit()
    assert resumed.state.step == whole.state.step
    if first == second:
        torch.testing.assert_close(learned(resumed), learned(whole), rtol=1e-3, atol=1e-4)


WAITS = """
import torch
from tests.training.test_cuda import trainer_on
from winnow.errors import TrainingError
trainer = trainer_on("cuda", "pooling=gap")
loss = trainer.objective.loss.forward
trainer.objective.loss.forward = lambda *a, **k: loss(*a, **k) * float(torch.ones((), device="cuda").item())
try:
    trainer.fit()
except TrainingError as error:
    assert "train.cuda_graph=false" in str(error), error
    print("told")
"""


def test_step_that_waits_names_the_graph_setting() -> None:
    # In a process of its own, because a broken capture leaves CUDA in an odd state.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", *sys.path])}
    run = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, env=environment)
    assert "told" in run.stdout, run.stderr


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_two_passes_on_the_gpu_train_as_one(precision: str) -> None:
    words = ["zsr=0.2", "loss=c2", "train.average=0.9", "train.schedule=cosine", f"train.precision={precision}"]
    changes = []
    for more in ("train.cuda_graph=false", "train.chunk_size=5"):
        trainer = trainer_on("cuda", *words, more)
        weight = trainer.objective.model.projection.weight
        first = weight.detach().clone()
        with trainer.stream.activate():
            for step in range(6):
                trainer.take_step(step)
        torch.cuda.synchronize()
        changes.append((weight - first).detach())
    assert changes[0].norm() > 0
    assert (changes[1] - changes[0]).norm() < 0.05 * changes[0].norm()


def test_augmented_crops_of_originals_on_the_gpu(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "backbone.train=full", "loss=proxy_nca", "train.sampler=random",
             "train.batch_size=7", "augment.resize=original", "augment.scale=[0.08,1]", "augment.rand_augment=9",
             "augment.color_jitter=0.4", "augment.random_erasing=0.25", "train.device=cuda"]  # fmt: skip
    losses = []
    for flag in ("true", "false"):
        folder = RunDir(tmp_path / flag)
        train(load_config(None, [*words, f"train.cuda_graph={flag}"]), folder)
        losses.append([entry["loss"] for entry in folder.read_history()[1:]])
    assert losses[0] == pytest.approx(losses[1], rel=5e-2)


@pytest.mark.parametrize("compiled", [False, True])
def test_network_in_a_graph_trains_as_in_eager_mode(make_folder: MakeFolder, tmp_path: Path, compiled: bool) -> None:
    words = [f"data={make_folder()}", *TINY, "backbone.train=full", "zsr=0.1", "train.device=cuda"]
    graphed = RunDir(tmp_path / "graphed")
    train(load_config(None, [*words, f"train.compile={str(compiled).lower()}"]), graphed)
    eager = RunDir(tmp_path / "eager")
    train(load_config(None, [*words, "train.cuda_graph=false"]), eager)
    for a, b in zip(graphed.read_history(), eager.read_history(), strict=True):
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=5e-2, abs=1e-3)


def test_concurrent_runs_on_a_gpu_equal_single_runs(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [
        f"data={make_folder()}",
        *TINY,
        "backbone.train=full",
        "train.device=cuda",
        "train.max_steps=24",
        "zsr=0.2",
    ]
    words.append("train.lr=1e-4")  # at 1e-3 two runs alone are 30% apart after 20 steps, by rounding alone
    runs = plan_runs(tmp_path / "pack", None, words, ["seed=0,1,2,3"])
    outcomes = train_in_parallel(runs, jobs=4)
    for run, outcome in zip(runs, outcomes, strict=True):
        assert outcome.result is not None, (outcome.error, outcome.traceback)
        alone = RunDir(tmp_path / "alone" / run.name)
        train(run.config, alone)
        for a, b in zip(run.run_dir.read_history(), alone.read_history(), strict=True):
            assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=5e-2, abs=1e-3)
