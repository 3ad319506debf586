"""The problems that poolings are timed on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from winnow.bench.pooling_rivals import Rival, average
from winnow.errors import ConfigError

MU = 0.3
Size = tuple[int, int, int]
"""Features n, their width d and prototypes m."""


@dataclass(frozen=True)
class Case:
    """One problem.

    Attributes:
        batch: Images.
        size: Features of an image, their width, and prototypes.
        dtype: That of the features; prototypes are float32.
        eps: Sharpness.
        near: Whether half of the features lie within 0.01 of a prototype, where digits are lost most easily.
    """

    batch: int
    size: Size
    dtype: torch.dtype = torch.float32
    eps: float = 5.0
    near: bool = False

    def __str__(self) -> str:
        n, d, m = self.size
        near = f", eps {self.eps:g}, features near prototypes" if self.near else ""
        return f"B {self.batch}, n {n}, d {d}, m {m}, {str(self.dtype).removeprefix('torch.')}{near}"


@dataclass(frozen=True)
class Task:
    """Features (B, n, d) and prototypes (m, d) that want gradients, and those of pooled vectors and attributes."""

    features: Tensor
    prototypes: Tensor
    pooled_gradient: Tensor
    attributes_gradient: Tensor

    def solve(self, rival: Rival, eps: float) -> tuple[list[Tensor], list[Tensor]]:
        """Pool, and go back; return what a rival makes, and the gradients of what it takes."""
        out = rival(self.features, self.prototypes, MU, eps)
        if out.attributes is None:
            made, slopes = [out.vector], [self.pooled_gradient.to(out.vector.dtype)]
        else:
            made = [out.vector, out.attributes]
            slopes = [self.pooled_gradient.to(out.vector.dtype), self.attributes_gradient]
        inputs = [self.features] if rival is average else [self.features, self.prototypes]
        return made, list(torch.autograd.grad(made, inputs, slopes))

    @property
    def bytes(self) -> int:
        """Of features and prototypes."""
        return self.features.nbytes + self.prototypes.nbytes

    def elsewhere(self) -> Task:
        """The same with features at another place in memory."""
        features = self.features.detach().clone().requires_grad_()
        return Task(features, self.prototypes, self.pooled_gradient, self.attributes_gradient)

    def wide(self) -> Task:
        """The same in float64."""
        features, prototypes = (one.detach().double().requires_grad_() for one in (self.features, self.prototypes))
        return Task(features, prototypes, self.pooled_gradient.double(), self.attributes_gradient.double())


def parse_size(text: str) -> Size:
    """Return the size that is written as NxDxM.

    Raises:
        ConfigError: if it is not written so.
    """
    words = text.split("x")
    if len(words) != 3 or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"a size is features, width and prototypes, such as 49x128x64, not '{text}'")
    n, d, m = map(int, words)
    return n, d, m


def made_up_task(case: Case, device: torch.device, seed: int = 0) -> Task:
    """Return features around prototypes, some near and most far; one in six within the unit ball, as if projected."""
    generator = torch.Generator(device).manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    (n, d, m), batch = case.size, case.batch
    prototypes = normalize(noise(m, d), dim=1) * (0.7 + 0.3 * uniform(m, 1))
    nearest = prototypes[(m * uniform(batch, n)).long().clamp(max=m - 1)]
    spread = 0.3 + 2.7 * uniform(batch, n, 1)
    features = normalize(nearest + spread * noise(batch, n, d) / d**0.5, dim=2) * (0.5 + 0.5 * noise(batch, n, 1)).exp()
    if case.near:
        close = nearest[:, ::2]
        features[:, ::2] = close + 0.01 * normalize(noise(*close.shape), dim=2)
    return Task(
        features.to(case.dtype).requires_grad_(),
        prototypes.requires_grad_(),
        noise(batch, d).to(case.dtype),
        noise(batch, m),
    )
