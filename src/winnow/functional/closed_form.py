r"""GSP and its gradient in tensor operations.

With $\bar u = u / \max(1, \lVert u \rVert_2)$, $c_{ij} = \lVert \bar w_i - \bar f_j \rVert_2$ and
$a_{ij} = \operatorname{softmax}_i(-\varepsilon c_{ij})$, the forward is

$$l_j = \log\sum_i e^{-\varepsilon c_{ij}}, \qquad p = \operatorname{selection}(l, \mu), \qquad
  g = \sum_j p_j f_j, \qquad z_i = \sum_j p_j a_{ij}.$$

The backward is written out, because that needs fewer passes over (B, n, m) numbers than a graph of operations. With
$h_j = \sum_i a_{ij}\, \partial L/\partial z_i$ the gradient of the weights is
$q_j = \partial L/\partial p_j + f_j^\top \partial L/\partial g + h_j$, which gives $\partial L/\partial l_j$, and

$$\frac{\partial L}{\partial c_{ij}} = -\varepsilon\, a_{ij} \Big(\frac{\partial L}{\partial l_j}
  + p_j \big(\tfrac{\partial L}{\partial z_i} - h_j\big)\Big) =: c_{ij} P_{ij},$$

$$\frac{\partial L}{\partial \bar f_j} = \sum_i P_{ij} (\bar f_j - \bar w_i), \qquad
  \frac{\partial L}{\partial \bar w_i} = \sum_{b, j} P_{ij} (\bar w_i - \bar f_j).$$

Squared distances come from one matrix product in float64, where products of float32 numbers are exact, so that small
distances keep their digits. Of the products of the backward that for the prototypes is in float64 too; that for the
features loses digits to pairs nearer than `_NEAR`, and only features of such are computed in float64. All else is in
the features' own precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.functional.selection import select, selection_gradient

_NEAR = 0.02


class Kept(NamedTuple):
    """What the forward leaves to the backward.

    Attributes:
        weights: (B, n) p.
        x: (B, n) scores plus threshold.
        shares: (B, n, m) the softmax a.
        costs: (B, n, m) the distances c.
        lengths: (B, n) of the features, at least 1, in float64.
    """

    weights: Tensor
    x: Tensor
    shares: Tensor
    costs: Tensor
    lengths: Tensor


class Gradients(NamedTuple):
    """Of features (B, n, d), prototypes (m, d), the share (B, 1) and the sharpness ()."""

    features: Tensor
    prototypes: Tensor
    mu: Tensor
    eps: Tensor


def forward(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Kept]:
    """Pool features (B, n, d) with prototypes (m, d), mu (B, 1) and eps ().

    Returns:
        Pooled vectors (B, d) in the features' dtype, attributes (B, m), and what the backward needs.
    """
    f = _used(features, mask)
    squares, lengths = _squares(f, prototypes)
    costs = squares.to(f.dtype).sqrt_()
    shares = torch.mul(costs, -eps).softmax(dim=2)
    # The largest share is that of the nearest prototype, exp(-eps c) / exp(l).
    scores = -eps * costs.amin(dim=2) - shares.amax(dim=2).log_()
    x, weights = select(scores, mu, mask)
    pooled = torch.bmm(weights[:, None], f).squeeze(1)
    attributes = torch.bmm(weights[:, None], shares).squeeze(1)
    return pooled.to(features.dtype), attributes, Kept(weights, x, shares, costs, lengths)


def backward(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None, kept: Kept,
    dg: Tensor | None, dp: Tensor | None, dz: Tensor | None,
) -> Gradients:  # fmt: skip
    """Return the gradients, given those of the pooled vectors (B, d), the weights (B, n) and the attributes (B, m)."""
    f, p, a, c = _used(features, mask), kept.weights, kept.shares, kept.costs
    q = torch.zeros_like(p) if dp is None else dp.clone()
    if dg is not None:
        dg = dg.to(f.dtype)[:, None]
        q += (f * dg).sum(dim=2)
    if dz is None:
        dl, dmu = selection_gradient(q, kept.x, p, mu, mask)
        da = a * dl[..., None]
    else:
        h = (a * dz[:, None]).sum(dim=2)
        dl, dmu = selection_gradient(q + h, kept.x, p, mu, mask)
        da = torch.addcmul((dl - p * h)[..., None], p[..., None], dz[:, None]).mul_(a)
    squares = (da * c).sum(dim=2)
    near = (c.amin(dim=2) < _NEAR).flatten().nonzero().squeeze(1) if _may_round(f) else None
    pull = da.div_(c) if near is not None and len(near) == 0 else torch.where(c > 0, da / c, 0.0)
    scale = -eps / kept.lengths
    pull *= scale[..., None].to(pull.dtype)
    df, dw = _through_distances(f, prototypes, pull, kept.lengths, scale * squares, near)
    if dg is not None:
        df.addcmul_(p[..., None], dg)
    return Gradients(df.to(features.dtype), dw.to(prototypes.dtype), dmu, -squares.sum())


def _through_distances(
    f: Tensor, prototypes: Tensor, pull: Tensor, lengths: Tensor, squares: Tensor, near: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the parts of the gradients of features and prototypes that come by the distances.

    Args:
        f: (B, n, d).
        prototypes: (m, d).
        pull: (B, n, m) P_ij / max(1, |f_j|).
        lengths: (B, n) max(1, |f_j|), in float64.
        squares: (B, n) sum_i c_ij^2 P_ij / max(1, |f_j|), in float64.
        near: Numbers of the features for which to compute in float64; None: all.
    """
    w, w_lengths = _clipped(prototypes)
    rows, lengths, squares = pull.flatten(0, 1), lengths.flatten(), squares.flatten()
    wide_f, wide_rows = f.double().flatten(0, 1), rows.double()
    if near is None:
        df = _through_clipping(wide_f, w, wide_rows, lengths, squares).to(f.dtype)
    else:
        df = _through_clipping(f.flatten(0, 1), w, rows, lengths, squares)
        if len(near) > 0:
            some = _through_clipping(wide_f[near], w, wide_rows[near], lengths[near], squares[near])
            df[near] = some.to(f.dtype)
    # What features of all images pull a prototype to cancels out for the most part, and shows the rounding.
    dw = (w * wide_rows.mT.mv(lengths)[:, None]).addmm_(wide_rows.mT, wide_f, alpha=-1)
    along = torch.where(w_lengths > 1, (w * dw).sum(dim=1, keepdim=True), 0.0)
    return df.view(f.shape), (dw - w * along) / w_lengths


def _through_clipping(f: Tensor, w: Tensor, rows: Tensor, lengths: Tensor, squares: Tensor) -> Tensor:
    r"""Return the gradient (N, d) of features in their precision, given rows (N, m) of the pull.

    Clipping lets only the part through that is across $f_j$. The part along it needs no product, since
    $\bar f^\top (\bar f - \bar w) = (c^2 + |\bar f|^2 - |\bar w|^2) / 2$, and what is clipped has length 1.
    """
    total = rows.sum(dim=1)
    along = (squares + total - rows.mv(w.square().sum(dim=1).to(f.dtype))) / 2
    kept = (total - torch.where(lengths > 1, along, 0.0)) / lengths
    return (f * kept.to(f.dtype)[:, None]).addmm_(rows, w.to(f.dtype), alpha=-1)


def _squares(f: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared distances (B, n, m) between clipped vectors and max(1, |f|) (B, n), both in float64."""
    w, _ = _clipped(prototypes)
    wide = f.double().flatten(0, 1)
    length = torch.linalg.vector_norm(wide, dim=1)
    clipped = length.clamp(min=1.0)
    products = torch.mm(wide, w.mT).mul_((-2 / clipped)[:, None])
    products += length.clamp_(max=1.0).square_()[:, None]
    products += w.square().sum(dim=1)
    return products.clamp_(min=0.0).view(*f.shape[:2], len(w)), clipped.view(f.shape[:2])


def _clipped(prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Return prototypes clipped to length 1, and max(1, |w|) (m, 1), both in float64."""
    w = prototypes.double()
    lengths = torch.linalg.vector_norm(w, dim=1, keepdim=True).clamp_(min=1.0)
    return w / lengths, lengths


def _used(features: Tensor, mask: Tensor | None) -> Tensor:
    """Return the features in the precision of the computation, zero where they do not count."""
    f = features.to(torch.promote_types(features.dtype, torch.float32)).contiguous()
    return f if mask is None else torch.where(mask[..., None], f, 0.0)


def _may_round(f: Tensor) -> bool:
    """Whether it pays to ask which features are near a prototype; a GPU would have to stand still for the answer."""
    return f.device.type == "cpu" and f.dtype == torch.float32
