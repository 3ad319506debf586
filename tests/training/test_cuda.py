"""What only a GPU can show; skipped without one."""

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
from winnow.centres import CENTRES
from winnow.functional import gsp
from winnow.losses import LOSSES, ZeroShotRegularisation
from winnow.models import Head
from winnow.training import Monitor, RunFolder, Trainer, load_config, run_training
from winnow.training.lane import Lane
from winnow.training.learner import build_learner
from winnow.training.pack import run_pack
from winnow.training.plan import plan_runs

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights"),
]


def values_and_gradients(device: str, dtype: torch.dtype, eps: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    prototypes = 0.2 * torch.randn(16, 32, generator=generator, dtype=torch.float64)
    features = 0.2 * torch.randn(8, 49, 32, generator=generator, dtype=torch.float64)
    features[:, :4] = prototypes[:4] + 1e-3 * torch.randn(8, 4, 32, generator=generator, dtype=torch.float64)
    f, w = (t.to(device, dtype).requires_grad_() for t in (features, prototypes))
    out = gsp(f, w, 0.3, eps)
    (out.pooled.square().sum() + out.attributes.square().sum()).backward()
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
def test_losses_agree_between_devices_also_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(24, 16), torch.arange(24) // 4
    loss = LOSSES.build({"name": name})
    expected = loss(x, labels)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = loss.cuda()(x.cuda(), labels.cuda())
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("name", list(CENTRES))
def test_centre_regularisers_agree_between_devices_also_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(24, 16), torch.arange(24) // 2
    regulariser = CENTRES.build({"name": name})
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = regulariser(x.cuda(), labels.cuda())
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(regulariser(x, labels)), rel=1e-4)


def test_zsr_runs_on_the_gpu() -> None:
    zsr = ZeroShotRegularisation(6, 16).cuda()
    z = torch.rand(24, 8, device="cuda", requires_grad=True)
    zsr(z, torch.arange(24, device="cuda") // 4).backward()
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())


@pytest.mark.parametrize("train", ["full", "frozen"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_training_on_the_gpu(make_folder: MakeFolder, tmp_path: Path, train: str, precision: str) -> None:
    words = [f"data={make_folder()}", *TINY, f"backbone.train={train}", f"train.precision={precision}", "zsr=0.1"]
    folder = RunFolder(tmp_path / "run")
    result = run_training(load_config(None, [*words, "train.device=cuda"]), folder)
    assert result["machine"]["gpu"]
    assert result["prototypes_ready"] or result["best_step"] == 0
    assert json.loads(folder.result_file.read_text())["metrics"]["test"]["MAP@R"] > 0


# Captured steps.


def trainer_on(device: str, *words: str, folder: RunFolder | None = None, monitor: Monitor | None = None) -> Trainer:
    config = small_config(*words)
    config.train.device = device  # type: ignore[assignment]
    torch.manual_seed(config.seed)
    learner = build_learner(config, Head(16, config.dim, config.pooling), num_classes=10)
    inputs = [separable(10, 6, seed=0), separable(6, 6, seed=1)]
    for each in inputs:
        each.device = torch.device(device)
        each.maps = each.maps.to(device)
    return Trainer(config, learner, *inputs, folder=folder, monitor=monitor)


def learned(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().cpu().flatten() for p in trainer.learner.parameters()])


class LastWeights(Monitor):
    """Keeps what was learned up to the last validation: the best weights may be those before any step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.weights = trainer, learned(trainer)
        self.first = self.weights

    def validated(self, entry: dict[str, Any], improved: bool, by: str = "MAP@R") -> None:
        self.weights = learned(self.trainer)


@pytest.mark.parametrize(
    "words",
    [["pooling=gap"], ["zsr=0.2", "pooling.memory=100"],
     ["zsr=0.2", "pooling.memory=260", "pooling.prototypes=130"],  # more than the fused kernel takes
     ["zsr=0.2", "loss=triplet"],
     ["pooling=gap", "centres=r2", "centres.measure=distance", "train.optimizer=adamw"],
     ["pooling=gap", "loss=proxy_anchor", "centres=r1", "centres.sample=5"],
     ["pooling=gap", "loss=soft_triple", "references.per_class=2"],
     ["pooling=gap", "loss=margin", "loss.per_class=true", "mining=distance_weighted"],
     ["pooling=gap", "loss=triplet", "mining=semi_hard", "references=memory", "references.batches=2",
      "references.start=1"],
     ["pooling=gap", "plateau=0.5", "plateau.patience=1", "plateau.cooldown=0", "plateau.min_delta=10"],
     [*CCP, "pooling=gap", "loss=c2"],
     [*CCP, "zsr=0.2", "loss=c2", "references.start=last", "train.precision=64-true"]],
)  # fmt: skip
def test_replayed_training_equals_computed_training_and_that_of_the_cpu(words: list[str]) -> None:
    graphed, eager = (trainer_on("cuda", *words, f"train.graph={flag}") for flag in ("true", "false"))
    cpu = trainer_on("cpu", *words, "train.graph=false")
    keepers = [LastWeights(trainer) for trainer in (graphed, eager, cpu)]
    for keeper in keepers:
        keeper.trainer.monitor = keeper
        keeper.trainer.fit()
    last, computed, on_cpu = (kept.weights for kept in keepers)
    assert graphed.one_step._replays
    assert (last - keepers[0].first).abs().max() > 1e-3  # so that there is something to compare
    assert len(graphed.progress.history) == len(eager.progress.history)
    for a, b in zip(graphed.progress.history, eager.progress.history, strict=True):
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-3)
    torch.testing.assert_close(last, computed, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learned(graphed), learned(eager), rtol=1e-3, atol=1e-4)
    if words == ["pooling=gap"]:  # no random numbers, which differ between devices
        torch.testing.assert_close(last, on_cpu, rtol=1e-2, atol=1e-3)


def test_the_loop_never_waits_for_the_device() -> None:
    trainer = trainer_on("cuda", "zsr=0.2", "pooling.memory=100")
    trainer.wrapped.train()
    torch.cuda.synchronize()
    with trainer.lane.entered():
        for step in range(20):  # both phases are captured by then
            trainer.take_step(step)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(20, 30):
                trainer.take_step(step)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(trainer.one_step._replays) == 2
    trainer._check()


def drawing(lane: Lane) -> tuple[Callable[[int], Tensor], Callable[[int], Tensor]]:
    """Return the same draws computed and replayed, as functions of the seed."""
    place, noise = torch.zeros(3, 1000, device="cuda"), torch.ones(1000, device="cuda")
    torch.cuda.synchronize()

    def draw() -> None:
        place[0] = torch.randperm(1000, device="cuda").float()
        place[1] = nn.functional.dropout(noise)
        place[2] = torch.rand(1000, device="cuda")

    def computed(seed: int) -> Tensor:
        with lane.entered():
            torch.manual_seed(seed)
            draw()
            return place.clone()

    with lane.entered():
        draw()
        replay = lane.capture(draw)

    def replayed(seed: int) -> Tensor:
        with lane.entered():
            torch.manual_seed(seed)
            replay()
            return place.clone()

    return computed, replayed


def test_replayed_draws_are_functions_of_the_seed_also_side_by_side() -> None:
    lanes = [Lane(torch.device("cuda")) for _ in range(3)]
    made = [drawing(lane) for lane in lanes]
    alone = {(i, seed): made[i][0](seed) for i in range(3) for seed in range(20)}
    torch.cuda.synchronize()
    found = {(i, seed): made[i][1](seed + i) for seed in range(19) for i in range(2)}
    torch.cuda.synchronize()
    for (i, seed), value in found.items():
        assert torch.equal(value, alone[i, seed + i]), (i, seed)
    assert not torch.equal(alone[0, 0], alone[0, 1])


def test_a_lane_leaves_the_generator_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4, device="cuda")
    torch.manual_seed(3)
    lane = Lane(torch.device("cuda"))
    with lane.entered():
        torch.manual_seed(7)
        torch.rand(4, device="cuda")
    assert torch.equal(torch.rand(4, device="cuda"), expected)


@pytest.mark.parametrize(("first", "second"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_a_run_is_resumed_on_this_device_or_another(tmp_path: Path, first: str, second: str) -> None:
    folder = RunFolder(tmp_path / "run")
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
    assert resumed.progress.step == whole.progress.step
    if first == second:
        torch.testing.assert_close(learned(resumed), learned(whole), rtol=1e-3, atol=1e-4)


WAITS = """
import torch
from tests.training.test_cuda import trainer_on
from winnow.errors import TrainingError
trainer = trainer_on("cuda", "pooling=gap")
loss = trainer.learner.loss.forward
trainer.learner.loss.forward = lambda *a: loss(*a) * float(torch.ones((), device="cuda").item())
try:
    trainer.fit()
except TrainingError as error:
    assert "train.graph=false" in str(error), error
    print("told")
"""


def test_a_step_that_waits_says_how_to_train_without_graphs() -> None:
    # In a process of its own, because a broken capture leaves CUDA in an odd state.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", *sys.path])}
    run = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, env=environment)
    assert "told" in run.stdout, run.stderr


@pytest.mark.parametrize("compiled", [False, True])
def test_a_whole_network_in_a_graph_learns_as_without(make_folder: MakeFolder, tmp_path: Path, compiled: bool) -> None:
    words = [f"data={make_folder()}", *TINY, "backbone.train=full", "zsr=0.1", "train.device=cuda"]
    graphed = RunFolder(tmp_path / "graphed")
    run_training(load_config(None, [*words, f"train.compile={str(compiled).lower()}"]), graphed)
    eager = RunFolder(tmp_path / "eager")
    run_training(load_config(None, [*words, "train.graph=false"]), eager)
    for a, b in zip(graphed.read_history(), eager.read_history(), strict=True):
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=5e-2, abs=1e-3)


def test_runs_side_by_side_on_the_gpu_equal_runs_alone(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "backbone.train=full", "train.device=cuda", "train.steps=24", "zsr=0.2"]
    words.append("train.lr=1e-4")  # at 1e-3 two runs alone are 30% apart after 20 steps, by rounding alone
    runs = plan_runs(tmp_path / "pack", None, words, ["seed=0,1,2,3"])
    outcomes = run_pack(runs, at_once=4)
    for run, outcome in zip(runs, outcomes, strict=True):
        assert outcome.result is not None, (outcome.error, outcome.trace)
        alone = RunFolder(tmp_path / "alone" / run.name)
        run_training(run.config, alone)
        for a, b in zip(run.folder.read_history(), alone.read_history(), strict=True):
            assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=5e-2, abs=1e-3)
