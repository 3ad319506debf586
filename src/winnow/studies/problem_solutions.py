"""What the problems of one CCP run came to: the best weights of each, and the proxies it began with."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from winnow.references import ChanceConstrainedProxies
from winnow.training import Trainer


@dataclass
class Solved:
    """A problem of a run.

    Attributes:
        began: (C K, d) proxies that it began with, as they are stored; None without proxies.
        weights: Of the learner at the problem's best validation; empty where the run ended before its first one.
    """

    began: Tensor | None
    weights: dict[str, Tensor] = field(default_factory=dict)


def solve_problems(trainer: Trainer) -> list[Solved]:
    """Train to the end; return what every problem came to, or the run where it has none."""
    learner, found = trainer.objective, list[Solved]()
    seen: tuple[int, int] | None = None
    for _ in trainer.iter_fit():
        # A problem's best weights are in place when they have just become so, new proxies when a problem has begun.
        if trainer.ccp_solver is None or not trainer.ccp_solver.history:
            continue
        number, problem = len(trainer.ccp_solver.history), trainer.ccp_solver.history[-1]
        if number > len(found):
            assert isinstance(learner.references, ChanceConstrainedProxies), "only CCP has problems"
            found.append(Solved(learner.references.proxies.detach().clone()))
        if problem.best_step and (number, problem.best_step) != seen:
            seen = (number, problem.best_step)
            found[-1].weights = {key: value.clone() for key, value in learner.state_dict().items()}
    return found or [Solved(None, trainer.best_state)]
