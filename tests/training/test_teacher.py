"""Self-distillation in a run: the teacher, its term in the log, and runs that are resumed."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import TINY, MakeFolder
from tests.training.test_trainer import StopAfter, make_trainer, same, small_config, weights
from winnow.losses import RelationalDistillation
from winnow.models import Embedder
from winnow.training import RunDir, Trainer, load_config, train
from winnow.training.averaging import AveragedTeacher, WeightAverage

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

DISTILL = ["distill=2", "distill.decay=0.9"]


def batch(trainer: Trainer, rows: int = 12) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of training images, two of each class."""
    indices = torch.arange(60).view(10, 6)[:, :2].flatten()[:rows].numpy()
    return trainer.train.test(indices), torch.from_numpy(trainer.train.labels[indices])


def test_it_is_off_by_default() -> None:
    trainer = make_trainer(small_config("pooling=gap"))
    assert trainer.objective.distill is None
    assert trainer.objective.teacher is None
    assert trainer.checkpoint()["teacher"] is None


@pytest.mark.parametrize("pooling", ["gap", "gsp"])
def test_the_teacher_embeds_as_a_copy_with_averaged_weights(pooling: str) -> None:
    trainer = make_trainer(small_config(f"pooling={pooling}", *DISTILL))
    teacher = trainer.objective.teacher
    assert teacher is not None
    reference = WeightAverage(trainer.objective.model, 0.9)
    ready = False
    for step in range(8):
        trainer.take_step(step)
        reference.update(torch.tensor(step))
        if trainer.objective.head.prototypes_ready and not ready and pooling == "gsp":
            reference.restart(step + 1)  # prototypes that were just set are no average
        ready = trainer.objective.head.prototypes_ready
    inputs, _ = batch(trainer)
    copied = copy.deepcopy(trainer.objective.model)
    copied.load_state_dict({**copied.state_dict(), **reference.weights()})
    before, random_state = weights(trainer), torch.get_rng_state()
    found = teacher.embed(inputs)
    torch.testing.assert_close(found, copied.eval()(inputs), rtol=1e-5, atol=1e-6)
    assert float((found - trainer.objective.model.eval()(inputs)).detach().norm()) > 1e-2 * float(found.norm())
    assert not found.requires_grad
    assert same(before, weights(trainer))
    assert torch.equal(random_state, torch.get_rng_state())


def test_the_teacher_leaves_the_mode_of_every_module() -> None:
    embedder = Embedder.create(
        {"backbone": "resnet20", "image": {"crop": 32, "resize": 32}, "dim": 8}, load_weights=False
    )
    embedder.train()
    embedder.head.register_module("dropout", nn.Dropout())
    modes = {name: module.training for name, module in embedder.named_modules()}
    assert len(set(modes.values())) == 2  # batch norm is frozen
    AveragedTeacher(embedder, 0.9).embed(torch.rand(2, 3, 32, 32))
    assert modes == {name: module.training for name, module in embedder.named_modules()}


def test_the_objective_adds_the_weighted_term() -> None:
    trainer = make_trainer(small_config("pooling=gsp", "loss=ms", "zsr=0.2", "libc=0.5", "libc.dropout=0", *DISTILL))
    for step in range(6):
        trainer.take_step(step)
    objective = trainer.objective.train()
    assert objective.teacher is not None
    inputs, labels = batch(trainer)
    targets = objective.teacher.embed(inputs)
    terms = objective(inputs, labels)
    assert list(terms) == ["loss", "metric", "libc", "zsr", "distill"]
    wanted = RelationalDistillation(temperature=0.1)(objective.model(inputs), targets)
    torch.testing.assert_close(terms["distill"], wanted)
    assert float(terms["distill"].detach()) > 0
    others = 0.8 * (terms["metric"] + 0.5 * terms["libc"]) + 0.2 * terms["zsr"]
    torch.testing.assert_close(terms["loss"], others + 2 * terms["distill"])


def test_it_holds_similarities_back() -> None:
    """With a large weight the network stays closer to its average."""
    values = {}
    for weight in (1e-9, 20.0):
        trainer = make_trainer(small_config("pooling=gap", "loss=ms", f"distill={weight}", "distill.decay=0.99"))
        trainer.fit()
        values[weight] = sum(entry.losses["distill"] for entry in trainer.state.history[1:])
    assert values[20.0] < 0.7 * values[1e-9]


@pytest.mark.parametrize("more", [(), ("references=ccp", "references.patience=1", "references.proxies_per_class=2",
                                       "references.pool_size=4"), ("train.chunk_size=3",)],
                         ids=["", "ccp", "two passes"])  # fmt: skip
def test_a_resumed_run_has_the_same_teacher(more: tuple[str, ...], make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "backbone.train=full", "train.device=cpu", "train.max_steps=8",
             "train.eval_steps=2", "train.lr=0.01", "train.average=0.8", *DISTILL, *more]  # fmt: skip
    whole, broken = RunDir(tmp_path / "whole"), RunDir(tmp_path / "broken")
    train(load_config(None, words), whole)
    with pytest.raises(RuntimeError, match="crash"):
        train(load_config(None, words), broken, callback=StopAfter(5))
    train(broken.read_config(), broken, resume=True)
    states = [run.load(run.checkpoint_file) for run in (whole, broken)]
    for entry in ("teacher", "average", "learner"):
        assert same(states[0][entry], states[1][entry]), entry
    evaluated = {key.removeprefix("model."): one for key, one in states[0]["average"].items()}
    assert any(not torch.equal(one, evaluated[key]) for key, one in states[0]["teacher"].items())  # another decay
    logs = [[{**entry.to_dict(), "seconds": 0} for entry in run.read_history()] for run in (whole, broken)]
    assert logs[0] == logs[1]
    assert "distill" in logs[0][-1]
