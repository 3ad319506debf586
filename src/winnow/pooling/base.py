"""Base class of all poolings, and the helpers that poolings share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from winnow.errors import ConfigError, DataError
from winnow.functional import PoolingOutput
from winnow.registry import ComponentSettings, show_settings

Stage = Literal["raw", "projected"]
Layout = Literal["set", "grid", "fixed"]


def as_tokens(features: Tensor) -> Tensor:
    """View a feature map (B, C, H, W) as tokens (B, H W, C); return tokens unchanged."""
    if features.dim() == 4:
        return features.flatten(2).mT
    if features.dim() == 3:
        return features
    raise ValueError(
        f"features: expected a map (B, C, H, W) or tokens (B, N, C), got shape {tuple(features.shape)}. "
        "Pass the local features of a batch of images."
    )


class Pooling(nn.Module):
    """Base class of poolings, which turn local features into one vector per image.

    Subclasses implement `pool`. This class handles maps and tokens, masks, autocast, and the checks of shapes and
    dtypes.

    Attributes:
        stage: Input of the pooling: the "raw" features of the backbone, which are projected after pooling, or the
            "projected" ones.
        layout: Layout of the input. A "set" has any number of features in any order. A "grid" is a map of any size
            (B, C, H, W). "fixed" is a constant number of features in a constant order.
        needs_guide: Whether raw features are pooled with weights computed from the projected ones.
        has_weights: Whether features can have different weights, which a heat map shows.
        has_attributes: Whether the pooling has prototypes and returns the fraction of mass matched to each.
        in_features: Channels of the input, or None if any number is accepted.
        guide_features: Channels of the guide; None without a guide.
    """

    stage: ClassVar[Stage] = "raw"
    layout: ClassVar[Layout] = "set"
    needs_guide: ClassVar[bool] = False
    has_weights: ClassVar[bool] = True
    has_attributes: ClassVar[bool] = False
    in_features: int | None = None
    guide_features: int | None = None

    @classmethod
    def local_width(cls, dim: int, settings: ComponentSettings) -> int:
        """Return the number of projected channels for a pooled vector of size `dim`."""
        return dim

    def output_width(self, width: int) -> int:
        """Return the size of the pooled vector for features with `width` channels."""
        return width

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return show_settings(self)

    @abstractmethod
    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d) where `mask` (B, n) is true; None means everywhere.

        A pooling with the layout "grid" gets a map (B, d, H, W) and a mask (B, H, W) instead.
        """

    def pool_guided(self, features: Tensor, guide: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool raw tokens (B, n, C) with weights computed from projected tokens (B, n, d)."""
        raise ValueError(f"guide: {type(self).__name__} takes no guide. Call it without guide=.")

    @overload
    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, guide: Tensor | None = None,
        return_details: Literal[False] = False,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, guide: Tensor | None = None,
        return_details: Literal[True],
    ) -> PoolingOutput: ...  # fmt: skip
    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, guide: Tensor | None = None, return_details: bool = False
    ) -> Tensor | PoolingOutput:
        """Pool a map (B, d, H, W) or tokens (B, N, d) to vectors (B, output_width(d)).

        Args:
            features: Local features, floating point.
            mask: Boolean (B, N) or (B, H, W), true for features to pool. Masked values are never read. Default: all.
            guide: Projected features; only for poolings with `needs_guide`.
            return_details: Return a [`PoolingOutput`][winnow.functional.PoolingOutput] with weights and attributes
                instead of the vector.

        Raises:
            TypeError: If features or guide are no floating-point tensor.
            ValueError: If a shape does not match, or tokens are passed to a pooling with the layout "grid".
            DataError: If all features of an image are masked.
        """
        check_features(features, self.in_features)
        tokens = as_tokens(features)
        flat = None if mask is None else _flat_mask(mask, features, tokens)
        with torch.autocast(features.device.type, enabled=False):  # distances and sums need full precision
            if guide is not None:
                result = self.pool_guided(tokens, self._guide_tokens(guide, tokens), flat)
            elif self.layout != "grid":
                result = self.pool(tokens, flat)
            elif features.dim() == 4:
                rows_and_columns = (features.shape[0], *features.shape[2:])
                result = self.pool(features, None if flat is None else flat.view(rows_and_columns))
            else:
                raise ValueError(
                    f"features: {type(self).__name__} needs a map (B, C, H, W), got tokens {tuple(features.shape)}. "
                    "Pass tokens.mT.unflatten(2, (H, W))."
                )
        return result if return_details else result.vector

    def _guide_tokens(self, guide: Tensor, tokens: Tensor) -> Tensor:
        """Check the guide and return it as tokens."""
        check_features(guide, self.guide_features, "guide")
        found = as_tokens(guide)
        if self.needs_guide and found.shape[:2] != tokens.shape[:2]:
            raise ValueError(
                f"guide: expected (B, n) = {tuple(tokens.shape[:2])} as in features, got {tuple(found.shape[:2])}. "
                "Project the same features that are pooled."
            )
        return found


class MaskedBatchNorm(nn.Module):
    r"""Batch normalization over the unmasked features of a batch.

    $$y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$

    Without a mask it equals `torch.nn.BatchNorm1d` over (B n, d): batch statistics in training, running averages in
    inference.

    Args:
        in_features: Channels of the features.
        momentum: Fraction of the running averages that each batch replaces.
        eps: Constant added to the variance.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, in_features: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.in_features, self.momentum, self.eps = in_features, momentum, eps
        self.weight, self.bias = nn.Parameter(torch.ones(in_features)), nn.Parameter(torch.zeros(in_features))
        self.register_buffer("running_mean", torch.zeros(in_features))
        self.register_buffer("running_var", torch.ones(in_features))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalize tokens (B, n, d) of float32 or float64.

        Masked features do not change the statistics. They are normalized too.
        """
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

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return f"{self.in_features}, momentum={self.momentum}, eps={self.eps}"


def check_features(features: Tensor, in_features: int | None, name: str = "features") -> None:
    """Raise an error unless `features` is a map or tokens with `in_features` channels."""
    if not isinstance(features, Tensor):
        raise TypeError(
            f"{name}: expected a torch.Tensor, got {type(features).__name__}. Convert it with torch.as_tensor."
        )
    if not features.is_floating_point():
        raise TypeError(
            f"{name}: expected a floating-point tensor, got {features.dtype}. Convert it with {name}.float()."
        )
    if features.dim() not in (3, 4):
        as_tokens(features)  # raises
    axis = 1 if features.dim() == 4 else 2
    if in_features is None or features.shape[axis] == in_features:
        return
    shape = tuple(features.shape)
    if features.dim() == 4 and shape[3] == in_features:
        found, remedy = f"{shape}, which looks channels-last (B, H, W, C)", f"Pass {name}.permute(0, 3, 1, 2)."
    elif features.dim() == 3 and shape[1] == in_features:
        found, remedy = f"{shape}, which looks channels-first (B, C, N)", f"Pass {name}.mT."
    else:
        found, remedy = str(shape), f"Pass in_features={shape[axis]} to the constructor, or project the features."
    expected = f"(B, {in_features}, H, W)" if features.dim() == 4 else f"(B, N, {in_features})"
    raise ValueError(f"{name}: expected shape {expected}, got {found}. {remedy}")


def check_at_least(name: str, value: int, least: int, note: str = "") -> None:
    """Raise `ValueError` if a setting is below its minimum."""
    if value < least:
        raise ValueError(f"{name}: expected at least {least}{note}, got {value}.")


def _flat_mask(mask: Tensor, features: Tensor, tokens: Tensor) -> Tensor:
    """Check a mask against its features and view it as (B, n)."""
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"mask: expected a boolean torch.Tensor, got {type(mask).__name__}. Convert it with torch.as_tensor."
        )
    shapes = [tuple(tokens.shape[:2])]
    if features.dim() == 4:
        shapes.append((len(features), *features.shape[2:]))
    if mask.dtype != torch.bool or tuple(mask.shape) not in shapes:
        raise ValueError(
            f"mask: expected torch.bool {' or '.join(map(str, shapes))}, got {mask.dtype} {tuple(mask.shape)}. "
            "Pass one value per feature, true for features to pool."
        )
    mask = mask.flatten(1)
    # A captured or compiled graph cannot raise on values.
    captured = mask.is_cuda and torch.cuda.is_current_stream_capturing()
    if not torch.compiler.is_compiling() and not captured and not mask.any(dim=1).all():
        image = int((~mask.any(dim=1)).nonzero()[0])
        raise DataError(f"mask: all features of image {image} of the batch are masked. Leave at least one unmasked.")
    return mask


def masked_float(features: Tensor, mask: Tensor | None) -> Tensor:
    """Return tokens (B, n, d) in at least float32, with zeros where masked."""
    wide = features.to(torch.promote_types(features.dtype, torch.float32))
    return wide if mask is None else torch.where(mask[..., None], wide, 0.0)


def uniform_weights(features: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weights (B, n) of the average of unmasked tokens (B, n, d)."""
    if mask is None:
        return features.new_full((), 1 / max(features.shape[1], 1)).expand(features.shape[:2])
    return mask.to(features.dtype) / mask.sum(dim=1, keepdim=True)


def display_weights(values: Tensor, uniform: Tensor) -> Tensor:
    """Return non-negative values (B, n) divided by their sum, for display.

    If all values are zero, the result is `uniform`. It has no gradient.
    """
    values = values.detach()
    total = values.sum(dim=1, keepdim=True)
    return torch.where(total > 0, values / torch.where(total > 0, total, 1.0), uniform)


def weighted_sum(features: Tensor, weights: Tensor) -> Tensor:
    r"""Return $\sum_j p_j f_j$ (B, d) of tokens (B, n, d) and weights (B, n)."""
    return torch.bmm(weights[:, None], features).squeeze(1)


def linear_in_dtype(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer in the dtype of its input."""
    return linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))


def glorot_linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    """Return a linear layer with Glorot uniform weights and zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def part_width(name: str, dim: int, setting: str, settings: ComponentSettings) -> int:
    """Return the size of each of the equal parts that make up a vector of size `dim`.

    Raises:
        ConfigError: If `dim` is not a multiple of the number of parts.
    """
    parts = int(getattr(settings, setting))
    if parts > 0 and dim % parts:
        raise ConfigError(
            f"pooling.{setting}: {name} concatenates {parts} vectors, and dim={dim} is not a multiple of {parts}. "
            f"Change dim or pooling.{setting}."
        )
    return dim // max(parts, 1)


def masked_mean(features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mean (B, d) of unmasked tokens (B, n, d) and its weights (B, n)."""
    wide = torch.promote_types(features.dtype, torch.float32)  # a float16 sum of large features would overflow
    if mask is None:
        count = features.shape[1]
        weights = features.new_full((), 1 / max(count, 1), dtype=wide).expand(features.shape[:2])
        return (features.sum(dim=1, dtype=wide) / count).to(features.dtype), weights
    total = mask.sum(dim=1, keepdim=True)
    unmasked = torch.where(mask[..., None], features, 0.0)
    return (unmasked.sum(dim=1, dtype=wide) / total).to(features.dtype), mask.to(wide) / total


def setting_repr(**settings: Any) -> str:
    """Return settings as `name=value, ...` for `extra_repr`."""
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
