"""The head: projection and pooling, in the order the pooling asks for."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from winnow.functional import Pooled
from winnow.pooling import POOLINGS, Pooling
from winnow.pooling.base import as_tokens
from winnow.pooling.prototypes import PrototypePooling
from winnow.registry import PartSettings

NO_VARIANCE = 1e-10
"""Of the largest: what rounding makes of none in features of single precision."""


class Head(nn.Module):
    """Local features (B, C, H, W) or (B, N, C) to embeddings (B, dim).

    A pooling of the "raw" map is followed by the projection, one of the "projected" map comes after it. The
    projection is linear without bias, so for average pooling the two orders are the same function. A guided pooling
    gets both: it pools the raw map by the projected one.

    Args:
        width: Channels C of the local features.
        dim: Size of the embedding.
        pooling: Name and settings of the pooling.
        positions: Number of local features of an image, for a pooling that takes one number only.
    """

    def __init__(self, width: int, dim: int, pooling: PartSettings, *, positions: int = 49) -> None:
        super().__init__()
        kind = POOLINGS[pooling["name"]]
        projects_first = kind.pools == "projected"
        local = kind.local_width(dim, pooling)  # a pooling that makes several vectors of each projects to less than dim
        self.projection = nn.Linear(width, local, bias=False)
        nn.init.xavier_uniform_(self.projection.weight)
        self.pooling: Pooling = POOLINGS.build(
            pooling, width=local if projects_first else width, dim=dim, positions=positions
        )

    @torch.no_grad()
    def start_from(self, vectors: Tensor) -> None:
        """Set the projection to the principal directions of image vectors (N, C), at the scale it has.

        It then loses as little of the backbone's features as a projection can, and training only has to improve on
        them; a random one throws away what a small data set cannot teach again. Its rows are orthonormal up to the
        scale, so that with dim = C it loses nothing; with dim > C the rows beyond stay random.
        """
        self.start_along(principal_directions(vectors))

    @torch.no_grad()
    def start_along(self, directions: Tensor) -> None:
        """Set the projection to directions (k, C), the first of them first, at the scale it has."""
        weight = self.projection.weight
        kept = directions[: len(weight)]
        weight[: len(kept)] = kept.to(weight) * weight.norm() / len(weight) ** 0.5

    @property
    def is_ready(self) -> bool:
        """Whether a pooling that sets its prototypes from data has done so."""
        return not isinstance(self.pooling, PrototypePooling) or self.pooling.is_ready

    def project(self, features: Tensor) -> Tensor:
        """Return projected local features (B, n, local) of a map or of tokens."""
        if features.ndim == 4 and features.is_cuda:
            # A convolution is computed at the precision of the backbone's own (TF32, unless torch is told otherwise):
            # seven times as fast as a product in float32, which would be most of what learned pooling adds to a step.
            return as_tokens(conv2d(features, self.projection.weight[:, :, None, None]))
        projected: Tensor = self.projection(as_tokens(features))
        return projected

    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[True]) -> Pooled: ...
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: bool = False) -> Tensor | Pooled:
        """Return embeddings, or with `details` a `Pooled` that also has weights and attributes."""
        # Distances to prototypes and the pooled sum keep full precision under autocast; both are small.
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.projection.weight.dtype)
            flat = None if mask is None else mask.flatten(1)
            result: Pooled
            if self.pooling.pools == "projected":
                result = self.pooling(self.project(features), flat, details=True)
            else:
                guide = self.project(features) if self.pooling.guided else None
                result = self.pooling(features, flat, guide=guide, details=True)
                result = result._replace(pooled=self.projection(result.pooled))
        return result if details else result.pooled


@torch.no_grad()
def principal_directions(vectors: Tensor) -> Tensor:
    """Return the principal directions (C, C) of vectors (N, C), as rows, that of the most variance first.

    Those without variance, of which few images leave many, are any that are at right angles to the others. Which ones
    is settled here and not by rounding, or runs would differ with the number of threads.
    """
    vectors = vectors.double().cpu()  # once, and the same on every device
    centred = vectors - vectors.mean(dim=0)
    variances, columns = torch.linalg.eigh(centred.mT @ centred)
    directions: Tensor = columns.flip(1).mT
    rank = int((variances > NO_VARIANCE * variances.max()).sum())
    if rank < len(directions):
        others = torch.randn(
            len(directions), len(directions) - rank, generator=torch.Generator().manual_seed(0)
        ).double()
        kept = directions[:rank].mT
        others -= kept @ (kept.mT @ others)
        directions = torch.cat([kept, torch.linalg.qr(others).Q], dim=1).mT
    # A direction's sign is arbitrary; fixing it keeps runs the same across machines.
    return directions * torch.where(directions.sum(dim=1, keepdim=True) < 0, -1.0, 1.0)
