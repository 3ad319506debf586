"""Training steps with and without capture are equal. A stand-in records here; see test_cuda.py for graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.training.test_trainer import CCP, make_trainer, same, small_config, weights
from winnow.errors import ConfigError
from winnow.training import Trainer
from winnow.training.engine.precision import uses_cuda_graph
from winnow.training.engine.step import WARM_UP, TrainingStep
from winnow.training.engine.stream import DeviceStream, run_to_end


class Recorder:
    """Records work as a CUDA graph does: it runs only in replays, and modules detect a capture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.recorded = self.replayed = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            with self.monkeypatch.context() as capture:
                capture.setattr("winnow.pooling.prototypes._is_capturing", lambda _: True)
                work()

        return replay


def recorded(trainer: Trainer, recorder: Recorder) -> Trainer:
    trainer.training_step = TrainingStep(
        trainer.fabric, trainer.wrapped, trainer.optimizer, max_grad_norm=10.0, capture=recorder
    )
    return trainer


@pytest.mark.parametrize(
    "words",
    [["pooling=gap"], ["zsr=0.2"], ["zsr=0.2", "pooling.memory_size=100"], [*CCP, "pooling=gap", "loss=c2"]],
)
def test_replayed_training_equals_eager_training(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    plain, recorder = make_trainer(small_config(*words)), Recorder(monkeypatch)
    replayed = recorded(make_trainer(small_config(*words)), recorder)
    for trainer in (plain, replayed):
        trainer.fit()
    assert same(weights(plain), weights(replayed))
    for a, b in zip(plain.state.history, replayed.state.history, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    # A memory of 100 takes 9 steps of 12 to fill: the phase before is long enough to be captured too.
    phases = 2 if "pooling.memory_size=100" in words else 1
    warm = 2 if words == ["zsr=0.2"] else WARM_UP * (phases - 1)
    assert recorder.recorded == phases
    assert recorder.replayed == 30 - WARM_UP - warm


def test_batches_overwrite_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = recorded(make_trainer(small_config("pooling=gap")), Recorder(monkeypatch))
    trainer.wrapped.train()
    trainer.take_step(0)
    place = trainer.training_step._inputs
    assert place is not None
    for step in range(1, 6):
        trainer.take_step(step)
        assert trainer.training_step._inputs is place
        assert torch.equal(place, trainer.train.test(trainer.sampler.batch(step)))


def test_graphs_need_a_gpu() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert not uses_cuda_graph(small_config(), cpu)
    assert uses_cuda_graph(small_config(), gpu)
    assert not uses_cuda_graph(small_config("train.cuda_graph=false"), gpu)
    assert not uses_cuda_graph(small_config("train.precision=16-mixed"), gpu)
    for words, device in (
        (["train.cuda_graph=true"], cpu),
        (["train.cuda_graph=true", "train.precision=16-mixed"], gpu),
    ):
        with pytest.raises(ConfigError, match=r"train\.cuda_graph"):
            uses_cuda_graph(small_config(*words), device)


def test_run_to_end_returns_the_result() -> None:
    def work() -> Iterator[None]:
        done.append(1)
        yield
        done.append(2)
        return "made"

    done: list[int] = []
    pieces = DeviceStream(torch.device("cpu")).run_on(work())  # type: ignore[arg-type]
    next(pieces)
    assert done == [1]
    assert run_to_end(pieces) == "made"
    assert done == [1, 2]


def test_compiling_changes_training_only_by_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    from winnow.models import Backbone

    called = []
    monkeypatch.setattr(torch, "compile", lambda work, **_: lambda x: called.append(len(x)) or work(x))
    backbone = Backbone(torch.nn.Identity(), out_index=None, num_features=3)
    backbone.network.forward_features = lambda x: x  # type: ignore[operator]
    images = torch.rand(2, 3, 4, 4)
    plain = backbone(images)
    backbone.compile_training()
    assert torch.equal(backbone(images), plain)
    assert called == [2]
    backbone.eval()(images)
    assert called == [2]
