"""Learning-rate schedule: reduce the rate when validation stops improving, also inside CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from winnow.training.config import PlateauConfig


class ReduceOnPlateau:
    r"""Multiply the learning rate by a factor when validation has not improved for `patience` validations.

    $$\eta \leftarrow \max(f \eta, \eta_{\min}) \quad\text{after } k \text{ validations in a row with}\quad
      v \le v_{\text{best}} + \delta$$

    The `cooldown` validations after a reduction do not count. The order of events is that of Keras'
    `ReduceLROnPlateau`, which [GSP] and [CCP] used; `torch.optim.lr_scheduler.ReduceLROnPlateau` differs. Parameter
    groups keep their multipliers: all rates are scaled by the same factor.

    Args:
        settings: Factor f, patience k, threshold delta, cooldown, and smallest rate.
        rate: Initial learning rate.
    """

    def __init__(self, settings: PlateauConfig, rate: float) -> None:
        self._settings, self._initial = settings, rate
        self.rate = rate
        self._best, self._without_gain, self._cooldown = -float("inf"), 0, 0

    @property
    def scale(self) -> float:
        """Current rate divided by the initial rate."""
        return self.rate / self._initial

    def update(self, value: float) -> bool:
        """Record the value of a validation and return whether the rate was reduced."""
        plateau = self._settings
        if self._cooldown > 0:
            self._cooldown -= 1
            self._without_gain = 0
        if value > self._best + plateau.threshold:
            self._best, self._without_gain = value, 0
            return False
        if self._cooldown > 0:
            return False
        self._without_gain += 1
        if self._without_gain < plateau.patience:
            return False
        if self.rate <= plateau.min_lr:
            return False
        self.rate = max(plateau.factor * self.rate, plateau.min_lr)
        self._without_gain, self._cooldown = 0, plateau.cooldown
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the entry `plateau` of a checkpoint."""
        return {"rate": self.rate, "best": self._best, "stalled": self._without_gain, "cooling": self._cooldown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the entry `plateau` of a checkpoint."""
        self.rate, self._best = state["rate"], state["best"]
        self._without_gain, self._cooldown = state["stalled"], state["cooling"]


class GraphLearningRates:
    """Learning rates of an optimizer's parameter groups that can change while steps are replayed.

    A Python number would be a constant of a captured graph. There a rate is a tensor that is changed in place.

    Args:
        optimizer: Optimizer with the initial rates.
        device: Device on which steps are captured; None if they are not.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device | None) -> None:
        self._optimizer = optimizer
        self._initial = [float(group["lr"]) for group in optimizer.param_groups]
        self._tensors = None
        if device is not None:
            self._tensors = [torch.tensor(rate, device=device) for rate in self._initial]
        self.scale(1.0)

    def scale(self, factor: float) -> None:
        """Set every rate to its initial value times a factor."""
        for number, (group, rate) in enumerate(zip(self._optimizer.param_groups, self._initial, strict=True)):
            group["lr"] = factor * rate if self._tensors is None else self._tensors[number].fill_(factor * rate)
