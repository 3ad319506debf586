"""What every pooling shares: maps and tokens in, one vector per image out."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal, overload

import torch
from torch import Tensor, nn

from winnow.errors import DataError
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
        has_attributes: Whether it has prototypes and tells each one's share.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "raw"
    has_attributes: ClassVar[bool] = False

    @abstractmethod
    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d) where `mask` (B, n) is true; all of them where it is None."""

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

        Raises:
            ValueError: for features or a mask of a wrong shape.
            DataError: if all features of an image are masked.
        """
        tokens = as_tokens(features)
        result = self.pool(tokens, None if mask is None else _flat_mask(mask, features, tokens))
        return result if details else result.pooled


def _flat_mask(mask: Tensor, features: Tensor, tokens: Tensor) -> Tensor:
    """Check a mask against the features it belongs to and view it as (B, n)."""
    shapes = [tuple(tokens.shape[:2])]
    if features.dim() == 4:
        shapes.append((len(features), *features.shape[2:]))
    if mask.dtype != torch.bool or tuple(mask.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(
            f"mask must be bool with one value per feature, {wanted}, got {mask.dtype} {tuple(mask.shape)}"
        )
    mask = mask.flatten(1)
    # A graph cannot raise on values; there, as everywhere, an image needs at least one feature.
    captured = mask.is_cuda and torch.cuda.is_current_stream_capturing()
    if not torch.compiler.is_compiling() and not captured and not mask.any(dim=1).all():
        image = int((~mask.any(dim=1)).nonzero()[0])
        raise DataError(f"every feature of image {image} of the batch is masked; leave at least one unmasked")
    return mask


def masked_mean(features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mean (B, d) of the features (B, n, d) under a mask, and its uniform weights (B, n)."""
    wide = torch.promote_types(features.dtype, torch.float32)  # a float16 sum of large features would overflow
    if mask is None:
        count = features.shape[1]
        weights = features.new_full((), 1 / max(count, 1), dtype=wide).expand(features.shape[:2])
        return (features.sum(dim=1, dtype=wide) / count).to(features.dtype), weights
    total = mask.sum(dim=1, keepdim=True)
    kept = torch.where(mask[..., None], features, 0.0)
    return (kept.sum(dim=1, dtype=wide) / total).to(features.dtype), mask.to(wide) / total
