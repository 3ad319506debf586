"""Batch normalisation of local features, some of which may not count."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TokenNorm(nn.Module):
    r"""Batch normalisation over all features of a batch that count.

    $$y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$

    Without a mask it is `torch.nn.BatchNorm1d` over (B n, d): in training by the batch's own mean and variance, in
    inference by their running averages.

    Args:
        width: Size of the features.
        momentum: How much of the running averages each batch replaces.
        eps: Added to the variance.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalise tokens (B, n, d) float32 or float64; what is masked counts for nothing but is normalised too."""
        mean, var = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        if self.training:
            counts = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
            number = counts.sum()
            mean = (counts[..., None] * x).sum(dim=(0, 1)) / number
            var = (counts[..., None] * (x - mean).square()).sum(dim=(0, 1)) / number
            with torch.no_grad():
                unbiased = var * number / (number - 1).clamp(min=1)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        scale = self.weight.to(x.dtype) * (var + self.eps).rsqrt()
        return (x - mean) * scale + self.bias.to(x.dtype)
