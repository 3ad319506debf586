"""What every pooling shares: maps and tokens in, one vector per image out."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal, overload

import torch
from torch import Tensor, nn

from winnow.functional import Pooled


def as_tokens(features: Tensor) -> Tensor:
    """View a feature map (B, C, H, W) as tokens (B, H W, C); tokens pass through."""
    if features.dim() == 4:
        return features.flatten(2).mT
    if features.dim() == 3:
        return features
    raise ValueError(f"expected a map (B, C, H, W) or tokens (B, N, C), got a tensor of shape {tuple(features.shape)}")


class Pooling(nn.Module):
    """Base of all poolings. A subclass writes `pool`, over tokens; maps and masks are handled here.

    Attributes:
        pools: Whether it pools the backbone's "raw" features, to be projected after, or the "projected" ones.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "raw"

    @abstractmethod
    def pool(self, features: Tensor, mask: Tensor) -> Pooled:
        """Pool tokens (B, n, d) where `mask` (B, n) is true."""

    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[True]) -> Pooled: ...
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: bool = False) -> Tensor | Pooled:
        """Pool a map (B, d, H, W) or tokens (B, N, d) to (B, d).

        Args:
            features: Local features.
            mask: (B, N) or (B, H, W) bool, true for the features that count; default all.
            details: Return a [`Pooled`][winnow.functional.Pooled] with weights and attributes instead of the vector.
        """
        tokens = as_tokens(features)
        if mask is None:
            mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        elif mask.dtype != torch.bool or mask.flatten(1).shape != tokens.shape[:2]:
            wanted = tuple(tokens.shape[:2])
            raise ValueError(
                f"mask must be bool with one value per feature, {wanted}, got {mask.dtype} {tuple(mask.shape)}"
            )
        result = self.pool(tokens, mask.flatten(1))
        return result if details else result.pooled


def masked_mean(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (B, d) of the features (B, n, d) under a mask, and its uniform weights (B, n)."""
    weights = mask / mask.sum(dim=1, keepdim=True)
    kept = torch.where(mask[..., None], features, 0.0)
    return kept.sum(dim=1) / mask.sum(dim=1, keepdim=True), weights
