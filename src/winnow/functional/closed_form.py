r"""GSP and its closed-form gradient in plain PyTorch operators.

With $\bar u = u / \max(1, \lVert u \rVert_2)$, $c_{ij} = \lVert \bar w_i - \bar f_j \rVert_2$ and
$a_{ij} = \operatorname{softmax}_i(-\varepsilon c_{ij})$, the forward is

$$l_j = \log\sum_i e^{-\varepsilon c_{ij}}, \qquad p = \operatorname{selection}(l, \mu), \qquad
  g = \sum_j p_j f_j, \qquad z_i = \sum_j p_j a_{ij}.$$

The backward is written out, because it needs fewer passes over (B, n, m) numbers than a graph of operators. With
$h_j = \sum_i a_{ij}\, \partial L/\partial z_i$ the gradient of the weights is
$q_j = \partial L/\partial p_j + f_j^\top \partial L/\partial g + h_j$, which gives $\partial L/\partial l_j$, and

$$\frac{\partial L}{\partial c_{ij}} = -\varepsilon\, a_{ij} \Big(\frac{\partial L}{\partial l_j}
  + p_j \big(\tfrac{\partial L}{\partial z_i} - h_j\big)\Big) =: c_{ij} P_{ij},$$

$$\frac{\partial L}{\partial \bar f_j} = \sum_i P_{ij} (\bar f_j - \bar w_i), \qquad
  \frac{\partial L}{\partial \bar w_i} = \sum_{b, j} P_{ij} (\bar w_i - \bar f_j).$$

Squared distances come from one matrix product in float64. Products of float32 numbers are exact there, so small
distances keep their digits. The product of the backward for the prototypes is in float64 too. The product for the
features loses digits only for pairs nearer than `_NEAR`, so only those features are computed in float64. All other
operations use the precision of the features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from winnow.functional.selection import select, selection_gradient
from winnow.functional.threshold import is_exporting

_NEAR = 0.02


class Saved(NamedTuple):
    """Tensors that the forward saves for the backward."""

    weights: Tensor  # (B, n) p
    x: Tensor  # (B, n) scores plus threshold
    affinities: Tensor  # (B, n, m) softmax a
    costs: Tensor  # (B, n, m) distances c
    lengths: Tensor  # (B, n) norms of the features, at least 1, float64


class Gradients(NamedTuple):
    """Gradients of the inputs of GSP."""

    features: Tensor  # (B, n, d)
    prototypes: Tensor  # (m, d)
    mu: Tensor  # (B, 1)
    eps: Tensor  # ()


def forward(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Saved]:
    """Pool features (B, n, d) with prototypes (m, d), mu (B, 1) and eps ().

    Returns:
        Pooled vectors (B, d) in the dtype of the features, attributes (B, m), and tensors for the backward.
    """
    f = _used(features, mask)
    squares, lengths = _squares(f, prototypes)
    costs = squares.to(f.dtype).sqrt_()
    affinities = torch.mul(costs, -eps).softmax(dim=2)
    # The nearest prototype has the largest affinity, exp(-eps c) / exp(l).
    scores = -eps * costs.amin(dim=2) - affinities.amax(dim=2).log_()
    x, weights = select(scores, mu, mask)
    vector = torch.bmm(weights[:, None], f).squeeze(1)
    attributes = torch.bmm(weights[:, None], affinities).squeeze(1)
    return vector.to(features.dtype), attributes, Saved(weights, x, affinities, costs, lengths)


def backward(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None, saved: Saved,
    dg: Tensor | None, dp: Tensor | None, dz: Tensor | None,
) -> Gradients:  # fmt: skip
    """Return the gradients of the inputs.

    The arguments dg (B, d), dp (B, n), and dz (B, m) are the gradients of vectors, weights, and attributes.
    """
    f, p, a, c = _used(features, mask), saved.weights, saved.affinities, saved.costs
    q = torch.zeros_like(p) if dp is None else dp.clone()
    if dg is not None:
        dg = dg.to(f.dtype)[:, None]
        q += (f * dg).sum(dim=2)
    if dz is None:
        dl, dmu = selection_gradient(q, saved.x, p, mu, mask)
        da = a * dl[..., None]
    else:
        h = (a * dz[:, None]).sum(dim=2)
        dl, dmu = selection_gradient(q + h, saved.x, p, mu, mask)
        da = torch.addcmul((dl - p * h)[..., None], p[..., None], dz[:, None]).mul_(a)
    squares = (da * c).sum(dim=2)
    near = (c.amin(dim=2) < _NEAR).flatten().nonzero().squeeze(1) if _may_round(f) else None
    pull = da.div_(c) if near is not None and len(near) == 0 else torch.where(c > 0, da / c, 0.0)
    scale = -eps / saved.lengths
    pull *= scale[..., None].to(pull.dtype)
    df, dw = _through_distances(f, prototypes, pull, saved.lengths, scale * squares, near)
    if dg is not None:
        df.addcmul_(p[..., None], dg)
    return Gradients(df.to(features.dtype), dw.to(prototypes.dtype), dmu, -squares.sum())


def _through_distances(
    f: Tensor, prototypes: Tensor, pull: Tensor, lengths: Tensor, squares: Tensor, near: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of features and prototypes through the distances.

    Args:
        f: (B, n, d).
        prototypes: (m, d).
        pull: (B, n, m) P_ij / max(1, |f_j|).
        lengths: (B, n) max(1, |f_j|), in float64.
        squares: (B, n) sum_i c_ij^2 P_ij / max(1, |f_j|), in float64.
        near: Indices of the features to compute in float64; None: all.
    """
    w, w_lengths = _clipped(prototypes)
    rows, lengths, squares = pull.flatten(0, 1), lengths.flatten(), squares.flatten()
    wide_f, wide_rows = f.double().flatten(0, 1), rows.double()
    if near is None:
        df = _through_clipping(wide_f, w, wide_rows, lengths, squares).to(f.dtype)
    else:
        df = _through_clipping(f.flatten(0, 1), w, rows, lengths, squares)
        if len(near) > 0:
            precise = _through_clipping(wide_f[near], w, wide_rows[near], lengths[near], squares[near])
            df[near] = precise.to(f.dtype)
    # Contributions of different images to a prototype mostly cancel, so rounding would be visible.
    dw = (w * wide_rows.mT.mv(lengths)[:, None]).addmm_(wide_rows.mT, wide_f, alpha=-1)
    along = torch.where(w_lengths > 1, (w * dw).sum(dim=1, keepdim=True), 0.0)
    return df.view(f.shape), (dw - w * along) / w_lengths


def _through_clipping(f: Tensor, w: Tensor, rows: Tensor, lengths: Tensor, squares: Tensor) -> Tensor:
    r"""Return the gradient (N, d) of features from rows (N, m) of the pull.

    Clipping passes only the component orthogonal to $f_j$. The parallel component needs no product, because
    $\bar f^\top (\bar f - \bar w) = (c^2 + |\bar f|^2 - |\bar w|^2) / 2$, and clipped vectors have length 1.
    """
    total = rows.sum(dim=1)
    along = (squares + total - rows.mv(w.square().sum(dim=1).to(f.dtype))) / 2
    factor = (total - torch.where(lengths > 1, along, 0.0)) / lengths
    return (f * factor.to(f.dtype)[:, None]).addmm_(rows, w.to(f.dtype), alpha=-1)


def _squares(f: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared distances (B, n, m) of clipped vectors and max(1, |f|) (B, n).

    Both are float64.
    """
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
    """Return the features in the precision of the computation, zero where masked."""
    f = features.to(torch.promote_types(features.dtype, torch.float32)).contiguous()
    return f if mask is None else torch.where(mask[..., None], f, 0.0)


def _may_round(f: Tensor) -> bool:
    """Return whether near features are computed apart.

    Only float32 needs it, and finding them would synchronize a GPU.
    """
    return f.device.type == "cpu" and f.dtype == torch.float32


# ---- autograd and torch.compile


@torch.library.custom_op("winnow::gsp_unfused_forward", mutates_args=())
def _forward_op(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None
) -> list[Tensor]:  # fmt: skip
    """Hide data-dependent operations from torch.compile, for a graph without breaks."""
    with torch.autocast(features.device.type, enabled=False):
        vector, attributes, saved = forward(features, prototypes, mu, eps, mask)
    return [vector, attributes, *saved]


@_forward_op.register_fake
def _(features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None) -> list[Tensor]:
    (batch, n, d), m = features.shape, len(prototypes)
    dtype = torch.promote_types(features.dtype, torch.float32)
    sizes = ((batch, m), (batch, n), (batch, n), (batch, n, m), (batch, n, m))
    outputs = [features.new_empty(size, dtype=dtype) for size in sizes]
    return [features.new_empty(batch, d), *outputs, features.new_empty(batch, n, dtype=torch.float64)]


@torch.library.custom_op("winnow::gsp_unfused_backward", mutates_args=())
def _backward_op(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None, saved: list[Tensor],
    dg: Tensor | None, dp: Tensor | None, dz: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    with torch.autocast(features.device.type, enabled=False):
        return list(backward(features, prototypes, mu, eps, mask, Saved(*saved), dg, dp, dz))


@_backward_op.register_fake
def _(
    features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None, saved: list[Tensor],
    dg: Tensor | None, dp: Tensor | None, dz: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    return [
        features.new_empty(features.shape), prototypes.new_empty(prototypes.shape),
        mu.new_empty(mu.shape), eps.new_empty(()),
    ]  # fmt: skip


class _ClosedFormGSP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, prototypes: Tensor, mu: Tensor, eps: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        # A custom operator costs several microseconds per call; only a compiled graph needs it.
        compute = _forward_op if torch.compiler.is_compiling() else _forward_op._init_fn
        vector, attributes, *saved = compute(features, prototypes, mu, eps, mask)
        ctx.save_for_backward(features, prototypes, mu, eps, mask, *saved)
        ctx.set_materialize_grads(False)
        return vector, saved[0], attributes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        features, prototypes, mu, eps, mask, *saved = ctx.saved_tensors
        compute = _backward_op if torch.compiler.is_compiling() else _backward_op._init_fn
        return *compute(features, prototypes, mu, eps, mask, saved, *grads), None


def unfused_gsp(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Pool by plain operators, on any device.

    [`gsp`][winnow.functional.gsp] describes the arguments and validates them.

    Returns:
        Pooled vectors (B, d), weights (B, n), and attributes (B, m).
    """
    dtype = torch.promote_types(features.dtype, torch.float32)

    def as_tensor(value: Tensor | float) -> Tensor:
        return value.to(dtype) if isinstance(value, Tensor) else features.new_full((), value, dtype=dtype)

    column = as_tensor(mu).reshape(-1, 1).expand(features.shape[0], 1)
    if is_exporting():
        vector, attributes, saved = forward(features, prototypes, column, as_tensor(eps).reshape(()), mask)
        return vector, saved.weights, attributes
    outputs: tuple[Tensor, Tensor, Tensor] = _ClosedFormGSP.apply(  # type: ignore[no-untyped-call]
        features, prototypes, column, as_tensor(eps).reshape(()), mask
    )
    return outputs
