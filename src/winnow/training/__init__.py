"""Training: from a config to a run folder with model, metrics, and checkpoint."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnow.training.cache import RunCache
    from winnow.training.callbacks import Callback, CallbackList
    from winnow.training.config import RunConfig, make_config
    from winnow.training.evaluation import embed, evaluate
    from winnow.training.objective import Objective, build_objective
    from winnow.training.overrides import load_config
    from winnow.training.parallel import RunOutcome, train_in_parallel
    from winnow.training.results import RunResult, ValidationEntry
    from winnow.training.run import evaluate_pretrained, evaluate_run, train
    from winnow.training.run_dir import RunDir
    from winnow.training.sweep import PlannedRun, plan_runs
    from winnow.training.trainer import Trainer

__all__ = [
    "Callback",
    "CallbackList",
    "Objective",
    "PlannedRun",
    "RunCache",
    "RunConfig",
    "RunDir",
    "RunOutcome",
    "RunResult",
    "Trainer",
    "ValidationEntry",
    "build_objective",
    "embed",
    "evaluate",
    "evaluate_pretrained",
    "evaluate_run",
    "load_config",
    "make_config",
    "plan_runs",
    "train",
    "train_in_parallel",
]  # fmt: skip

_PATHS = (
    "winnow.training.cache.RunCache", "winnow.training.callbacks.Callback", "winnow.training.callbacks.CallbackList",
    "winnow.training.config.RunConfig", "winnow.training.config.make_config", "winnow.training.evaluation.embed",
    "winnow.training.evaluation.evaluate", "winnow.training.objective.Objective",
    "winnow.training.objective.build_objective", "winnow.training.parallel.RunOutcome",
    "winnow.training.parallel.train_in_parallel", "winnow.training.results.RunResult",
    "winnow.training.results.ValidationEntry", "winnow.training.run.evaluate_pretrained",
    "winnow.training.run.evaluate_run", "winnow.training.run.train",
    "winnow.training.run_dir.RunDir", "winnow.training.sweep.PlannedRun", "winnow.training.sweep.plan_runs",
    "winnow.training.trainer.Trainer", "winnow.training.overrides.load_config",
)  # fmt: skip
_MODULES = {path.rpartition(".")[2]: path.rpartition(".")[0] for path in _PATHS}


def __getattr__(name: str) -> object:
    """Import a public name on first use.

    A callback or a run folder needs no trainer.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'winnow.training' has no attribute '{name}'")
    found: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
