"""Learning-rate schedules: warm-up, steps, cosine, and plateau."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from winnow.errors import ConfigError
from winnow.training.config import PlateauConfig, TrainConfig


@dataclass(frozen=True)
class RateSchedule:
    r"""Factor on the learning rate as a function of the step $t = 0, 1, \dots$

    $$\eta_t = \eta\, \min\Big(1, \frac{t + 1}{W}\Big)\, s(t)$$

    with W warm-up steps. The decay s has one of three forms, for T steps, milestones $m_i$, and a factor $\gamma$:

    $$s_{\text{constant}}(t) = 1, \qquad s_{\text{step}}(t) = \gamma^{|\{i\, :\, m_i \le t\}|}, \qquad
      s_{\text{cosine}}(t) = \frac12 \Big(1 + \cos \pi \frac{\max(0, t - W)}{T - W}\Big)$$

    A plateau is no function of the step: `ReduceOnPlateau` multiplies this factor.

    Reference: Loshchilov, Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017, equation 5, for
    the cosine (here without restarts).

    Args:
        decay: Form of s.
        max_steps: Number of steps T.
        warmup_steps: Number of warm-up steps W, less than T; 0 for none.
        milestones: Steps $m_i$ in ascending order, or one number n for every multiple of n.
        step_factor: Factor gamma.

    Raises:
        ConfigError: If a number is out of range.
    """

    decay: Literal["constant", "step", "cosine"]
    max_steps: int
    warmup_steps: int = 0
    milestones: Sequence[int] | int = ()
    step_factor: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps < self.max_steps:
            raise ConfigError(
                f"train.warmup_steps: expected less than train.max_steps={self.max_steps}, got {self.warmup_steps}. "
                "Lower it."
            )
        given = [self.milestones] if isinstance(self.milestones, int) else list(self.milestones)
        if any(step < 1 for step in given) or sorted(set(given)) != given:
            raise ConfigError(
                f"train.milestones: expected steps from 1 in ascending order, got {self.milestones}. Correct the list."
            )
        if bool(given) != (self.decay == "step"):
            raise ConfigError(
                "train.milestones: missing with train.schedule=step. Name the steps at which the rate is reduced."
                if self.decay == "step"
                else "train.milestones: no effect without train.schedule=step. Set it, or remove the milestones."
            )

    def factor(self, step: int) -> float:
        """Return the factor on the learning rate in a step, counted from 0."""
        warmup = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return warmup * self._decay(step)

    def _decay(self, step: int) -> float:
        """Return s(t)."""
        if self.decay == "cosine":
            done = max(0, step - self.warmup_steps) / (self.max_steps - self.warmup_steps)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        if self.decay == "step":
            if isinstance(self.milestones, int):
                return float(self.step_factor ** (step // self.milestones))
            return float(self.step_factor ** sum(milestone <= step for milestone in self.milestones))
        return 1.0

    @property
    def is_constant(self) -> bool:
        """Whether the factor is 1 in every step."""
        return self.decay == "constant" and self.warmup_steps == 0


def make_schedule(settings: TrainConfig) -> RateSchedule:
    """Return the schedule of a config whose numbers are in steps.

    Raises:
        ConfigError: If the warm-up or the milestones are invalid.
    """
    decay = "constant" if settings.schedule == "plateau" else settings.schedule
    return RateSchedule(decay, settings.max_steps, settings.warmup_steps, settings.milestones, settings.step_factor)


def epochs_to_steps(settings: TrainConfig, epoch: int) -> None:
    """Convert the settings that `train.unit` concerns from epochs to steps, in place.

    Args:
        settings: Settings of training; unchanged if they are in steps.
        epoch: Steps in an epoch.
    """
    if settings.unit == "steps":
        return
    settings.max_steps *= epoch
    settings.freeze_backbone_steps *= epoch
    settings.warmup_steps *= epoch
    milestones = settings.milestones
    settings.milestones = milestones * epoch if isinstance(milestones, int) else [epoch * one for one in milestones]
    settings.unit = "steps"


class ReduceOnPlateau:
    r"""Reduction of the learning rate after `patience` validations without a gain.

    $$\eta \leftarrow \max(f \eta, \eta_{\min}) \quad\text{after } k \text{ validations in a row with}\quad
      v \le v_{\text{best}} + \delta$$

    The `cooldown` validations after a reduction do not count. Events have the order of Keras'
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
    """Learning rates that can change while steps are replayed.

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
