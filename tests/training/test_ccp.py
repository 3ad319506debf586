"""CCP subproblems: when one ends, how the next starts, and what is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.test_trainer import make_trainer, same, small_config
from winnow.errors import ConfigError, TrainingError
from winnow.functional import covering_radius, l2_normalize
from winnow.models import Head
from winnow.pooling.prototypes import PrototypePooling
from winnow.training import Callback, RunDir, Trainer
from winnow.training.ccp import CCPSolver
from winnow.training.engine.stream import run_to_end
from winnow.training.objective import build_objective, parameter_groups

WORDS = ["references=ccp", "references.proxies_per_class=2", "references.pool_size=4", "references.proximal_weight=0.1"]


def ccp_trainer(*words: str, folder: RunDir | None = None) -> Trainer:
    return make_trainer(small_config(*WORDS, "loss=c2", "pooling=gap", *words), folder)


def solver_of(trainer: Trainer) -> CCPSolver:
    assert trainer.ccp_solver is not None
    return trainer.ccp_solver


def tell(trainer: Trainer, step: int, value: float, *, over: bool = False) -> None:
    run_to_end(solver_of(trainer).iter_update(step, value, over=over))


def move(trainer: Trainer, by: float) -> dict[str, Tensor]:
    """Change every parameter, as training steps do, and return the state."""
    with torch.no_grad():
        for parameter in trainer.objective.parameters():
            parameter += by
    return {key: value.clone() for key, value in trainer.objective.state_dict().items()}


def test_other_references_have_no_ccp_solver() -> None:
    trainer = make_trainer(small_config("loss=proxy_anchor"))
    assert trainer.ccp_solver is None
    assert trainer.objective.proximal is None
    assert trainer.checkpoint()["problems"] is None


@pytest.mark.parametrize("start", ["best", "last"])
def test_subproblem_ends_without_gain_and_next_is_pulled_to_its_best_weights(start: str) -> None:
    trainer = ccp_trainer("references.patience=2", f"references.start_from={start}")
    problems, objective = solver_of(trainer), trainer.objective
    tell(trainer, 0, 0.5)
    assert len(problems.history) == 1
    assert float(objective.proximal.weight) == 0
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
    assert float(objective.proximal.weight) == pytest.approx(0.1)
    best, model = states[10], objective.model
    assert all(torch.equal(value, best[f"model.{name}"]) for name, value in objective.proximal.target.items())
    expected = states[10 if start == "best" else 20]
    assert all(torch.equal(value, expected[f"model.{name}"]) for name, value in model.state_dict().items())
    move(trainer, 0.01)
    tell(trainer, 25, 0.05)
    # Only what goes on from the last weights has to beat them.
    assert (second.best, second.best_step) == ((0.05, 25) if start == "best" else (0.1, 20))
    tell(trainer, 30, 0.04)
    assert len(problems.history) == (2 if start == "best" else 3)
    if start == "last":
        assert all(torch.equal(one, expected[f"model.{name}"]) for name, one in objective.proximal.target.items())


def test_no_subproblem_returns_to_unset_prototypes() -> None:
    trainer = ccp_trainer("pooling=gsp", "pooling.num_prototypes=4", "pooling.memory_size=24", "references.patience=1")
    problems, gsp = solver_of(trainer), trainer.objective.head.pooling
    assert isinstance(gsp, PrototypePooling)
    tell(trainer, 0, 0.5)
    tell(trainer, 5, 0.9)  # the best, but by average pooling
    tell(trainer, 10, 0.8)
    assert len(problems.history) == 1, "no problem ends before there are prototypes"
    trainer.wrapped.train()
    for step in range(4):
        trainer.take_step(step)
    assert gsp.prototypes_ready
    set_from_data = gsp.prototypes.detach().clone()
    tell(trainer, 15, 0.3)
    tell(trainer, 20, 0.2)
    assert len(problems.history) == 2
    assert (problems.history[0].best, problems.history[0].best_step) == (0.3, 15)
    assert gsp.prototypes_ready
    assert trainer.objective.proximal is not None
    torch.testing.assert_close(trainer.objective.proximal.target["pooling.prototypes"], set_from_data)


@pytest.mark.parametrize("start", ["best", "last"])
def test_subproblem_that_still_improves_ends_after_its_maximum_of_steps(start: str) -> None:
    trainer = ccp_trainer("references.patience=9", "references.max_steps=8", f"references.start_from={start}")
    history, states = solver_of(trainer).history, {}
    tell(trainer, 0, 0.5)
    for step, value in ((5, 0.6), (10, 0.7), (15, 0.9), (20, 0.8)):
        states[step] = move(trainer, 0.01)
        tell(trainer, step, value)
    assert [(one.first_step, one.steps) for one in history] == [(0, 10), (10, 10), (20, 0)]
    assert (history[1].best, history[1].best_step, history[1].end) == (0.9, 15, 0.8)
    target = trainer.objective.proximal.target
    assert all(torch.equal(value, states[15][f"model.{name}"]) for name, value in target.items())
    model = trainer.objective.model.state_dict()
    assert all(
        torch.equal(value, states[15 if start == "best" else 20][f"model.{name}"]) for name, value in model.items()
    )
    tell(trainer, 30, 0.9, over=True)
    assert len(history) == 3


def test_no_subproblem_starts_at_the_end_of_a_run() -> None:
    trainer = ccp_trainer("references.patience=1")
    tell(trainer, 0, 0.5)
    tell(trainer, 5, 0.6)
    tell(trainer, 10, 0.6, over=True)
    assert len(solver_of(trainer).history) == 1


def slow_picks(raw: Tensor, normalized: bool, count: int, converged: Tensor | None) -> Tensor:
    """Greedy k-center of one class without reusing distances; without converged proxies the longest image is first."""
    pool = l2_normalize(raw) if normalized else raw
    picked = [] if converged is not None else [int(np.argmax([float(u.norm()) for u in raw]))]
    while len(picked) < count:
        centres = [*([] if converged is None else converged), *pool[picked]]
        gaps = [-1.0 if i in picked else min(float((u - v).norm()) for v in centres) for i, u in enumerate(pool)]
        picked.append(int(np.argmax(gaps)))
    return pool[picked]


@pytest.mark.parametrize("normalised", [False, True])
def test_proxies_are_selected_by_greedy_k_center(normalised: bool) -> None:
    """A hook on the network collects the embeddings of the pool."""
    trainer = ccp_trainer("references.patience=1", f"references.normalize_proxies={normalised}")
    shown: list[Tensor] = []
    trainer.objective.model.register_forward_hook(lambda module, inputs, output: shown.append(output.clone()))
    converged = None
    for number, (step, value) in enumerate(((0, 0.5), (5, 0.4), (10, 0.3))):
        if number == 2:
            converged = trainer.checkpoint()["problems"]["best"]["references.proxies"].view(10, 2, 8)
        shown.clear()
        tell(trainer, step, value)
        if not shown:
            continue
        pool = torch.cat(shown).view(10, 4, 8)
        look = l2_normalize if normalised else lambda vectors: vectors
        for label in range(10):
            old = None if converged is None else look(converged[label])
            wanted = slow_picks(pool[label], normalised, 2, old)
            torch.testing.assert_close(trainer.objective.references.proxies[2 * label : 2 * label + 2], wanted)
        problem = solver_of(trainer).history[-1]
        new = trainer.objective.references.proxies.detach().view(10, 2, 8)
        after = [covering_radius(l2_normalize(pool[c]), l2_normalize(new[c])) for c in range(10)]
        assert problem.radius_after == pytest.approx(float(torch.stack(after).mean()))
        if converged is None:
            assert problem.radius_before is None
        else:
            before = [covering_radius(l2_normalize(pool[c]), l2_normalize(converged[c])) for c in range(10)]
            assert problem.radius_before == pytest.approx(float(torch.stack(before).mean()))
    assert converged is not None
    assert len(solver_of(trainer).history) == 2


@pytest.mark.parametrize("normalised", [False, True])
def test_subproblem_records_rotation_of_proxies(normalised: bool) -> None:
    trainer = ccp_trainer(f"references.normalize_proxies={normalised}")
    tell(trainer, 0, 0.5)
    problem, proxies = solver_of(trainer).history[-1], trainer.objective.references.proxies
    assert problem.rotation_degrees is None
    with torch.no_grad():
        proxies *= 3  # as long as they like: directions count
        tell(trainer, 5, 0.6)
        assert problem.rotation_degrees == pytest.approx(0, abs=1e-4)
        across = torch.linalg.qr(torch.stack([proxies, torch.randn_like(proxies)], dim=2))[0][:, :, 1]
        angles = torch.linspace(10, 80, len(proxies))[:, None].deg2rad()
        proxies.copy_(proxies * angles.cos() + across * proxies.norm(dim=1, keepdim=True) * angles.sin())
    tell(trainer, 10, 0.7)
    assert problem.rotation_degrees == pytest.approx(45, abs=1e-3)


class Messages(Callback):
    """Collects messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize(
    ("words", "advice"),
    [([], None), (["references.preset=literal"], "Set references.normalize_proxies=true"),
     (["references.lr_multiplier=0.01"], "Increase references.lr_multiplier")],
)  # fmt: skip
@pytest.mark.parametrize("most", ["null", "1"])
def test_proxies_turn_by_default_and_still_ones_are_reported_once(
    words: list[str], advice: str | None, most: str
) -> None:
    """Embeddings are as long as those of a pretrained network."""
    trainer = ccp_trainer(
        "train.lr=1e-3", "train.max_steps=60", "references.patience=2", f"references.max_problems={most}", *words
    )
    for inputs in (trainer.train, trainer.val):
        inputs.maps.mul_(50)  # type: ignore[attr-defined]
    trainer.callback = messages = Messages()
    history = trainer.fit().history
    problems = solver_of(trainer).history
    assert (len(problems) > 2) == (most == "null")
    first = problems[0].rotation_degrees
    assert first is not None
    assert (first > 5) == (advice is None)
    assert len(messages.texts) == (advice is not None)
    if advice is not None:
        assert advice in messages.texts[0]
        assert f"{first:.1f} degrees" in messages.texts[0]
    turned = {entry.step: entry.turned for entry in history}
    assert turned.pop(0) is None
    assert all(degrees is not None for degrees in turned.values())
    for problem in problems:
        if problem.steps:
            assert turned[problem.first_step + problem.steps] == problem.rotation_degrees


@pytest.mark.parametrize(
    ("words", "factor"),
    [(["backbone.train=frozen"], 10), (["backbone.train=full"], 100),
     (["backbone.train=full", "references.preset=literal"], 1),
     (["references.normalize_proxies=false"], 1), (["references.lr_multiplier=3"], 3),
     (["train.lr_multipliers={'references.*': 7}"], 7), (["train.lr_multipliers={'references.proxies': 7}"], 7),
     (["train.lr_multipliers={'references.proxies': 3, 'references.*': 7}"], 7),
     (["train.lr_multipliers={'*.projection.*': 7}"], 10)],
)  # fmt: skip
def test_proxies_have_a_rate_of_their_own(words: list[str], factor: float) -> None:
    config = small_config(*WORDS, "loss=c2", *words)
    objective = build_objective(config, Head(16, 8, config.pooling), num_classes=10)
    groups = parameter_groups(objective, 1.0, config.train.lr_multipliers)
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rates[id(objective.references.proxies)] == factor
    projection = objective.get_parameter("model.projection.weight")
    assert rates[id(projection)] == (7 if "*.projection.*" in str(words) else 1)


def test_pool_has_images_of_its_class_and_depends_on_seed_and_subproblem() -> None:
    def pools(seed: int) -> list[Tensor]:
        problems = solver_of(ccp_trainer(f"seed={seed}"))
        problems._objective.model.projection.weight.data.copy_(torch.eye(8, 16))
        return [run_to_end(problems._iter_embed_pool(number)) for number in (0, 1)]

    one, again, other = pools(1), pools(1), pools(2)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], other[0])
    trainer = ccp_trainer()
    every = trainer.objective.model(trainer.train.test(range(60))).view(10, 6, 8)
    pool = run_to_end(solver_of(trainer)._iter_embed_pool(0))
    for label in range(10):  # each member of a class's pool is one of its images, none of them twice
        gaps = torch.cdist(pool[label], every[label].detach(), compute_mode="donot_use_mm_for_euclid_dist")
        assert (gaps.amin(dim=1) < 1e-5).all()
        assert len(gaps.argmin(dim=1).unique()) == 4


def test_selection_changes_only_proxies() -> None:
    """All other state of the objective is unchanged; classes without images keep their proxies."""
    trainer = make_trainer(small_config(*WORDS, "loss=c2", "zsr=0.2"))
    trainer.train.labels = np.where(trainer.train.labels == 3, 4, trainer.train.labels)
    trainer.ccp_solver = CCPSolver(trainer.objective, trainer.train, seed=0, batch=7, autocast=trainer.fabric.autocast)
    trainer.wrapped.train()
    before = {key: value.clone() for key, value in trainer.objective.state_dict().items()}
    places = [p.data_ptr() for p in trainer.objective.parameters()]
    tell(trainer, 0, 0.5)
    assert trainer.objective.model.training
    assert places == [p.data_ptr() for p in trainer.objective.parameters()]
    after = trainer.objective.state_dict()
    changed = [key for key in after if not torch.equal(after[key], before[key])]
    assert changed == ["references.proxies"]
    rows = (after["references.proxies"] != before["references.proxies"]).all(dim=1)
    assert rows.tolist() == [label != 3 for label in range(10) for _ in range(2)]


def test_non_finite_embedding_names_its_image_and_is_no_proxy() -> None:
    """The message of a later step would name a batch without the image."""
    trainer = ccp_trainer()
    pool = solver_of(trainer)._sampler.batch(0)
    bad = next(int(i) for i in pool if i not in trainer.sampler.batch(0))
    before = trainer.objective.references.proxies.clone()
    trainer.train.maps[bad, 0, 0, 0] = torch.inf  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match=rf"image {bad}: the embedding is not finite \(1 of the {len(pool)} images"):
        trainer.fit()
    assert torch.equal(trainer.objective.references.proxies, before)


def test_pool_is_embedded_in_batches() -> None:
    trainer = ccp_trainer("train.eval_batch_size=7")
    assert len(list(solver_of(trainer).iter_update(0, 0.5, over=False))) == 6  # 40 images, 7 at a time


@pytest.mark.parametrize("most", [1, 2])
def test_last_subproblem_continues(most: int) -> None:
    trainer = ccp_trainer("references.patience=1", f"references.max_problems={most}")
    for step in range(8):
        tell(trainer, step, 0.5 - step / 10)
    assert len(solver_of(trainer).history) == most
    assert solver_of(trainer).history[-1].steps == 7 - solver_of(trainer).history[-1].first_step
    with pytest.raises(ConfigError, match="max_problems: expected at least 1"):
        ccp_trainer("references.max_problems=0")


@pytest.mark.parametrize("monitor", ["MAP@R", "P@1"])
@pytest.mark.parametrize("by", ["MAP@R", "P@1"])
def test_run_records_subproblems_and_proximal_penalty(tmp_path: Path, monitor: str, by: str) -> None:
    """Subproblems use `references.monitor`, independent of `train.monitor`."""
    folder = RunDir(tmp_path / "run")
    words = ["references.patience=1", "train.max_steps=40", f"train.monitor={monitor}", f"references.monitor={by}"]
    trainer = ccp_trainer(*words, folder=folder)
    folder.create(trainer.config)
    progress = trainer.fit()
    history = solver_of(trainer).history
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


def test_checkpoint_does_not_repeat_weights(tmp_path: Path) -> None:
    """Weights that are best of run and subproblem are written once; earlier weights are only in the checkpoint."""
    folder = RunDir(tmp_path / "run")
    trainer = ccp_trainer(folder=folder)
    tell(trainer, 0, 0.5)
    trainer.state.best_step = 5
    tell(trainer, 5, 0.6)
    state = solver_of(trainer).state_dict(trainer.state.best_step)
    assert state["best"] is None
    assert set(state["previous"]) == {"projection.weight"}
    assert not any("previous" in key for key in trainer.objective.state_dict())
    last = ccp_trainer("references.start_from=last", "references.patience=1")
    for step, value in ((0, 0.5), (5, 0.4), (10, 0.3)):
        tell(last, step, value)
    seeded = solver_of(last).state_dict(run_best=10)["best"]
    assert seeded is not None, "the run's best weights of that step have the proxies of the problem before"
    assert torch.equal(seeded["references.proxies"], last.objective.references.proxies)
    kept: dict[str, Any] = solver_of(trainer).state_dict(run_best=0)
    fresh = ccp_trainer()
    solver_of(fresh).load_state_dict(state, kept["best"])
    assert same(solver_of(fresh)._best, solver_of(trainer)._best)
