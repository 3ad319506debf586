"""Gradients of batches in chunks: exact, with every state updated once."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.conftest import TINY
from tests.training.test_trainer import CCP, StopAfter, make_trainer, same, separable, small_config, weights
from winnow.errors import ConfigError
from winnow.functional import PoolingOutput
from winnow.models import Embedder
from winnow.training import RunDir, Trainer
from winnow.training.build import resolve_config
from winnow.training.engine.precision import uses_cuda_graph
from winnow.training.engine.two_pass import TwoPassGradients
from winnow.training.objective import build_objective
from winnow.training.overrides import load_config

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

DOUBLE = ["train.precision=64-true"]
OBJECTIVES = {
    "gsp, zsr, means": ["loss=c2", "zsr=0.3", "pooling.learn_mu=true", "regularizer=r2", "regularizer.centers=means"],
    "proxies, libc": ["loss=proxy_anchor", "libc=0.5", "pooling=gem", "head=layer", "head.affine=true"],
    "memory, miner": ["loss=c1", "references=memory", "references.num_batches=2", "references.start_step=0",
                      "miner=distance_weighted", "pooling=gap"],
    "ranking": ["loss=smooth_ap", "pooling=gem_gsp", "zsr=0.1"],
    "ccp": [*CCP, "loss=ms"],
    "distill": ["loss=proxy_anchor", "zsr=0.2", "distill=3", "distill.decay=0.9"],
}  # fmt: skip


def gradients(
    trainer: Trainer, compute: object, rows: int, seed: int = 3
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return losses and gradients for a batch of `rows` images with two of each class."""
    labels = torch.arange(rows) // 2
    inputs = trainer.train.test(np.arange(60).reshape(10, 6)[:, :2].reshape(-1)[:rows])
    torch.manual_seed(seed)
    losses = compute(inputs, labels)  # type: ignore[operator]
    grads = {name: one.grad.clone() for name, one in trainer.objective.named_parameters() if one.grad is not None}
    trainer.objective.zero_grad()
    return {name: float(value.detach()) for name, value in losses.items()}, grads


def prepared(name: str) -> Trainer:
    """Return a trainer in double precision whose prototypes are set."""
    trainer = make_trainer(small_config(*OBJECTIVES[name], *DOUBLE))
    for step in range(3):
        trainer.take_step(step)
    assert trainer.objective.head.prototypes_ready
    trainer.objective.train()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_the_whole_batch(name: str) -> None:
    trainer = prepared(name)
    buffers = {key: value.clone() for key, value in trainer.objective.named_buffers()}

    def restored() -> None:
        for key, value in trainer.objective.named_buffers():
            value.copy_(buffers[key])

    @given(rows=st.integers(1, 20), chunk=st.integers(1, 25))
    @settings(max_examples=25, deadline=None)
    def check(rows: int, chunk: int) -> None:
        results = []
        for compute in (
            trainer.training_step._one_pass,
            TwoPassGradients(trainer.fabric, trainer.objective, chunk),
        ):
            restored()
            losses, grads = gradients(trainer, compute, rows)
            results.append((losses, grads, {k: v.clone() for k, v in trainer.objective.named_buffers()}))
        (losses, grads, after), (chunked_losses, chunked, chunked_after) = results
        assert chunked_losses == pytest.approx(losses, rel=1e-6)  # one pass rounds its losses to single precision
        for key, grad in grads.items():
            missing = torch.zeros_like(grad)
            assert torch.allclose(chunked.get(key, missing), grad, rtol=1e-9, atol=1e-12), key
        for key in chunked.keys() - grads.keys():
            assert not chunked[key].any(), key
        for key, value in after.items():
            assert torch.allclose(chunked_after[key].double(), value.double(), atol=1e-12), key

    check()


def test_dropout_drops_the_same_values_in_both_passes() -> None:
    trainer = make_trainer(small_config("pooling=gap", "loss=c2", *DOUBLE))
    head = trainer.objective.head
    head.projection = nn.Sequential(nn.Dropout(0.5), head.projection)
    trainer.objective.double().train()
    for chunk in (1, 4, 5, 12):

        def one_graph(inputs: Tensor, labels: Tensor, chunk: int = chunk) -> dict[str, Tensor]:
            outputs = [head(some.double(), return_details=True).vector for some in inputs.split(chunk)]
            losses = trainer.objective.terms(torch.cat(outputs), None, labels)
            losses["loss"].backward()
            return losses

        losses, grads = gradients(trainer, one_graph, 12)
        again, chunked = gradients(trainer, TwoPassGradients(trainer.fabric, trainer.objective, chunk), 12)
        assert again == pytest.approx(losses, rel=1e-6)
        for key, grad in grads.items():
            assert torch.allclose(chunked[key], grad, rtol=1e-10, atol=1e-14)
    other, _ = gradients(trainer, TwoPassGradients(trainer.fabric, trainer.objective, 4), 12, seed=4)
    assert other != again  # the dropout is active


def test_random_numbers_after_a_step_do_not_depend_on_the_second_pass() -> None:
    trainer = prepared("gsp, zsr, means")
    drawn = []
    for compute in (trainer.training_step._one_pass, TwoPassGradients(trainer.fabric, trainer.objective, 5)):
        gradients(trainer, compute, 12)
        drawn.append(torch.rand(4))
    assert torch.equal(*drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("chunk", [1, 5])
def test_training_in_chunks_is_training_on_whole_batches(name: str, chunk: int) -> None:
    words = [*OBJECTIVES[name], *DOUBLE, "train.average=0.9", "train.schedule=cosine", "train.max_steps=10"]
    whole, chunked = (make_trainer(small_config(*words, *more)) for more in ([], [f"train.chunk_size={chunk}"]))
    assert isinstance(chunked.training_step._gradients, TwoPassGradients)
    for trainer in (whole, chunked):
        trainer.fit()
    assert len(whole.state.history) == len(chunked.state.history) == 3
    for one, other in zip(whole.state.history, chunked.state.history, strict=True):
        a, b = ({k: v for k, v in entry.to_dict().items() if k != "seconds"} for entry in (one, other))
        assert a == pytest.approx(b, rel=1e-5)
    for key, value in weights(whole).items():
        assert torch.allclose(weights(chunked)[key].double(), value.double(), rtol=1e-6, atol=1e-9), key


def test_a_memory_counts_a_batch_once() -> None:
    trainer = make_trainer(small_config(*OBJECTIVES["memory, miner"][:-1], "train.chunk_size=5"))
    memory, pooling = trainer.objective.references, trainer.objective.head.pooling
    for step, filled in enumerate((12, 24, 24)):
        trainer.take_step(step)
        assert (int(memory.steps), int(memory.rows)) == (step + 1, 12 * (step + 1))
        assert (int(pooling.filled), pooling.prototypes_ready) == (filled, filled == 24)


@pytest.mark.parametrize("chunk", [1, 4, 5])
def test_only_one_chunk_at_a_time_has_a_graph(chunk: int) -> None:
    trainer = make_trainer(small_config("pooling=gap", f"train.chunk_size={chunk}"))
    alive: list[weakref.ref[Tensor]] = []
    sizes = []

    def count(module: nn.Module, inputs: tuple[Tensor], output: PoolingOutput) -> None:
        if torch.is_grad_enabled():
            assert all(one() is None for one in alive[:-1])  # the last output is replaced by this one
            alive.append(weakref.ref(output.vector))
            sizes.append(len(inputs[0]))

    trainer.objective.model.register_forward_hook(count)
    trainer.take_step(0)
    assert sum(sizes) == 12
    assert max(sizes) <= chunk


def test_an_empty_batch_has_no_gradient() -> None:
    trainer = prepared("gsp, zsr, means")
    losses, grads = gradients(trainer, TwoPassGradients(trainer.fabric, trainer.objective, 4), 0)
    assert losses["loss"] == 0
    assert not any(grad.any() for grad in grads.values())


def test_a_batch_of_at_most_one_chunk_takes_one_pass() -> None:
    for chunk, chunked in ((11, True), (12, False), (99, False)):
        trainer = make_trainer(small_config(f"train.chunk_size={chunk}"))
        assert isinstance(trainer.training_step._gradients, TwoPassGradients) == chunked
    settings_ = small_config("train.chunk_size=4").train
    assert [settings_.takes_two_passes(processes) for processes in (1, 2, 3, 4)] == [True, True, False, False]
    assert not small_config().train.takes_two_passes(1)


def test_trained_batch_norm_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"train\.chunk_size: .*norm.* normalizes by the images of a chunk"):
        make_trainer(small_config("train.chunk_size=5", "pooling=solar"))


def test_two_passes_are_not_captured() -> None:
    gpu = torch.device("cuda")
    assert uses_cuda_graph(small_config("train.chunk_size=12"), gpu)
    assert not uses_cuda_graph(small_config("train.chunk_size=5"), gpu)
    with pytest.raises(ConfigError, match=r"train\.cuda_graph: true requires .*train\.chunk_size"):
        uses_cuda_graph(small_config("train.chunk_size=5", "train.cuda_graph=true"), gpu)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_whole_network_in_chunks(precision: str) -> None:
    words = [*TINY, "backbone.train=full", "train.device=cpu", "loss=c2", "zsr=0.2", f"train.precision={precision}"]
    config = resolve_config(load_config(None, words))
    torch.manual_seed(0)
    embedder = Embedder.create(config)
    inputs = separable(10, 6, seed=0)
    trainer = Trainer(config, build_objective(config, embedder, 10), inputs, inputs)
    trainer.objective.train()
    images = torch.rand(7, 3, 32, 32)
    embedder.head.pooling.init_prototypes(embedder.head.project(embedder.backbone(torch.rand(16, 3, 32, 32))))
    grads = []
    for compute in (trainer.training_step._one_pass, TwoPassGradients(trainer.fabric, trainer.objective, 3)):
        torch.manual_seed(1)
        compute(images, torch.tensor([0, 0, 1, 1, 2, 2, 3]))
        grads.append({name: one.grad.clone() for name, one in trainer.objective.named_parameters()
                      if one.grad is not None})  # fmt: skip
        trainer.objective.zero_grad()
    assert grads[0].keys() == grads[1].keys()
    assert any(name.startswith("model.backbone") for name in grads[0])
    tolerance = 1e-4 if precision == "32-true" else 0.05
    for name, grad in grads[0].items():
        assert (grads[1][name] - grad).norm() <= tolerance * grad.norm() + 1e-7, name


@pytest.mark.slow
def test_chunked_runs_resume_exactly(tmp_path: Path) -> None:
    words = [
        *OBJECTIVES["ccp"],
        "train.chunk_size=5",
        "train.average=0.9",
        "train.schedule=cosine",
        "train.max_steps=25",
    ]
    whole = make_trainer(small_config(*words))
    whole.fit()
    with pytest.raises(RuntimeError, match="crash"):
        make_trainer(small_config(*words), RunDir(tmp_path), StopAfter(13)).fit()
    resumed = make_trainer(small_config(*words), RunDir(tmp_path))
    resumed.restore()
    resumed.fit()
    assert same(weights(whole), weights(resumed))
