"""The head: linear projection and pooling, in the order that the pooling needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from winnow.errors import ConfigError
from winnow.functional import PoolingOutput
from winnow.models.config import HeadConfig
from winnow.pooling import POOLINGS, Pooling, PrototypePooling
from winnow.pooling.base import as_tokens
from winnow.registry import ComponentSettings

ZERO_VARIANCE = 1e-10
"""Fraction of the largest variance below which a variance is rounding noise of single precision."""


class Head(nn.Module):
    """Map local features (B, C, H, W) or (B, N, C) to embeddings (B, dim).

    A pooling of stage "raw" pools the features, then projects the result. A pooling of stage "projected" projects
    first. The projection is linear without bias, so both orders are the same function for average pooling. A guided
    pooling pools the raw features by weights from the projected ones.

    Args:
        in_features: Channels C of the local features.
        dim: Size of the embedding.
        pooling: Name, or name and settings, of the pooling.
        positions: Number of local features per image, for poolings that need a fixed number.
        projection: Use a projection. Without one, the pooling works on the features as they are.
        norm: Normalization layer. Default: none. Batch norm uses the images of its process.

    Raises:
        ConfigError: If `projection` is false and the pooled features do not have size `dim`.
    """

    def __init__(
        self,
        in_features: int,
        dim: int,
        pooling: str | Mapping[str, Any] | ComponentSettings,
        *,
        positions: int = 49,
        projection: bool = True,
        norm: HeadConfig | None = None,
    ) -> None:
        super().__init__()
        settings = POOLINGS.resolve(pooling)
        kind = POOLINGS[settings.name]
        local = kind.local_width(dim, settings)  # below dim if the pooling concatenates several vectors
        self.projection: nn.Module = nn.Identity()
        if projection:
            self.projection = nn.Linear(in_features, local, bias=False)
            nn.init.xavier_uniform_(self.projection.weight)
        elif in_features != local or kind.needs_guide:
            raise ConfigError(
                f"dim: a head without projection has size {in_features} with pooling '{settings.name}', got {dim}. "
                "Use a projection."
            )
        projects_first = kind.stage == "projected"
        self.pooling: Pooling = POOLINGS.build(
            settings, in_features=local if projects_first else in_features, dim=dim, positions=positions
        )
        norm = norm or HeadConfig()
        self.norm_position = norm.position
        before_projection = norm.position == "pooled" and not projects_first
        self.norm = make_norm(norm, self.pooling.output_width(in_features) if before_projection else dim)

    @torch.no_grad()
    def init_projection(self, *, vectors: Tensor | None = None, directions: Tensor | None = None) -> None:
        """Set the rows of the projection to principal directions, keeping its norm.

        A projection on principal directions keeps as much variance of the backbone features as `dim` allows. Rows are
        orthonormal up to one scale. If fewer directions than rows are given, the other rows stay random.

        Args:
            vectors: Image vectors (N, C), such as averaged local features, to compute the directions from.
            directions: Precomputed directions (k, C), most important first.

        Raises:
            ValueError: If not exactly one of both is given, or the head has no projection.
        """
        if not isinstance(self.projection, nn.Linear):
            raise ValueError("Head: no projection to initialize. Create the head with projection=True.")
        if vectors is not None and directions is None:
            directions = principal_directions(vectors)
        elif directions is None or vectors is not None:
            raise ValueError("init_projection: expected exactly one of vectors and directions.")
        weight = self.projection.weight
        rows = directions[: len(weight)]
        weight[: len(rows)] = rows.to(weight) * weight.norm() / len(weight) ** 0.5

    @property
    def prototypes_ready(self) -> bool:
        """Whether the prototypes were set from data; true for poolings without prototypes."""
        return not isinstance(self.pooling, PrototypePooling) or self.pooling.prototypes_ready

    def project(self, features: Tensor) -> Tensor:
        """Return the projected local features (B, n, d) of a map or of tokens."""
        if features.ndim == 4 and features.is_cuda and isinstance(self.projection, nn.Linear):
            # A convolution runs at the precision of the backbone's convolutions (TF32 by default). It is seven times
            # as fast as a float32 product, which would take most of the time that learned pooling adds to a step.
            return as_tokens(conv2d(features, self.projection.weight[:, :, None, None]))
        projected: Tensor = self.projection(as_tokens(features))
        return projected

    @overload
    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, return_details: Literal[False] = False
    ) -> Tensor: ...
    @overload
    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, return_details: Literal[True]
    ) -> PoolingOutput: ...
    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, return_details: bool = False
    ) -> Tensor | PoolingOutput:
        """Return embeddings (B, dim).

        With `return_details` the result also contains pooling weights and attributes.

        Args:
            features: Feature map (B, C, H, W) or tokens (B, N, C).
            mask: (B, N) or (B, H, W) bool; true for features to pool. Default: all.
            return_details: Return a [`PoolingOutput`][winnow.functional.PoolingOutput].
        """
        # Prototype distances and the weighted sum stay in float32 under autocast; both are cheap.
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self._dtype(features))
            flat = None if mask is None else mask.flatten(1)
            result: PoolingOutput
            if self.pooling.stage == "projected":
                result = self.pooling(self.project(features), flat, return_details=True)
            else:
                guide = self.project(features) if self.pooling.needs_guide else None
                result = self.pooling(features, flat, guide=guide, return_details=True)
                pooled = self.norm(result.vector) if self.norm_position == "pooled" else result.vector
                result = result._replace(vector=self.projection(pooled))
            if self.pooling.stage == "projected" or self.norm_position == "embedding":
                result = result._replace(vector=self.norm(result.vector))
        return result if return_details else result.vector

    def _dtype(self, features: Tensor) -> torch.dtype:
        if isinstance(self.projection, nn.Linear):
            return self.projection.weight.dtype
        return torch.promote_types(features.dtype, torch.float32)


def make_norm(config: HeadConfig, width: int) -> nn.Module:
    """Return the normalization layer of a head for vectors (B, width)."""
    if config.norm == "layer":
        return nn.LayerNorm(width, elementwise_affine=config.affine)
    return nn.BatchNorm1d(width, affine=config.affine) if config.norm == "batch" else nn.Identity()


@torch.no_grad()
def principal_directions(vectors: Tensor) -> Tensor:
    """Return the principal directions (C, C) of vectors (N, C).

    Rows are ordered by decreasing variance.

    Directions without variance, which few vectors leave many of, are a fixed orthonormal completion. They do not
    depend on rounding, so runs agree for any number of threads.
    """
    vectors = vectors.double().cpu()  # computed once, and equal on every device
    centered = vectors - vectors.mean(dim=0)
    variances, columns = torch.linalg.eigh(centered.mT @ centered)
    directions: Tensor = columns.flip(1).mT
    rank = int((variances > ZERO_VARIANCE * variances.max()).sum())
    if rank < len(directions):
        others = torch.randn(
            len(directions), len(directions) - rank, generator=torch.Generator().manual_seed(0)
        ).double()
        spanned = directions[:rank].mT
        others -= spanned @ (spanned.mT @ others)
        directions = torch.cat([spanned, torch.linalg.qr(others).Q], dim=1).mT
    # The sign of a direction is arbitrary; a fixed sign keeps runs equal across machines.
    return directions * torch.where(directions.sum(dim=1, keepdim=True) < 0, -1.0, 1.0)
