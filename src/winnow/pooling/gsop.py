"""Global second-order pooling: attention from the correlations of channels and of places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, counted, dense, glorot_linear, shares, uniform_weights
from winnow.pooling.batch_norm import TokenNorm

_PER_ROW = 4  # numbers made of each row of a correlation matrix, as in the original


def second_order(rows: Tensor, weights: Tensor, centred: bool) -> Tensor:
    r"""Return the second moments (B, c, c) of rows (B, c, k) over their columns, which have weights (B, k).

    $$S_{ij} = \sum_l w_l (r_{il} - \bar r_i)(r_{jl} - \bar r_j), \qquad \bar r_i = \sum_l w_l r_{il}$$

    With `centred` false the means are left in.
    """
    if centred:
        rows = rows - (rows * weights[:, None]).sum(dim=2, keepdim=True)
    return (rows * weights[:, None]) @ rows.mT


class RowAttention(nn.Module):
    """From a matrix of second moments to a factor for each of `outputs` channels or places.

    Args:
        size: Rows of the matrix.
        outputs: How many factors.
        rectify: Whether what is made of the rows passes a ReLU.
    """

    def __init__(self, size: int, outputs: int, *, rectify: bool) -> None:
        super().__init__()
        self.rectify = rectify
        self.norm = nn.BatchNorm1d(size)
        self.rows = nn.Parameter(nn.init.xavier_uniform_(torch.empty(size, _PER_ROW, size)))
        self.bias = nn.Parameter(torch.zeros(size, _PER_ROW))
        self.mix = glorot_linear(size * _PER_ROW, outputs, bias=True)

    def forward(self, moments: Tensor) -> Tensor:
        """Return (B, outputs) in (0, 1) of matrices (B, size, size)."""
        x = self.norm(moments.to(self.norm.weight.dtype)).to(moments.dtype)
        x = torch.einsum("bij,irj->bir", x, self.rows.to(x.dtype)) + self.bias.to(x.dtype)
        x = relu(x) if self.rectify else x
        return torch.sigmoid(dense(self.mix, x.flatten(1)))


class GSoP(Pooling):
    r"""Global second-order pooling: channels and places are weighed by how they go together with the others.

    $$g = \frac1n \sum_j \max\big(c \odot f_j,\; s_j f_j\big), \qquad
      c = \phi(\operatorname{Cov}_j(h)), \quad s = \psi(\operatorname{Cov}_k(h')), \qquad
      h_j = \max(\text{BN}(U \max(f_j, 0)), 0)$$

    $\phi$ and $\psi$ normalise a covariance matrix, make four numbers of each row, mix them and end in a sigmoid. The
    places' covariance is n x n, so it takes one number of features only, in one order. It pools the projected map and
    is used once, as in the documents' comparison, where the original is a block inside a network. That comparison
    leaves the means in (`centred=false`), and rectifies the features that places weigh (`rectify=true`), which makes
    every vector non-negative. Weights are the shares of s.

    Reference: Gao, Xie, Wang and Li, "Global Second-order Pooling Convolutional Networks", CVPR 2019.

    Args:
        width: Size of the features.
        positions: Number of features of every image.
        attention: Channels that the correlations are taken of.
        centred: Take covariances, not plain second moments.
        rectify: Rectify the features that places weigh.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "projected"
    takes: ClassVar[Literal["set", "grid", "fixed"]] = "fixed"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"centred": False, "rectify": True}}

    def __init__(
        self, width: int, positions: int, *, attention: int = 128, centred: bool = True, rectify: bool = False
    ) -> None:
        super().__init__()
        if attention < 1:
            raise ValueError(f"GSoP needs at least one channel for its attention, got {attention}")
        self.positions, self.centred, self.rectify = positions, centred, rectify
        self.reduce_channels, self.channel_norm = glorot_linear(width, attention, bias=True), TokenNorm(attention)
        self.reduce_places, self.place_norm = glorot_linear(width, attention, bias=True), TokenNorm(attention)
        self.channels = RowAttention(attention, width, rectify=False)
        self.places = RowAttention(positions, positions, rectify=True)

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d); n is always the same."""
        if features.shape[1] != self.positions:
            raise ValueError(
                f"GSoP was made for {self.positions} local features an image and got {features.shape[1]}: it takes "
                "images of the size it was made for alone"
            )
        x = counted(features, mask)
        uniform = uniform_weights(x, mask)
        h = counted(relu(self.channel_norm(dense(self.reduce_channels, relu(x)), mask)), mask)
        c = self.channels(second_order(h.mT, uniform, self.centred))
        h = counted(relu(self.place_norm(dense(self.reduce_places, relu(x)), mask)), mask)
        s = self.places(second_order(h, h.new_full((), 1 / h.shape[2]).expand(h.shape[0], h.shape[2]), self.centred))
        weighed = torch.maximum(c[:, None] * x, s[..., None] * (relu(x) if self.rectify else x))
        pooled = (uniform[..., None] * weighed).sum(dim=1)
        return Pooled(pooled.to(features.dtype), shares(s * uniform, uniform), None)
