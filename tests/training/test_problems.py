"""The sequence of problems: when one ends, what the next begins with, and what is written of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.test_trainer import make_trainer, same, small_config
from winnow.errors import ConfigError, TrainingError
from winnow.functional import covering_radius, unit_norm
from winnow.pooling.prototypes import PrototypePooling
from winnow.training import RunFolder, Trainer
from winnow.training.lane import finish
from winnow.training.problems import Problems

WORDS = ["references=ccp", "references.per_class=2", "references.pool=4", "references.pull=0.1"]


def ccp_trainer(*words: str, folder: RunFolder | None = None) -> Trainer:
    return make_trainer(small_config(*WORDS, "loss=c2", "pooling=gap", *words), folder)


def problems_of(trainer: Trainer) -> Problems:
    assert trainer.problems is not None
    return trainer.problems


def tell(trainer: Trainer, step: int, value: float, *, over: bool = False) -> None:
    finish(problems_of(trainer).validated(step, value, over=over))


def move(trainer: Trainer, by: float) -> dict[str, Tensor]:
    """Change every parameter, as steps would, and return the state."""
    with torch.no_grad():
        for parameter in trainer.learner.parameters():
            parameter += by
    return {key: value.clone() for key, value in trainer.learner.state_dict().items()}


def test_other_references_have_no_problems() -> None:
    trainer = make_trainer(small_config("loss=proxy_anchor"))
    assert trainer.problems is None
    assert trainer.learner.pull is None
    assert trainer._state()["problems"] is None


@pytest.mark.parametrize("start", ["best", "last"])
def test_a_problem_ends_when_validation_stalls_and_the_next_is_pulled_to_its_best(start: str) -> None:
    trainer = ccp_trainer("references.patience=2", f"references.start={start}")
    problems, learner = problems_of(trainer), trainer.learner
    tell(trainer, 0, 0.5)
    assert len(problems.history) == 1
    assert float(learner.pull.weight) == 0
    states = {}
    # The start's 0.5 does not count; 0.3 + 5e-6 is no gain.
    for step, value in ((5, 0.2), (10, 0.3), (15, 0.3 + 5e-6), (20, 0.1)):
        assert len(problems.history) == 1
        states[step] = move(trainer, 0.01)
        tell(trainer, step, value)
    first, second = problems.history
    assert (first.first_step, first.steps, first.start, first.best, first.best_step, first.end) == (
        0, 20, 0.5, 0.3, 10, 0.1
    )  # fmt: skip
    assert (second.first_step, second.start) == (20, 0.3 if start == "best" else 0.1)
    assert float(learner.pull.weight) == pytest.approx(0.1)
    best, model = states[10], learner.model
    assert all(torch.equal(value, best[f"model.{name}"]) for name, value in learner.pull.previous.items())
    expected = states[10 if start == "best" else 20]
    assert all(torch.equal(value, expected[f"model.{name}"]) for name, value in model.state_dict().items())
    move(trainer, 0.01)
    tell(trainer, 25, 0.05)
    # Only what goes on from the last weights has to beat them.
    assert (second.best, second.best_step) == ((0.05, 25) if start == "best" else (0.1, 20))
    tell(trainer, 30, 0.04)
    assert len(problems.history) == (2 if start == "best" else 3)
    if start == "last":
        assert all(torch.equal(one, expected[f"model.{name}"]) for name, one in learner.pull.previous.items())


def test_no_problem_leads_back_to_before_the_prototypes_were_set() -> None:
    trainer = ccp_trainer("pooling=gsp", "pooling.prototypes=4", "pooling.memory=24", "references.patience=1")
    problems, gsp = problems_of(trainer), trainer.learner.head.pooling
    assert isinstance(gsp, PrototypePooling)
    tell(trainer, 0, 0.5)
    tell(trainer, 5, 0.9)  # the best, but by average pooling
    tell(trainer, 10, 0.8)
    assert len(problems.history) == 1, "no problem ends before there are prototypes"
    trainer.wrapped.train()
    for step in range(4):
        trainer.take_step(step)
    assert gsp.is_ready
    set_from_data = gsp.prototypes.detach().clone()
    tell(trainer, 15, 0.3)
    tell(trainer, 20, 0.2)
    assert len(problems.history) == 2
    assert (problems.history[0].best, problems.history[0].best_step) == (0.3, 15)
    assert gsp.is_ready
    assert trainer.learner.pull is not None
    torch.testing.assert_close(trainer.learner.pull.previous["pooling.prototypes"], set_from_data)


def test_no_problem_begins_when_the_run_is_over() -> None:
    trainer = ccp_trainer("references.patience=1")
    tell(trainer, 0, 0.5)
    tell(trainer, 5, 0.6)
    tell(trainer, 10, 0.6, over=True)
    assert len(problems_of(trainer).history) == 1


def slow_picks(pool: Tensor, count: int, converged: Tensor | None) -> Tensor:
    """Greedy k-centre of one class, every distance taken anew."""
    picked: list[int] = []
    for _ in range(count):
        centres = [*([] if converged is None else converged), *pool[picked]] or [torch.zeros(pool.shape[1])]
        gaps = [-1.0 if i in picked else min(float((u - v).norm()) for v in centres) for i, u in enumerate(pool)]
        picked.append(int(np.argmax(gaps)))
    return pool[picked]


@pytest.mark.parametrize("normalised", [False, True])
def test_proxies_are_the_farthest_of_a_pool(normalised: bool) -> None:
    """The pool of a problem, seen through a learner that spies on what its network is shown."""
    trainer = ccp_trainer("references.patience=1", f"references.normalised={normalised}")
    shown: list[Tensor] = []
    trainer.learner.model.register_forward_hook(lambda module, inputs, output: shown.append(output.clone()))
    converged = None
    for number, (step, value) in enumerate(((0, 0.5), (5, 0.4), (10, 0.3))):
        if number == 2:
            converged = trainer._state()["problems"]["best"]["references.proxies"].view(10, 2, 8)
        shown.clear()
        tell(trainer, step, value)
        if not shown:
            continue
        pool = torch.cat(shown).view(10, 4, 8)
        look = unit_norm if normalised else lambda vectors: vectors
        for label in range(10):
            if normalised and converged is None:
                break  # all are equally far from the origin
            old = None if converged is None else look(converged[label])
            wanted = slow_picks(look(pool[label]), 2, old)
            torch.testing.assert_close(trainer.learner.references.proxies[2 * label : 2 * label + 2], wanted)
        problem = problems_of(trainer).history[-1]
        new = trainer.learner.references.proxies.detach().view(10, 2, 8)
        after = [covering_radius(unit_norm(pool[c]), unit_norm(new[c])) for c in range(10)]
        assert problem.radius_after == pytest.approx(float(torch.stack(after).mean()))
        if converged is None:
            assert problem.radius_before is None
        else:
            before = [covering_radius(unit_norm(pool[c]), unit_norm(converged[c])) for c in range(10)]
            assert problem.radius_before == pytest.approx(float(torch.stack(before).mean()))
    assert converged is not None
    assert len(problems_of(trainer).history) == 2


@pytest.mark.parametrize("normalised", [False, True])
def test_a_problem_records_how_far_its_proxies_have_turned(normalised: bool) -> None:
    trainer = ccp_trainer(f"references.normalised={normalised}")
    tell(trainer, 0, 0.5)
    problem, proxies = problems_of(trainer).history[-1], trainer.learner.references.proxies
    assert problem.turned is None
    with torch.no_grad():
        proxies *= 3  # as long as they like: directions count
        tell(trainer, 5, 0.6)
        assert problem.turned == pytest.approx(0, abs=1e-4)
        across = torch.linalg.qr(torch.stack([proxies, torch.randn_like(proxies)], dim=2))[0][:, :, 1]
        angles = torch.linspace(10, 80, len(proxies))[:, None].deg2rad()
        proxies.copy_(proxies * angles.cos() + across * proxies.norm(dim=1, keepdim=True) * angles.sin())
    tell(trainer, 10, 0.7)
    assert problem.turned == pytest.approx(45, abs=1e-3)


def test_a_pool_is_of_its_class_and_a_function_of_seed_and_problem() -> None:
    def pools(seed: int) -> list[Tensor]:
        problems = problems_of(ccp_trainer(f"seed={seed}"))
        problems._learner.model.projection.weight.data.copy_(torch.eye(8, 16))
        return [finish(problems._embed_pool(number)) for number in (0, 1)]

    one, again, other = pools(1), pools(1), pools(2)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], other[0])
    trainer = ccp_trainer()
    every = trainer.learner.model(trainer.train.test(range(60))).view(10, 6, 8)
    pool = finish(problems_of(trainer)._embed_pool(0))
    for label in range(10):  # each member of a class's pool is one of its images, none of them twice
        gaps = torch.cdist(pool[label], every[label].detach(), compute_mode="donot_use_mm_for_euclid_dist")
        assert (gaps.amin(dim=1) < 1e-5).all()
        assert len(gaps.argmin(dim=1).unique()) == 4


def test_seeding_changes_proxies_and_nothing_else() -> None:
    """GSP's memory, modes and whatever else the learner holds stay as they were; classes without images keep theirs."""
    trainer = make_trainer(small_config(*WORDS, "loss=c2", "zsr=0.2"))
    trainer.train.labels = np.where(trainer.train.labels == 3, 4, trainer.train.labels)
    trainer.problems = Problems(trainer.learner, trainer.train, seed=0, batch=7, autocast=trainer.fabric.autocast)
    trainer.wrapped.train()
    before = {key: value.clone() for key, value in trainer.learner.state_dict().items()}
    places = [p.data_ptr() for p in trainer.learner.parameters()]
    tell(trainer, 0, 0.5)
    assert trainer.learner.model.training
    assert places == [p.data_ptr() for p in trainer.learner.parameters()]
    after = trainer.learner.state_dict()
    changed = [key for key in after if not torch.equal(after[key], before[key])]
    assert changed == ["references.proxies"]
    rows = (after["references.proxies"] != before["references.proxies"]).all(dim=1)
    assert rows.tolist() == [label != 3 for label in range(10) for _ in range(2)]


def test_an_image_whose_embedding_is_not_finite_is_named_and_becomes_no_proxy() -> None:
    """A step would name its own batch, in which the image is not."""
    trainer = ccp_trainer()
    pool = problems_of(trainer)._sampler.batch(0)
    bad = next(int(i) for i in pool if i not in trainer.sampler.batch(0))
    before = trainer.learner.references.proxies.clone()
    trainer.train.maps[bad, 0, 0, 0] = torch.inf  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match=rf"embedding of image {bad} is not finite \(1 of the {len(pool)} images"):
        trainer.fit()
    assert torch.equal(trainer.learner.references.proxies, before)


def test_the_pool_is_embedded_in_pieces() -> None:
    trainer = ccp_trainer("train.eval_batch=7")
    assert len(list(problems_of(trainer).validated(0, 0.5, over=False))) == 6  # 40 images, 7 at a time


@pytest.mark.parametrize("most", [1, 2])
def test_the_last_of_some_problems_goes_on(most: int) -> None:
    trainer = ccp_trainer("references.patience=1", f"references.problems={most}")
    for step in range(8):
        tell(trainer, step, 0.5 - step / 10)
    assert len(problems_of(trainer).history) == most
    assert problems_of(trainer).history[-1].steps == 7 - problems_of(trainer).history[-1].first_step
    with pytest.raises(ConfigError, match="at least 1 problem"):
        ccp_trainer("references.problems=0")


@pytest.mark.parametrize("monitor", ["MAP@R", "P@1"])
@pytest.mark.parametrize("by", ["MAP@R", "P@1"])
def test_a_run_records_its_problems_and_the_pull(tmp_path: Path, monitor: str, by: str) -> None:
    """By CCP's own metric, whichever decides on the run's best weights."""
    folder = RunFolder(tmp_path / "run")
    words = ["references.patience=1", "train.steps=40", f"train.monitor={monitor}", f"references.monitor={by}"]
    trainer = ccp_trainer(*words, folder=folder)
    folder.create(trainer.config)
    progress = trainer.fit()
    history = problems_of(trainer).history
    assert len(history) > 1
    assert sum(problem.steps for problem in history) == 40
    values = {entry["step"]: entry[f"val/{by}"] for entry in progress.history}
    for problem in history:
        assert problem.best == values[problem.best_step]
        assert problem.end == values[problem.first_step + problem.steps]
    pulls = {entry["step"]: entry["pull"] for entry in progress.history if "pull" in entry}
    assert all((pulls[step] > 0) == (step > history[1].first_step) for step in pulls)
    assert all(
        entry["loss"] == pytest.approx(entry["metric"] + entry["pull"]) for entry in progress.history if "pull" in entry
    )


def test_checkpoints_do_not_repeat_weights(tmp_path: Path) -> None:
    """Best weights of the run that are the problem's too are written once; earlier weights are in no other file."""
    folder = RunFolder(tmp_path / "run")
    trainer = ccp_trainer(folder=folder)
    tell(trainer, 0, 0.5)
    trainer.progress.best_step = 5
    tell(trainer, 5, 0.6)
    state = problems_of(trainer).state(trainer.progress.best_step)
    assert state["best"] is None
    assert set(state["previous"]) == {"projection.weight"}
    assert not any("previous" in key for key in trainer.learner.state_dict())
    last = ccp_trainer("references.start=last", "references.patience=1")
    for step, value in ((0, 0.5), (5, 0.4), (10, 0.3)):
        tell(last, step, value)
    seeded = problems_of(last).state(run_best=10)["best"]
    assert seeded is not None, "the run's best weights of that step have the proxies of the problem before"
    assert torch.equal(seeded["references.proxies"], last.learner.references.proxies)
    kept: dict[str, Any] = problems_of(trainer).state(run_best=0)
    fresh = ccp_trainer()
    problems_of(fresh).restore(state, kept["best"])
    assert same(problems_of(fresh)._best, problems_of(trainer)._best)
