"""Training as a sequence of problems: when one ends, and how the next begins."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.data import MPerClassSampler
from winnow.errors import TrainingError
from winnow.functional import covering_radius, unit_norm
from winnow.losses import Pull
from winnow.references import CCP
from winnow.seeding import derive_seed, seed_everything
from winnow.training.config import Config
from winnow.training.inputs import Inputs
from winnow.training.judge import MIN_DELTA, Autocast
from winnow.training.lane import Work
from winnow.training.learner import Learner

_POOLS = 1  # sets the seeds of pools apart from those of steps


@dataclass
class Problem:
    """One problem of a run; values are those of validations by CCP's metric (`references.monitor`).

    Attributes:
        first_step: The step it began at.
        steps: Steps taken in it.
        start: Value of the weights it began with.
        best: Best value in it and its step; the start counts only where problems begin with the last weights.
        end: Value of its last weights.
        radius_before: Mean covering radius over the classes of the pool around the last problem's proxies.
        radius_after: Likewise around its own proxies, as they were picked.
        turned: Mean angle in degrees between its proxies as they were picked and at its last validation.
    """

    first_step: int
    start: float
    radius_before: float | None
    radius_after: float
    steps: int = 0
    best: float = -1.0
    best_step: int = 0
    end: float | None = None
    turned: float | None = None


class Problems:
    """Solves the problems of [`CCP`][winnow.references.CCP]: told of every validation, it ends one and begins the next.

    Pools are a function of (seed, problem), and all the rest is in `state`, so that a resumed run goes on as it would
    have.

    Args:
        learner: With CCP as its references, and a pull.
        train: Training inputs.
        seed: Of the run.
        batch: Images of a pool embedded at a time.
        autocast: Of the run.
    """

    def __init__(self, learner: Learner, train: Inputs, *, seed: int, batch: int, autocast: Autocast) -> None:
        assert isinstance(learner.references, CCP), "only CCP has problems"
        assert isinstance(learner.pull, Pull), "and it pulls"
        self._learner, self._ccp, self._pull, self._train = learner, learner.references, learner.pull, train
        self._seed, self._batch, self._autocast = seed, batch, autocast
        classes = np.unique(train.labels)
        self._sampler = MPerClassSampler(
            train.labels, len(classes), self._ccp.pool, seed=derive_seed(seed, _POOLS, _POOLS)
        )
        self._classes = torch.from_numpy(classes).to(self._ccp.proxies.device)
        self.monitor = self._ccp.monitor
        self.history: list[Problem] = []
        self._stalled, self._ready = 0, learner.head.is_ready
        self._best: dict[str, Tensor] = {}
        self._picked = self._ccp.proxies.detach().clone()

    def validated(self, step: int, value: float, *, over: bool) -> Work[None]:
        """Take note of a validation's value; end the problem if it stalls, unless it is the last or the run is over.

        Where a problem goes back to the best weights, those it begins with do not count as its best: that would lead
        back to them for good. Nor do weights from before a pooling set its prototypes: going back would unset those.
        """
        if not self.history:
            yield from self._begin(step, value)
            return
        problem = self.history[-1]
        problem.steps, problem.end, problem.turned = step - problem.first_step, value, self._turned()
        ready = self._learner.head.is_ready
        if ready and not self._ready:
            problem.best, self._stalled, self._ready = -1.0, 0, True  # what came before was average pooling
        if value > problem.best + MIN_DELTA:
            self._keep(step, value)
        else:
            self._stalled += 1
        last = len(self.history) == self._ccp.problems
        if self._stalled >= self._ccp.patience and ready and not (last or over):
            self._converge()
            yield from self._begin(step, problem.best if self._ccp.start == "best" else value)

    def _keep(self, step: int, value: float) -> None:
        """Note the weights as the problem's best so far."""
        problem = self.history[-1]
        problem.best, problem.best_step, self._stalled = value, step, 0
        self._best = {key: one.detach().clone() for key, one in self._learner.state_dict().items()}

    @torch.no_grad()
    def _converge(self) -> None:
        """Take the problem's best weights as its solution: what pulls from now on, and what proxies keep away from."""
        self._pull.towards({key.removeprefix("model."): one for key, one in self._best.items()})
        if self._ccp.start == "best":
            self._learner.load_state_dict(self._best)
        else:
            self._ccp.proxies.copy_(self._best["references.proxies"])

    def _begin(self, step: int, start: float) -> Work[None]:
        """Seed the proxies anew and set the pull."""
        first = not self.history
        pool = yield from self._embed_pool(len(self.history))
        before = None if first else self._radius(pool)
        self._ccp.seed(pool, self._classes, first=first, normalise=self._learner.loss.normalise)
        self._pull.weight.fill_(0.0 if first else self._ccp.pull)
        self.history.append(Problem(step, start, before, self._radius(pool)))
        self._stalled, self._best, self._picked = 0, {}, self._ccp.proxies.detach().clone()
        if not first and self._ccp.start == "last":
            self._keep(step, start)

    def _embed_pool(self, number: int) -> Work[Tensor]:
        """Embed b images of each class, cropped as in training, by the network as it is judged: (C, b, d).

        Processes share every batch of them.

        Raises:
            TrainingError: for an embedding that is not finite; as a proxy it would spoil steps with images of others.
        """
        indices = self._sampler.batch(number)
        indices = indices[np.argsort(self._train.labels[indices], kind="stable")]
        model, processes, parts = self._learner.model, self._learner.processes, []
        mode = model.training
        model.eval()
        for start in range(0, len(indices), self._batch):
            seed = derive_seed(self._seed, number, start, _POOLS)
            seed_everything(seed)
            generator = torch.Generator().manual_seed(seed)
            some = indices[start : start + self._batch]
            share = processes.share(len(some))
            wanted = share if share.start < share.stop else slice(0, 1)  # to know the size of a row
            with torch.inference_mode(), self._autocast():
                embedded = model(self._train.train(some, generator, share=wanted))
            parts.append(processes.gather(embedded[: share.stop - share.start], len(some)))
            yield
        model.train(mode)
        pool = torch.cat(parts).to(self._ccp.proxies.dtype)
        self._check(pool, indices)
        return pool.view(len(self._classes), self._ccp.pool, -1)

    def _check(self, pool: Tensor, indices: NDArray[np.int64]) -> None:
        """Refuse embeddings (C b, d) that are not finite, and tell of which image."""
        wrong = (~pool.isfinite().all(dim=1)).cpu().numpy()
        if wrong.any():
            name = self._train.name(int(indices[wrong][0]))
            raise TrainingError(
                f"the embedding of {name} is not finite ({wrong.sum()} of the {len(pool)} images among which proxies "
                "are picked): look at the image and at augment.transform, or use another precision than 16-mixed"
            )

    def _radius(self, pool: Tensor) -> float:
        """Return the classes' mean covering radius of a pool around the proxies, both as the loss sees them."""
        normalise = self._learner.loss.normalise
        return float(covering_radius(normalise(pool), normalise(self._ccp.of_classes(self._classes))).mean())

    @torch.no_grad()
    def _turned(self) -> float:
        """Return the mean angle in degrees by which the proxies have turned since they were picked."""
        chords = (unit_norm(self._picked) - unit_norm(self._ccp.proxies)).norm(dim=1)  # exact for small angles too
        return float((chords / 2).clamp(max=1).asin().mul(2).rad2deg().mean())

    def records(self) -> list[dict[str, Any]]:
        """Return the history of problems as plain values."""
        return [asdict(problem) for problem in self.history]

    def state(self, run_best: int) -> dict[str, Any]:
        """Return all that a checkpoint needs.

        Args:
            run_best: Step of the run's best weights, which are saved by themselves; not repeated here if they are the
                problem's best too.
        """
        # At a problem's first step the run's weights still have the last one's proxies.
        shared = bool(self._best) and run_best == self.history[-1].best_step > self.history[-1].first_step
        return {
            "history": self.records(),
            "stalled": self._stalled,
            "ready": self._ready,
            "best": None if shared else self._best,
            "previous": self._pull.previous,
            "picked": self._picked,
        }

    def restore(self, state: dict[str, Any], run_best: dict[str, Tensor]) -> None:
        """Go back to a state; `run_best` are the run's best weights."""
        self.history = [Problem(**record) for record in state["history"]]
        self._stalled, self._ready = state["stalled"], state["ready"]
        device = self._ccp.proxies.device
        best = run_best if state["best"] is None else state["best"]
        self._best = {key: one.to(device) for key, one in best.items()}
        # A checkpoint from before angles were recorded does not have it: they are then counted from here.
        self._picked = state.get("picked", self._ccp.proxies.detach().clone()).to(device)
        self._pull.towards(state["previous"])
        self._pull.weight.fill_(self._ccp.pull if len(self.history) > 1 else 0.0)


def make_problems(config: Config, learner: Learner, train: Inputs, autocast: Autocast) -> Problems | None:
    """Return what solves the problems of a run; None where its references make none."""
    if not isinstance(learner.references, CCP):
        return None
    return Problems(learner, train, seed=config.seed, batch=config.train.eval_batch, autocast=autocast)
