"""Early stopping: the selected weights, and the end after `train.patience`."""

from __future__ import annotations

from winnow.training.checkpoint import TrainState

MIN_DELTA = 1e-5
"""Smallest difference of a validation value that is a gain, as in the runs of [GSP] and [CCP]."""


class EarlyStopping:
    """Select weights by validation, and stop training after `patience` validations without a gain.

    The validation before the first step selects the best weights too, but does not count for the patience:
    fine-tuning may start below the pretrained network and needs time to exceed it.

    Args:
        patience: Validations after the first step without a gain that end training.
        last_step: Step whose weights are selected whatever their value; training never stops before it. None selects
            the best weights.
    """

    def __init__(self, patience: int, last_step: int | None = None) -> None:
        self.patience, self._last_step = patience, last_step

    def update(self, state: TrainState, value: float) -> bool:
        """Record the validation value at `state.step`; return whether its weights are selected."""
        fixed = (0, self._last_step)  # a run that resumes needs selected weights, so the first are selected too
        selected = value > state.best + MIN_DELTA if self._last_step is None else state.step in fixed
        if selected:
            state.best, state.best_step = value, state.step
        if state.step > 0:
            if value > state.best_after_start + MIN_DELTA:
                state.best_after_start, state.evaluations_without_gain = value, 0
            else:
                state.evaluations_without_gain += 1
        return selected

    def should_stop(self, state: TrainState) -> bool:
        """Return whether the patience is exhausted."""
        return self._last_step is None and state.evaluations_without_gain >= self.patience
