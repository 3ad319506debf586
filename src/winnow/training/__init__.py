"""Config, objective, the loop, checkpoints and frozen features."""

from winnow.training.config import Config, make_config
from winnow.training.folder import RunFolder
from winnow.training.learner import Learner, build_learner
from winnow.training.monitor import Monitor
from winnow.training.pack import Outcome, run_pack
from winnow.training.plan import plan_runs
from winnow.training.run import run_training
from winnow.training.trainer import Trainer
from winnow.training.words import load_config

__all__ = [
    "Config", "Learner", "Monitor", "Outcome", "RunFolder", "Trainer", "build_learner", "load_config", "make_config",
    "plan_runs", "run_pack", "run_training",
]  # fmt: skip
