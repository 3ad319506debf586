"""NetVLAD: residuals to cluster centres."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, counted, dense, part_width
from winnow.registry import PartSettings

_SHARPNESS = 10.0  # alpha of the assignment at the start, where a feature is nearest to one centre


def vlad(features: Tensor, assignment: Tensor, centres: Tensor) -> Tensor:
    r"""Return $V_k = \sum_j a_{jk} (f_j - c_k)$, each scaled to length 1, one after another (B, K d).

    Args:
        features: (B, n, d).
        assignment: (B, n, K), zero where features do not count.
        centres: (K, d).
    """
    residuals = assignment.mT @ features - assignment.sum(dim=1)[..., None] * centres
    # A cluster that next to no feature belongs to stays near zero: normalize divides by 1e-12 at least.
    return normalize(residuals, dim=2).flatten(1)


class NetVLAD(Pooling):
    r"""Residuals of the features to learned cluster centres, summed by soft assignment.

    $$V_k = \sum_j a_{jk} (f_j - c_k), \qquad a_j = \operatorname{softmax}(A f_j + b), \qquad
      g = \Big(\frac{V_1}{\lVert V_1 \rVert}, \dots, \frac{V_K}{\lVert V_K \rVert}\Big)$$

    It pools the projected map, K vectors of size dim / K: the documents' 8x16 is `dim=128 pooling.clusters=8`, their
    64x128 is `dim=8192 pooling.clusters=64`. The assignment starts as the softmax of $-\alpha \lVert f_j - c_k
    \rVert^2$ and is then free, as in the original; the centres start at random where the original clusters features.
    The documents' comparison does not scale features to unit length first (`normalise=false`).

    Reference: Arandjelović, Gronat, Torii, Pajdla and Sivic, "NetVLAD: CNN architecture for weakly supervised place
    recognition", CVPR 2016.

    Args:
        width: Size of the features.
        clusters: Number of centres K; the embedding's size must be a multiple of it.
        normalise: Scale features to unit length first.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "projected"
    has_weights: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"normalise": False}}

    def __init__(self, width: int, *, clusters: int = 8, normalise: bool = True) -> None:
        super().__init__()
        if clusters < 1:
            raise ValueError(f"NetVLAD needs at least one cluster, got {clusters}")
        self.normalise = normalise
        self.centres = nn.Parameter(normalize(torch.randn(clusters, width), dim=1))
        self.assign = nn.Linear(width, clusters)
        with torch.no_grad():
            self.assign.weight.copy_(2 * _SHARPNESS * self.centres)
            self.assign.bias.copy_(-_SHARPNESS * self.centres.square().sum(dim=1))

    @classmethod
    def local_width(cls, dim: int, settings: PartSettings) -> int:
        """Return dim / K."""
        return part_width("netvlad", dim, "clusters", settings)

    def output_width(self, width: int) -> int:
        """Return K d."""
        return len(self.centres) * width

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d) to (B, K d)."""
        x = counted(features, mask)
        if self.normalise:
            length = torch.linalg.vector_norm(x, dim=2, keepdim=True)
            x = torch.where(length > 0, x / torch.where(length > 0, length, 1.0), 0.0)  # a zero has no direction
        a = dense(self.assign, x).softmax(dim=2)
        if mask is not None:
            a = torch.where(mask[..., None], a, 0.0)
        return Pooled(vlad(x, a, self.centres.to(x.dtype)).to(features.dtype), None, None)
