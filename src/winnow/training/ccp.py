"""Chance-constrained proxies [CCP]: training as a sequence of subproblems.

Each subproblem starts with proxies that are selected from data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.data import MPerClassSampler
from winnow.errors import TrainingError
from winnow.functional import covering_radius, l2_normalize
from winnow.losses import ProximalPenalty
from winnow.references import ChanceConstrainedProxies
from winnow.seeding import derive_seed, seed_everything
from winnow.training.config import RunConfig
from winnow.training.early_stopping import MIN_DELTA
from winnow.training.engine.stream import Steps
from winnow.training.evaluation import Autocast
from winnow.training.inputs import Inputs
from winnow.training.objective import Objective
from winnow.training.results import CCPProblem

_POOLS = 1  # separates the seeds of pools from the seeds of steps

STILL = 5.0
"""Degrees below which proxies count as not moving: raw ones turn by 0.1 to 4 in a subproblem, normalized ones by 30."""


class CCPSolver:
    """Sequence of subproblems, each with proxies selected from data.

    A subproblem ends when validation stops improving.

    The images of a pool are a function of (seed, subproblem). All other state is in `state_dict`, so a resumed run
    continues exactly.

    Args:
        objective: Objective with CCP as its references and a proximal penalty.
        train: Training inputs.
        seed: Seed of the run.
        batch: Images of a pool embedded at a time.
        autocast: Precision context of the run.
    """

    def __init__(self, objective: Objective, train: Inputs, *, seed: int, batch: int, autocast: Autocast) -> None:
        assert isinstance(objective.references, ChanceConstrainedProxies), "the references are CCP"
        assert isinstance(objective.proximal, ProximalPenalty), "CCP has a proximal penalty"
        self._objective, self._ccp, self._proximal = objective, objective.references, objective.proximal
        self._train, self._seed, self._batch, self._autocast = train, seed, batch, autocast
        classes = np.unique(train.labels)
        self._sampler = MPerClassSampler(
            train.labels, len(classes), self._ccp.pool_size, seed=derive_seed(seed, _POOLS, _POOLS)
        )
        self._classes = torch.from_numpy(classes).to(self._ccp.proxies.device)
        self.monitor = self._ccp.monitor
        self.history: list[CCPProblem] = []
        self._without_gain, self._ready = 0, objective.head.prototypes_ready
        self._best: dict[str, Tensor] = {}
        self._selected = self._ccp.proxies.detach().clone()

    def iter_update(self, step: int, value: float, *, over: bool) -> Steps[None]:
        """Record a validation value; start the next subproblem if this one has converged.

        The last subproblem does not end before the run. If subproblems start from the best weights, the first value of
        a subproblem is not its best: that would return to these weights forever. Values from before a pooling set its
        prototypes do not count either, because returning to them would unset the prototypes.

        Args:
            step: Number of the step.
            value: Value of `references.monitor`.
            over: Whether the run ends at this validation.
        """
        if not self.history:
            yield from self._iter_start(step, value)
            return
        problem = self.history[-1]
        problem.steps, problem.end, problem.rotation_degrees = step - problem.first_step, value, self.turned()
        ready = self._objective.head.prototypes_ready
        if ready and not self._ready:
            problem.best, self._without_gain, self._ready = -1.0, 0, True  # earlier values are average pooling
        if value > problem.best + MIN_DELTA:
            self._save_best(step, value)
        else:
            self._without_gain += 1
        last, most = len(self.history) == self._ccp.max_problems, self._ccp.max_steps
        converged = self._without_gain >= self._ccp.patience or (most is not None and problem.steps >= most)
        if converged and ready and not (last or over):
            self._converge()
            yield from self._iter_start(step, problem.best if self._ccp.start_from == "best" else value)

    def warning(self, step: int, *, over: bool) -> str | None:
        """Return a warning if the first subproblem has just ended and its proxies hardly turned.

        Args:
            step: Number of the step.
            over: Whether the run ends at this validation.
        """
        first, later = self.history[0], self.history[1:]
        ended = later[0].first_step == step if later else over and step > first.first_step
        if not ended or len(later) > 1 or first.rotation_degrees is None or first.rotation_degrees >= STILL:
            return None
        raw = not self._ccp.normalize_proxies
        change = "Set references.normalize_proxies=true" if raw else "Increase references.lr_multiplier"
        return (
            f"references: proxies turned by {first.rotation_degrees:.1f} degrees in the first subproblem, so they are "
            f"fixed samples rather than trained proxies. {change}."
        )

    def _save_best(self, step: int, value: float) -> None:
        """Store the weights as the best of the subproblem."""
        problem = self.history[-1]
        problem.best, problem.best_step, self._without_gain = value, step, 0
        self._best = {key: one.detach().clone() for key, one in self._objective.state_dict().items()}

    @torch.no_grad()
    def _converge(self) -> None:
        """Set the subproblem's best weights as its solution and penalty target."""
        self._proximal.set_target({key.removeprefix("model."): one for key, one in self._best.items()})
        if self._ccp.start_from == "best":
            self._objective.load_state_dict(self._best)
        else:
            self._ccp.proxies.copy_(self._best["references.proxies"])

    def _iter_start(self, step: int, start: float) -> Steps[None]:
        """Select new proxies and set the weight of the proximal penalty."""
        first = not self.history
        pool = yield from self._iter_embed_pool(len(self.history))
        before = None if first else self._radius(pool)
        self._ccp.seed(pool, self._classes, first=first, normalize=self._objective.loss.normalizer)
        self._proximal.weight.fill_(0.0 if first else self._ccp.proximal_weight)
        self.history.append(
            CCPProblem(first_step=step, start=start, radius_before=before, radius_after=self._radius(pool))
        )
        self._without_gain, self._best, self._selected = 0, {}, self._ccp.proxies.detach().clone()
        if not first and self._ccp.start_from == "last":
            self._save_best(step, start)

    def _iter_embed_pool(self, number: int) -> Steps[Tensor]:
        """Embed b images of each class, (C, b, d).

        Crops are training crops, and the network is in evaluation mode.

        Processes share every batch.

        Raises:
            TrainingError: If an embedding is not finite. As a proxy it would affect all later steps.
        """
        indices = self._sampler.batch(number)
        indices = indices[np.argsort(self._train.labels[indices], kind="stable")]
        model, processes, parts = self._objective.model, self._objective.processes, []
        mode = model.training
        model.eval()
        for start in range(0, len(indices), self._batch):
            seed = derive_seed(self._seed, number, start, _POOLS)
            seed_everything(seed)
            generator = torch.Generator().manual_seed(seed)
            batch = indices[start : start + self._batch]
            own = processes.own_slice(len(batch))
            rows = own if own.start < own.stop else slice(0, 1)  # an empty slice embeds one row to know its size
            with torch.inference_mode(), self._autocast():
                embedded = model(self._train.train(batch, generator, rows=rows))
            parts.append(processes.gather(embedded[: own.stop - own.start], len(batch)))
            yield
        model.train(mode)
        pool = torch.cat(parts).to(self._ccp.proxies.dtype)
        self._check(pool, indices)
        return pool.view(len(self._classes), self._ccp.pool_size, -1)

    def _check(self, pool: Tensor, indices: NDArray[np.int64]) -> None:
        """Raise an error that names an image whose embedding is not finite."""
        wrong = (~pool.isfinite().all(dim=1)).cpu().numpy()
        if wrong.any():
            name = self._train.name(int(indices[wrong][0]))
            raise TrainingError(
                f"{name}: the embedding is not finite ({wrong.sum()} of the {len(pool)} images from which CCP selects "
                "proxies). Check the image and augment.transform, or use another precision than 16-mixed."
            )

    def _radius(self, pool: Tensor) -> float:
        """Return the mean covering radius of the pools around the proxies.

        Vectors are normalized as in the loss.
        """
        normalize = self._objective.loss.normalizer
        return float(covering_radius(normalize(pool), normalize(self._ccp.class_proxies(self._classes))).mean())

    @torch.no_grad()
    def turned(self) -> float | None:
        """Return the mean angle in degrees between selected and present proxies; None before any are selected."""
        if not self.history:
            return None
        chords = (l2_normalize(self._selected) - l2_normalize(self._ccp.proxies)).norm(
            dim=1
        )  # exact for small angles too
        return float((chords / 2).clamp(max=1).asin().mul(2).rad2deg().mean())

    def records(self) -> list[dict[str, Any]]:
        """Return the history of subproblems as plain values."""
        return [problem.model_dump(by_alias=True) for problem in self.history]

    def state_dict(self, run_best: int | None) -> dict[str, Any]:
        """Return the entry `problems` of a checkpoint.

        Args:
            run_best: Step of the run's best weights, which `best.pt` holds. They are not repeated here if they are also
                the best of the subproblem. None if it holds other weights, such as their average.
        """
        # At the first step of a subproblem the run's best weights still have the proxies of the last one.
        in_best_file = bool(self._best) and run_best == self.history[-1].best_step > self.history[-1].first_step
        return {
            "history": self.records(),
            "stalled": self._without_gain,
            "ready": self._ready,
            "best": None if in_best_file else self._best,
            "previous": self._proximal.target,
            "picked": self._selected,
        }

    def load_state_dict(self, state: dict[str, Any], run_best: dict[str, Tensor]) -> None:
        """Restore the entry `problems` of a checkpoint.

        `run_best` is the content of `best.pt`.
        """
        self.history = [CCPProblem.from_dict(record) for record in state["history"]]
        self._without_gain, self._ready = state["stalled"], state["ready"]
        device = self._ccp.proxies.device
        best = run_best if state["best"] is None else state["best"]
        self._best = {key: one.to(device) for key, one in best.items()}
        # Early checkpoints have no selected proxies: angles are then measured from the current ones.
        self._selected = state.get("picked", self._ccp.proxies.detach().clone()).to(device)
        self._proximal.set_target(state["previous"])
        self._proximal.weight.fill_(self._ccp.proximal_weight if len(self.history) > 1 else 0.0)


def build_ccp_solver(config: RunConfig, objective: Objective, train: Inputs, autocast: Autocast) -> CCPSolver | None:
    """Return the solver of a run with CCP, or None for other references."""
    if not isinstance(objective.references, ChanceConstrainedProxies):
        return None
    return CCPSolver(objective, train, seed=config.seed, batch=config.train.eval_batch_size, autocast=autocast)
