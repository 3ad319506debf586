"""Lowering the learning rate when validation stalls."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from winnow.training.config import PlateauConfig


class Plateau:
    r"""Multiplies the learning rate by a factor whenever validation has not improved for some time.

    $$\eta \leftarrow \max(f \eta, \eta_{\min}) \quad\text{after } k \text{ validations in a row with}\quad
      v \le v_{\text{best}} + \delta$$

    After that as many validations as the cooldown do not count. It keeps to the order of events of Keras'
    `ReduceLROnPlateau`, which the documents trained with. Groups of parameters keep their multipliers: all rates
    shrink by the same share.

    Args:
        settings: Factor f, patience k, delta, cooldown and smallest rate.
        rate: The learning rate eta to begin with.
    """

    def __init__(self, settings: PlateauConfig, rate: float) -> None:
        self._settings, self._first = settings, rate
        self.rate = rate
        self._best, self._stalled, self._cooling = -float("inf"), 0, 0

    @property
    def share(self) -> float:
        """What is left of the rate to begin with."""
        return self.rate / self._first

    def validated(self, value: float) -> bool:
        """Take note of a validation after some step; return whether the rate was lowered."""
        settings = self._settings
        if self._cooling > 0:
            self._cooling -= 1
            self._stalled = 0
        if value > self._best + settings.min_delta:
            self._best, self._stalled = value, 0
            return False
        if self._cooling > 0:
            return False
        self._stalled += 1
        if self._stalled < settings.patience:
            return False
        if self.rate <= settings.min_lr:
            return False
        self.rate = max(settings.factor * self.rate, settings.min_lr)
        self._stalled, self._cooling = 0, settings.cooldown
        return True

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint needs."""
        return {"rate": self.rate, "best": self._best, "stalled": self._stalled, "cooling": self._cooling}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        self.rate, self._best = state["rate"], state["best"]
        self._stalled, self._cooling = state["stalled"], state["cooling"]


class Rates:
    """The learning rates of an optimiser's groups, in a form that can change while steps are replayed.

    A number would be part of a captured graph for good, so that there a rate is a tensor, changed in place.

    Args:
        optimizer: Whose rates they are.
        device: Where steps are captured; None where they are not.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device | None) -> None:
        self._optimizer = optimizer
        self._first = [float(group["lr"]) for group in optimizer.param_groups]
        self._tensors = None
        if device is not None:
            self._tensors = [torch.tensor(rate, device=device) for rate in self._first]
        self.scale(1.0)

    def scale(self, share: float) -> None:
        """Set every rate to a share of what it was at first."""
        for number, (group, rate) in enumerate(zip(self._optimizer.param_groups, self._first, strict=True)):
            group["lr"] = share * rate if self._tensors is None else self._tensors[number].fill_(share * rate)
