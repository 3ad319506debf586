"""What every pooling shares: maps and tokens in, one vector per image out."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from winnow.errors import ConfigError, DataError
from winnow.functional import Pooled
from winnow.registry import PartSettings


def as_tokens(features: Tensor) -> Tensor:
    """View a feature map (B, C, H, W) as tokens (B, H W, C); tokens pass through."""
    if features.dim() == 4:
        return features.flatten(2).mT
    if features.dim() == 3:
        return features
    raise ValueError(f"expected a map (B, C, H, W) or tokens (B, N, C), got a tensor of shape {tuple(features.shape)}")


class Pooling(nn.Module):
    """Base of all poolings. A subclass writes `pool`; maps, masks and autocast are handled here.

    Attributes:
        pools: Whether it pools the backbone's "raw" features, to be projected after, or the "projected" ones.
        takes: A "set" of features of any number and in any order; a "grid", that is a map of any size, for whose rows
            and columns it has a use; or a "fixed" number of features in a fixed order.
        guided: Whether it pools the raw features by what it reads off the projected ones.
        has_weights: Whether some features can weigh more than others; if not, there is no heat map.
        has_attributes: Whether it has prototypes and tells each one's share.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "raw"
    takes: ClassVar[Literal["set", "grid", "fixed"]] = "set"
    guided: ClassVar[bool] = False
    has_weights: ClassVar[bool] = True
    has_attributes: ClassVar[bool] = False

    @classmethod
    def local_width(cls, dim: int, settings: PartSettings) -> int:
        """Return the size of the projected features from which these settings make vectors of size `dim`."""
        return dim

    def output_width(self, width: int) -> int:
        """Return the size of the pooled vector for features of a size."""
        return width

    @abstractmethod
    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d) where `mask` (B, n) is true; all of them where it is None.

        A pooling that takes a grid gets the map (B, d, H, W) and a mask (B, H, W) instead.
        """

    def pool_guided(self, features: Tensor, guide: Tensor, mask: Tensor | None) -> Pooled:
        """Pool raw tokens (B, n, C) by what is read off the projected ones, (B, n, d)."""
        raise ValueError(f"{type(self).__name__} takes no guide: it pools its features alone")

    @overload
    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, guide: Tensor | None = None,
        details: Literal[False] = False,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, guide: Tensor | None = None, details: Literal[True]
    ) -> Pooled: ...
    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, guide: Tensor | None = None, details: bool = False
    ) -> Tensor | Pooled:
        """Pool a map (B, d, H, W) or tokens (B, N, d) to (B, output_width(d)).

        Args:
            features: Local features.
            mask: (B, N) or (B, H, W) bool, true for the features that count; default all.
            guide: The projected features, for a pooling that is guided by them.
            details: Return a [`Pooled`][winnow.functional.Pooled] with weights and attributes instead of the vector.

        Raises:
            ValueError: for features or a mask of a wrong shape, or tokens where rows and columns are needed.
            DataError: if all features of an image are masked.
        """
        tokens = as_tokens(features)
        flat = None if mask is None else _flat_mask(mask, features, tokens)
        with torch.autocast(features.device.type, enabled=False):  # what is weighed here is small, and must be exact
            if guide is not None:
                result = self.pool_guided(tokens, as_tokens(guide), flat)
            elif self.takes != "grid":
                result = self.pool(tokens, flat)
            elif features.dim() == 4:
                rows_and_columns = (features.shape[0], *features.shape[2:])
                result = self.pool(features, None if flat is None else flat.view(rows_and_columns))
            else:
                raise ValueError(
                    f"{type(self).__name__} needs a map (B, C, H, W), whose rows and columns it knows, and got tokens "
                    f"{tuple(features.shape)}: lay them out by tokens.mT.unflatten(2, (H, W))"
                )
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


def counted(features: Tensor, mask: Tensor | None) -> Tensor:
    """Return tokens (B, n, d) in at least float32, zero where they do not count."""
    wide = features.to(torch.promote_types(features.dtype, torch.float32))
    return wide if mask is None else torch.where(mask[..., None], wide, 0.0)


def uniform_weights(features: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weights (B, n) of an average of tokens (B, n, d): one over the number that count."""
    if mask is None:
        return features.new_full((), 1 / max(features.shape[1], 1)).expand(features.shape[:2])
    return mask.to(features.dtype) / mask.sum(dim=1, keepdim=True)


def shares(values: Tensor, uniform: Tensor) -> Tensor:
    """Return values (B, n), none negative, divided by their sum; where all are zero the uniform weights.

    They are for showing, and carry no gradient.
    """
    values = values.detach()
    total = values.sum(dim=1, keepdim=True)
    return torch.where(total > 0, values / torch.where(total > 0, total, 1.0), uniform)


def weighted_sum(features: Tensor, weights: Tensor) -> Tensor:
    r"""Return $\sum_j p_j f_j$ (B, d) of tokens (B, n, d) and weights (B, n)."""
    return torch.bmm(weights[:, None], features).squeeze(1)


def dense(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer in the precision of what it is applied to."""
    return linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))


def glorot_linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    """Make a linear layer with Glorot's uniform weights and no bias, or one of zeros."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def part_width(name: str, dim: int, setting: str, settings: PartSettings) -> int:
    """Return the size of each part of a vector of size `dim` that a pooling puts together of as many as a setting says.

    Raises:
        ConfigError: where that is no whole number.
    """
    parts = int(settings[setting])
    if parts > 0 and dim % parts:
        raise ConfigError(f"pooling '{name}' makes {parts} equal parts, which {dim} is no multiple of: "
                          f"set dim or pooling.{setting} so that it is")  # fmt: skip
    return dim // max(parts, 1)


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
