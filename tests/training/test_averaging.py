"""Averaged weights: the closed form, restarts, and runs that validate, save, and resume the average."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.conftest import TINY, MakeFolder
from winnow import Embedder
from winnow.training import Callback, RunDir, load_config, train
from winnow.training.averaging import WeightAverage
from winnow.training.checkpoint import TrainState
from winnow.training.early_stopping import EarlyStopping

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")


def walk(module: nn.Module, steps: int) -> list[torch.Tensor]:
    """Return random weights for a number of steps."""
    torch.manual_seed(0)
    return [torch.randn_like(module.weight) for _ in range(steps)]  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.998])
def test_the_average_is_its_closed_form(decay: float) -> None:
    module = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    average = WeightAverage(module, decay)
    weights = walk(module, 12)
    for step, value in enumerate(weights):
        module.weight.data.copy_(value)
        average.update(torch.tensor(step))
        powers = torch.tensor([decay ** (step - i) for i in range(step + 1)], dtype=torch.float64)
        expected = sum(p * w for p, w in zip(powers / powers.sum(), weights, strict=False))
        with average.applied():
            assert torch.allclose(module.weight, expected, rtol=1e-12, atol=1e-14)
        assert torch.equal(module.weight, value)


def test_a_restart_forgets_what_was_before() -> None:
    module = nn.Linear(3, 2, bias=False)
    average, fresh = WeightAverage(module, 0.9), WeightAverage(module, 0.9)
    for step, value in enumerate(walk(module, 9)):
        module.weight.data.copy_(value)
        average.update(torch.tensor(step))
        if step == 3:
            average.restart(4)
            with average.applied():
                assert torch.equal(module.weight, value)
        elif step > 3:
            fresh.update(torch.tensor(step - 4))
    with average.applied():
        own = module.weight.clone()
    with fresh.applied():
        assert torch.allclose(module.weight, own)


def test_buffers_are_averaged_counts_are_not_and_tied_weights_are_swapped_once() -> None:
    module = nn.ModuleDict({"norm": nn.BatchNorm1d(2), "one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    module["two"].weight = module["one"].weight
    average = WeightAverage(module, 0.5)
    module["norm"].running_mean.fill_(4.0)
    module["norm"].num_batches_tracked.fill_(7)
    module["one"].weight.data.fill_(1.0)
    average.update(torch.tensor(0))
    module["norm"].running_mean.fill_(1.0)
    module["one"].weight.data.fill_(4.0)
    average.update(torch.tensor(1))
    with average.applied():  # weights 1/3 and 2/3
        assert torch.allclose(module["norm"].running_mean, torch.full((2,), 2.0))
        assert torch.allclose(module["two"].weight, torch.full((2, 2), 3.0))
        assert int(module["norm"].num_batches_tracked) == 7
    assert torch.equal(module["one"].weight, torch.full((2, 2), 4.0))


def args(folder: Path, *more: str) -> list[str]:
    return [f"data={folder}", *TINY, "train.device=cpu", "train.max_steps=8", "train.eval_steps=2", "train.lr=0.01",
            "train.average=0.8", *more]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_a_run_validates_logs_and_saves_the_average(mode: str, make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    run = RunDir(tmp_path / "run")
    result = train(load_config(None, args(folder, f"backbone.train={mode}")), run)
    history = run.read_history()
    assert not history[0].raw
    assert all(set(entry.raw) == set(entry.val) for entry in history[1:])
    plain = RunDir(tmp_path / "plain")
    train(load_config(None, args(folder, f"backbone.train={mode}", "train.average=0")), plain)
    for own, other in zip(history[1:], plain.read_history()[1:], strict=False):
        assert own.raw == other.val  # training does not see the average
        assert own.losses == other.losses
    assert result.metrics["val"] == next(entry.val for entry in history if entry.step == result.best_step)
    assert Embedder.from_pretrained(run.path).config.dim == 8


@pytest.mark.parametrize("more", [(), ("references=ccp", "references.patience=1", "references.proxies_per_class=2",
                                       "references.pool_size=4")], ids=["", "ccp"])  # fmt: skip
def test_a_resumed_run_has_the_same_average(more: tuple[str, ...], make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    whole, broken = RunDir(tmp_path / "whole"), RunDir(tmp_path / "broken")
    train(load_config(None, args(folder, *more)), whole)

    class Stop(Exception):
        pass

    from winnow.training import Callback

    class StopAt(Callback):
        def step(self, step: int) -> None:
            if step == 5:
                raise Stop

    config = load_config(None, args(folder, *more))
    with pytest.raises(Stop):
        train(config, broken, callback=StopAt())
    train(broken.read_config(), broken, resume=True)
    states = [run.load(run.checkpoint_file) for run in (whole, broken)]
    assert states[0]["average"].keys() == states[1]["average"].keys()
    for key, value in states[0]["average"].items():
        assert torch.equal(value, states[1]["average"][key]), key
    best = [run.load(run.best_file) for run in (whole, broken)]
    assert all(torch.equal(best[0][key], best[1][key]) for key in best[0])
    logs = [[{**entry.to_dict(), "seconds": 0} for entry in run.read_history()] for run in (whole, broken)]
    assert logs[0] == logs[1]


def test_a_checkpoint_has_the_own_weights_of_a_subproblem_next_to_an_average(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(self: EarlyStopping, state: TrainState, value: float) -> bool:
        state.best_step = state.step  # the best weights of the run are those of the subproblem, but averaged
        return True

    monkeypatch.setattr(EarlyStopping, "update", always)
    ccp = ("references=ccp", "references.patience=9", "references.proxies_per_class=2", "references.pool_size=4")
    settings = args(make_folder(), *ccp, "backbone.train=frozen", "train.max_steps=6", "train.eval_steps=1")
    run, found = RunDir(tmp_path / "run"), []

    class Compare(Callback):
        def validated(self, entry: Mapping[str, float], improved: bool, by: str = "MAP@R") -> None:
            state = run.load(run.checkpoint_file)
            problems = state["problems"]
            if entry["step"] and problems["history"][-1]["best_step"] == entry["step"]:
                best = run.load(run.best_file) if problems["best"] is None else problems["best"]
                found.append(all(torch.equal(best[key], state["learner"][key]) for key in best))

    train(load_config(None, settings), run, callback=Compare())
    assert len(found) > 1  # after one step the average is the weights
    assert all(found)
