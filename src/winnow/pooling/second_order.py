"""Second-order poolings: GSoP, SOLAR, and rank-k bilinear pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from winnow.functional import PoolingOutput
from winnow.pooling.base import (
    Layout,
    MaskedBatchNorm,
    Pooling,
    Stage,
    check_at_least,
    display_weights,
    glorot_linear,
    linear_in_dtype,
    masked_float,
    setting_repr,
    uniform_weights,
    weighted_sum,
)
from winnow.pooling.mean_max import check_power, power_mean

_PER_ROW = 4  # values computed from each row of a covariance matrix, as in the paper


def second_order(rows: Tensor, weights: Tensor, centered: bool) -> Tensor:
    r"""Return second moments (B, c, c) of rows (B, c, k) with column weights (B, k).

    $$S_{ij} = \sum_l w_l (r_{il} - \bar r_i)(r_{jl} - \bar r_j), \qquad \bar r_i = \sum_l w_l r_{il}$$

    With `centered` false, the means are not subtracted.
    """
    if centered:
        rows = rows - (rows * weights[:, None]).sum(dim=2, keepdim=True)
    return (rows * weights[:, None]) @ rows.mT


class RowAttention(nn.Module):
    """Network from a matrix of second moments to one factor per channel or location.

    Args:
        size: Rows of the matrix.
        outputs: Number of factors.
        rectify: Apply a ReLU to the values computed from the rows.
    """

    def __init__(self, size: int, outputs: int, *, rectify: bool) -> None:
        super().__init__()
        self.rectify = rectify
        self.norm = nn.BatchNorm1d(size)
        self.rows = nn.Parameter(nn.init.xavier_uniform_(torch.empty(size, _PER_ROW, size)))
        self.bias = nn.Parameter(torch.zeros(size, _PER_ROW))
        self.mix = glorot_linear(size * _PER_ROW, outputs, bias=True)

    def forward(self, moments: Tensor) -> Tensor:
        """Return factors (B, outputs) in (0, 1) for matrices (B, size, size)."""
        x = self.norm(moments.to(self.norm.weight.dtype)).to(moments.dtype)
        x = torch.einsum("bij,irj->bir", x, self.rows.to(x.dtype)) + self.bias.to(x.dtype)
        x = relu(x) if self.rectify else x
        return torch.sigmoid(linear_in_dtype(self.mix, x.flatten(1)))


class GSoP(Pooling):
    r"""Global second-order pooling: channel and location weights from covariances.

    $$g = \frac1n \sum_j \max\big(c \odot f_j,\; s_j f_j\big), \qquad
      c = \phi(\operatorname{Cov}_j(h)), \quad s = \psi(\operatorname{Cov}_k(h')), \qquad
      h_j = \max(\text{BN}(U \max(f_j, 0)), 0)$$

    $\phi$ and $\psi$ normalize a covariance matrix, compute four values from each row, and mix them into a sigmoid.
    The covariance of locations is n x n, so the number and order of features are constant.

    Reference: Gao, Xie, Wang, Li, "Global Second-order Pooling Convolutional Networks", CVPR 2019.
    Use when: all images have one size and correlations of channels are informative.
    Differences: used once, on projected features, as in [Thesis]; the paper adds blocks to a network. The comparison
        of [Thesis] does not subtract means (`centered=False`) and rectifies the features that locations weight
        (`rectify=True`), which makes all vectors non-negative. Weights are s, normalized.

    Args:
        in_features: Channels of the features.
        positions: Number of features of every image.
        attention: Channels of which covariances are computed, at least 1.
        centered: Use covariances instead of uncentered second moments.
        rectify: Rectify the features that locations weight.
    """

    stage: ClassVar[Stage] = "projected"
    layout: ClassVar[Layout] = "fixed"
    aliases: ClassVar[Mapping[str, str]] = {"centred": "centered"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"centered": False, "rectify": True}}

    def __init__(
        self, in_features: int, positions: int, *, attention: int = 128, centered: bool = True, rectify: bool = False
    ) -> None:
        super().__init__()
        check_at_least("attention", attention, 1)
        self.in_features, self.positions = in_features, positions
        self.centered, self.rectify = centered, rectify
        self.reduce_channels = glorot_linear(in_features, attention, bias=True)
        self.channel_norm = MaskedBatchNorm(attention)
        self.reduce_places = glorot_linear(in_features, attention, bias=True)
        self.place_norm = MaskedBatchNorm(attention)
        self.channels = RowAttention(attention, in_features, rectify=False)
        self.places = RowAttention(positions, positions, rectify=True)

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d) with constant n."""
        if features.shape[1] != self.positions:
            raise ValueError(
                f"features: expected {self.positions} local features per image, got {features.shape[1]}. "
                f"Resize images to the size GSoP was built for, or pass positions={features.shape[1]}."
            )
        x = masked_float(features, mask)
        uniform = uniform_weights(x, mask)
        reduced = self.channel_norm(linear_in_dtype(self.reduce_channels, relu(x)), mask)
        h = masked_float(relu(reduced), mask)
        c = self.channels(second_order(h.mT, uniform, self.centered))
        reduced = self.place_norm(linear_in_dtype(self.reduce_places, relu(x)), mask)
        h = masked_float(relu(reduced), mask)
        s = self.places(second_order(h, h.new_full((), 1 / h.shape[2]).expand(h.shape[0], h.shape[2]), self.centered))
        weighted = torch.maximum(c[:, None] * x, s[..., None] * (relu(x) if self.rectify else x))
        pooled = (uniform[..., None] * weighted).sum(dim=1)
        return PoolingOutput(pooled.to(features.dtype), display_weights(s * uniform, uniform), None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(
            in_features=self.in_features,
            positions=self.positions,
            attention=self.reduce_channels.out_features,
            centered=self.centered,
            rectify=self.rectify,
        )


def second_order_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Return attention over the unmasked features.

    $\operatorname{softmax}(q k^\top / \sqrt d)\, v$

    Args:
        queries: (B, n, d).
        keys: (B, n, d).
        values: (B, n, v).
        mask: Boolean (B, n), true for features to attend to. Default: all.
    """
    scores = queries @ keys.mT / queries.shape[2] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return torch.bmm(scores.softmax(dim=2), values)


class SOLAR(Pooling):
    r"""Second-order attention between features, then generalized mean pooling.

    $$f'_j = f_j + V \sum_k \operatorname{softmax}_k\Big(\frac{q_j^\top q'_k}{\sqrt{c}}\Big) H f_k, \qquad
      q = \max(\text{BN}(Q f), 0), \; q' = \max(\text{BN}(K f), 0), \qquad
      g = \operatorname{GeM}(f')$$

    V starts at zero, so the layer starts as [`GeM`][winnow.pooling.GeM].

    Reference: Ng, Balntas, Tian, Mikolajczyk, "SOLAR: Second-Order Loss and Attention for Image Retrieval",
        ECCV 2020.
    Use when: distant locations of the same object should reinforce each other.
    Differences: the attention only, used once, without the second-order loss; the paper has blocks in two stages of
        the network and a whitening layer. Weights: as for the generalized mean.

    Args:
        in_features: Channels of the features.
        reduction: Ratio of channels to the size of queries, keys, and values, at least 1.
        p: Initial power of the mean, above 0.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"reduction": 1}}

    def __init__(self, in_features: int, *, reduction: int = 2, p: float = 3.0) -> None:
        super().__init__()
        check_at_least("reduction", reduction, 1)
        self.initial_p = check_power(p)
        inner = max(1, in_features // reduction)
        self.in_features, self.reduction = in_features, reduction
        self.query, self.query_norm = glorot_linear(in_features, inner), MaskedBatchNorm(inner)
        self.key, self.key_norm = glorot_linear(in_features, inner), MaskedBatchNorm(inner)
        self.value, self.output = glorot_linear(in_features, inner, bias=True), nn.Linear(inner, in_features)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.p = nn.Parameter(torch.tensor(float(p)))

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d)."""
        x = masked_float(features, mask)
        q = relu(self.query_norm(linear_in_dtype(self.query, x), mask))
        k = relu(self.key_norm(linear_in_dtype(self.key, x), mask))
        attended = second_order_attention(q, k, linear_in_dtype(self.value, x), mask)
        x = x + linear_in_dtype(self.output, attended)
        uniform = uniform_weights(x, mask)
        pooled, fractions = power_mean(x, self.p.to(x.dtype), uniform)
        return PoolingOutput(pooled.to(features.dtype), display_weights(fractions, uniform), None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(in_features=self.in_features, reduction=self.reduction, p=self.initial_p)


class RankKBilinearPooling(Pooling):
    r"""Factorized bilinear pooling: average of bilinear forms, each of rank k.

    $$g_o = \frac1n \sum_j f_j^\top W_o f_j, \qquad W_o = \sum_{r=1}^{k} u_{ro} v_{ro}^\top, \qquad \text{that is} \quad
      g = \frac1n \sum_j \sum_{r=1}^{k} (U_r f_j) \odot (V_r f_j)$$

    Row o of $U_r$ is $u_{ro}$. With k = 1 it is Hadamard low-rank bilinear pooling, in which each $W_o$ has
    rank one. With k equal to `in_features`, $W_o$ can be any matrix. Input: projected features.

    Reference: [RK-FBP] for rank k; Kim, On, Lim, Kim, Ha, Zhang, "Hadamard Product for Low-rank Bilinear Pooling",
        ICLR 2017, for k = 1.
    Use when: products of channels are informative, and a second-moment matrix of all channels is too large.
    Differences: only the projection of [RK-FBP], without nested modules of higher order. Both factors see one image, so
        only the symmetric part of $W_o$ counts; the ICLR 2017 paper pairs images with text, applies tanh, and adds a
        linear layer. No biases. Weights are the lengths of the summands of g, normalized.

    Args:
        in_features: Channels of the features, and size of the pooled vector.
        rank: Rank k of the bilinear forms, at least 1. 1 is Hadamard low-rank bilinear pooling.
    """

    stage: ClassVar[Stage] = "projected"

    def __init__(self, in_features: int, *, rank: int = 4) -> None:
        super().__init__()
        check_at_least("rank", rank, 1)
        self.in_features, self.rank = in_features, rank
        self.left = glorot_linear(in_features, rank * in_features)
        self.right = glorot_linear(in_features, rank * in_features)

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d)."""
        x = masked_float(features, mask)
        products = linear_in_dtype(self.left, x) * linear_in_dtype(self.right, x)
        forms = products.view(*x.shape[:2], self.rank, x.shape[2]).sum(dim=2)  # (B, n, d), zero where masked
        uniform = uniform_weights(x, mask)
        weights = display_weights(torch.linalg.vector_norm(forms.detach(), dim=2), uniform)
        return PoolingOutput(weighted_sum(forms, uniform).to(features.dtype), weights, None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(in_features=self.in_features, rank=self.rank)
