"""Early stopping: the best validation, and the end after `train.patience`."""

from __future__ import annotations

from winnow.training.checkpoint import TrainState

MIN_DELTA = 1e-5
"""Smallest difference of a validation value that is a gain, as in the runs of [GSP] and [CCP]."""


class EarlyStopping:
    """Stop training after `patience` validations without a gain.

    The validation before the first step selects the best weights too, but does not count for the patience:
    fine-tuning may start below the pretrained network and needs time to exceed it.

    Args:
        patience: Validations after the first step without a gain that end training.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def update(self, state: TrainState, value: float) -> bool:
        """Record the validation value at `state.step`; return whether it is the best."""
        improved = value > state.best + MIN_DELTA
        if improved:
            state.best, state.best_step = value, state.step
        if state.step > 0:
            if value > state.best_after_start + MIN_DELTA:
                state.best_after_start, state.evaluations_without_gain = value, 0
            else:
                state.evaluations_without_gain += 1
        return improved

    def should_stop(self, state: TrainState) -> bool:
        """Return whether the patience is exhausted."""
        return state.evaluations_without_gain >= self.patience
