r"""Generalized Sum Pooling: mean of the features nearest to prototypes.

The smoothed partial-transport problem (P2) of [GSP] moves a fraction $\mu$ of the uniform mass of the features to the
prototypes at least cost. Its solution has one scalar unknown per image, the root in
[`soft_selection`][winnow.functional.soft_selection]. With $l_j = \log\sum_i e^{-\varepsilon c_{ij}}$ and
$a_{ij} = \operatorname{softmax}_i(-\varepsilon c_{ij})$,

$$p_j = \frac{\sigma(\tau + l_j)}{n \mu}, \qquad z_i = \sum_j p_j a_{ij}, \qquad g = \sum_j p_j f_j.$$
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.functional.closed_form import unfused_gsp
from winnow.functional.distances import check_tensor, clip_norm, pairwise_distance
from winnow.functional.selection import check_mask, check_mu, check_prior, soft_selection
from winnow.functional.threshold import fully_masked, is_capturing
from winnow.kernels.gsp import can_fuse, fused_gsp


class PoolingOutput(NamedTuple):
    """Output of a pooling layer for a batch of images."""

    vector: Tensor
    """(B, d) pooled vectors."""
    weights: Tensor | None
    """(B, n) pooling weights of the local features, summing to one; None if a pooling has none."""
    attributes: Tensor | None
    """(B, m) fractions of the kept mass matched to each prototype; None if a pooling has no prototypes."""


class GSPOutput(NamedTuple):
    """Output of [`gsp`][winnow.functional.gsp]."""

    vector: Tensor
    """(B, d) pooled vectors."""
    weights: Tensor
    """(B, n) pooling weights of the local features, summing to one."""
    attributes: Tensor
    """(B, m) fractions of the kept mass matched to each prototype, summing to one."""


class TransportWeights(NamedTuple):
    """Output of [`gsp_weights`][winnow.functional.gsp_weights]."""

    weights: Tensor
    """(B, n) pooling weights of the local features, summing to one."""
    attributes: Tensor
    """(B, m) fractions of the kept mass matched to each prototype, summing to one."""


def gsp(
    features: Tensor,
    prototypes: Tensor,
    mu: Tensor | float,
    eps: Tensor | float,
    mask: Tensor | None = None,
    prior: Tensor | None = None,
) -> GSPOutput:
    r"""Pool local features by Generalized Sum Pooling.

    $$g = \sum_j p_j f_j, \qquad p = \text{weights of the transport with }
      c_{ij} = \lVert \bar w_i - \bar f_j \rVert_2,\; \bar u = u / \max(1, \lVert u \rVert_2)$$

    The output is differentiable in features, prototypes, mu, eps, and prior. Half-precision input is computed in
    float32. The pooled vector has the dtype of the features; weights and attributes are float32.

    On a GPU, fused kernels compute all of it and store no (B, n, m) tensor. They support up to 4096 features and 128
    prototypes in float32 and half precision; other inputs use plain PyTorch operators. The kernels round prototypes to
    bfloat16 if the features are bfloat16, like a matrix product under autocast, and do not check the range of a tensor
    mu. The environment variable `WINNOW_FUSED=0` disables them. A prior always uses plain PyTorch operators and is not
    supported inside a captured CUDA graph.

    Reference: [GSP], section 4.
    Differences: The threshold is exact. The authors' code runs 100 fixed-point iterations.

    Args:
        features: (B, n, d) local features.
        prototypes: (m, d) prototypes.
        mu: Fraction of the features to keep, in (0, 1]; a number, a scalar tensor, or one value per image.
        eps: Sharpness of the selection, at least 0; a number or a tensor with one element.
        mask: (B, n) bool, true for real features, false for padding. Masked features are never read.
        prior: (B, n) masses of the features, not negative, in any unit; default equal masses. mu is a fraction of
            this mass. With mu = 1, the normalized prior is the pooling weight.

    Returns:
        Pooled vectors (B, d), weights (B, n), and attributes (B, m), in this order.

    Raises:
        TypeError: If features or prototypes are not floating-point tensors.
        ValueError: If a shape is wrong, or mu or eps is out of range. A tensor eps is not checked.
        DataError: If all features of an image are masked. Compiled and captured graphs on a GPU do not check this.
    """
    _check_features(features, prototypes)
    check_mask(mask, features.shape[:2])
    _check_scalars(mu, eps, features.shape[0])
    if prior is not None:
        return _gsp_by_prior(features, prototypes, mu, eps, mask, prior)
    if can_fuse(features, prototypes):
        _check_not_empty(mask)
        return GSPOutput(*fused_gsp(features, prototypes, mu, eps, mask))
    return GSPOutput(*unfused_gsp(features, prototypes, mu, eps, mask))


def gsp_weights(
    costs: Tensor,
    mu: Tensor | float,
    eps: Tensor | float,
    mask: Tensor | None = None,
    prior: Tensor | None = None,
) -> TransportWeights:
    r"""Solve the smoothed partial transport of features to prototypes for given costs.

    $$\min_{\rho, \pi \ge 0} \sum_{ij} c_{ij}\pi_{ij}
      + \tfrac1\varepsilon\Big(\sum_{ij}\pi_{ij}\log\pi_{ij} + \sum_j \rho_j\log\rho_j\Big)
      \quad\text{s.t.}\quad \rho_j + \sum_i\pi_{ij} = \tfrac1n,\; \sum_{ij}\pi_{ij} = \mu$$

    The weights are $p_j = (1/n - \rho_j)/\mu$ and the attributes $z_i = \sum_j \pi_{ij} / \mu$ ([GSP], Eqs. 4.1 and
    4.3). mu = 1 or eps = 0 gives uniform weights. As eps tends to infinity, the mu n nearest features are kept. A
    prior replaces the masses $1/n$ by $q_j$; the weights are then $(q_j - \rho_j)/\mu$.

    Args:
        costs: (B, m, n), from prototype i to feature j.
        mu: Fraction of the mass to transport, in (0, 1]; a number, a scalar tensor, or one value per image.
        eps: Sharpness, at least 0: the inverse of the entropy weight. A tensor has one element. Its sign is not
            checked, because reading it synchronizes a GPU.
        mask: (B, n) bool, true for the features that count; default all. Masked costs are never read.
        prior: (B, n) masses of the features, not negative, in any unit; default equal masses.

    Returns:
        (B, n) weights and (B, m) attributes, each row summing to one.

    Raises:
        TypeError: If `costs` is not a floating-point tensor.
        ValueError: If a shape is wrong, or mu or eps is out of range. A tensor eps is not checked.
        DataError: If all features of an image are masked.
    """
    check_tensor(costs, "costs", "(B, m, n)", 3)
    check_mask(mask, (costs.shape[0], costs.shape[2]))
    _check_scalars(mu, eps, costs.shape[0])
    if isinstance(eps, Tensor):
        eps = eps.reshape(())
    if mask is not None:
        costs = costs.masked_fill(~mask[:, None], 0.0)
    affinity = -eps * costs
    weights = soft_selection(affinity.logsumexp(dim=1), mu, mask, prior)
    attributes = (affinity.softmax(dim=1) @ weights[:, :, None]).squeeze(-1)
    return TransportWeights(weights, attributes)


def _gsp_by_prior(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None, prior: Tensor
) -> GSPOutput:
    """Pool with individual masses: the same closed form, composed of its parts."""
    check_prior(prior, features)
    with torch.autocast(features.device.type, enabled=False):
        x = features.to(torch.promote_types(features.dtype, torch.float32))
        if mask is not None:
            x = torch.where(mask[..., None], x, 0.0)
        costs = pairwise_distance(clip_norm(x), clip_norm(prototypes.to(x.dtype))).mT
        weights, attributes = gsp_weights(costs, mu, eps, mask, prior)
        vector = torch.bmm(weights[:, None], x).squeeze(1)
    return GSPOutput(vector.to(features.dtype), weights, attributes)


def _check_scalars(mu: Tensor | float, eps: Tensor | float, images: int) -> None:
    if isinstance(eps, Tensor):
        if eps.numel() != 1:
            raise ValueError(f"eps: expected one number, got shape {tuple(eps.shape)}.")
    elif not 0 <= eps < math.inf:
        raise ValueError(f"eps: expected a finite number of at least 0, got {eps}.")
    check_mu(mu, images)


def _check_not_empty(mask: Tensor | None) -> None:
    """Raise `DataError` for an image without features.

    Compiled and captured graphs are not checked, because reading a value would break them.
    """
    if mask is None or torch.compiler.is_compiling() or is_capturing(mask):
        return
    empty = ~mask.any(dim=1)
    if bool(empty.any()):
        raise fully_masked(empty)


def _check_features(features: Tensor, prototypes: Tensor) -> None:
    check_tensor(prototypes, "prototypes", "(m, d)", 2)
    d = prototypes.shape[1]
    if not isinstance(features, Tensor) or features.dim() != 3:
        check_tensor(features, "features", f"(B, n, {d})", 3, hint=_layout_hint(features, d))
    check_tensor(features, "features")
    if prototypes.shape[1] != features.shape[2] or len(prototypes) == 0:
        if features.shape[1] == d and len(prototypes) > 0:
            raise ValueError(
                f"features: expected shape (B, n, {d}) to match prototypes {tuple(prototypes.shape)}, "
                f"got {tuple(features.shape)}. The shape looks like (B, {d}, n): pass features.mT."
            )
        least = ", m at least 1" if len(prototypes) == 0 else ""
        transposed = len(prototypes) == features.shape[2]
        raise ValueError(
            f"prototypes: expected shape (m, {features.shape[2]}) to match features{least}, "
            f"got {tuple(prototypes.shape)}.{' Pass prototypes.mT.' if transposed else ''}"
        )


def _layout_hint(features: Tensor, d: int) -> str:
    """Return a hint on the conversion of the input to (B, n, d); empty if unknown.

    Maps are recognized by the size d of a prototype.
    """
    if not isinstance(features, Tensor):
        return ""
    if features.dim() == 2:
        return "Add the batch dimension: features[None]."
    if features.dim() == 4 and features.shape[1] == d:
        return "Flatten the map: features.flatten(2).mT."
    if features.dim() == 4 and features.shape[3] == d:
        return "The shape looks like a channels-last map (B, H, W, C): pass features.flatten(1, 2)."
    return ""
