r"""Generalized Sum Pooling: keep the local features that lie near learned prototypes, drop the clutter.

The smoothed partial-transport problem (P2) of the documents moves a share $\mu$ of the features' uniform mass to the
prototypes at least cost. Its solution has one scalar unknown per image, solved for in
[`soft_selection`][winnow.functional.soft_selection]. With $l_j = \log\sum_i e^{-\varepsilon c_{ij}}$ and
$a_{ij} = \operatorname{softmax}_i(-\varepsilon c_{ij})$,

$$p_j = \frac{\sigma(\tau + l_j)}{n \mu}, \qquad z_i = \sum_j p_j a_{ij}, \qquad g = \sum_j p_j f_j.$$
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.errors import DataError
from winnow.functional.distances import clip_norm, pairwise_distance
from winnow.functional.fused import can_fuse, fused_gsp
from winnow.functional.selection import soft_selection
from winnow.functional.unfused import unfused_gsp


class Pooled(NamedTuple):
    """What a pooling makes of a batch of feature sets.

    Attributes:
        pooled: (B, d) one vector per image.
        weights: (B, n) share of each local feature, summing to one; None where a pooling has none.
        attributes: (B, m) share of each prototype, summing to one; None where a pooling has no prototypes.
    """

    pooled: Tensor
    weights: Tensor | None
    attributes: Tensor | None


class GSPOutput(NamedTuple):
    """The result of [`gsp`][winnow.functional.gsp]: (B, d) pooled, (B, n) weights, (B, m) attributes."""

    pooled: Tensor
    weights: Tensor
    attributes: Tensor


class TransportWeights(NamedTuple):
    """The result of [`gsp_weights`][winnow.functional.gsp_weights]: (B, n) weights and (B, m) attributes."""

    weights: Tensor
    attributes: Tensor


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

    The weights are $p_j = (1/n - \rho_j)/\mu$ and the attributes $z_i = \sum_j \pi_{ij} / \mu$ (Eqs. 4.1 and 4.3 of
    "Generalized Sum Pooling for Metric Learning"). Limits: mu = 1 or eps = 0 gives uniform weights, eps to infinity
    the nearest mu n features. A prior replaces the masses $1/n$ by $q_j$; the weights are then $(q_j - \rho_j)/\mu$.

    Args:
        costs: (B, m, n), from prototype i to feature j.
        mu: Share of the mass to transport, in (0, 1]; a number, a scalar tensor, or one value per image.
        eps: Sharpness, at least 0; the inverse of the entropy's weight. A tensor holds one number, whose sign is not
            checked, because to look at it would stall a GPU.
        mask: (B, n) bool, true for the features that count; default all. Masked costs are never read.
        prior: (B, n) masses of the features, not negative, in any unit; default all alike.

    Returns:
        (B, n) weights and (B, m) attributes, each row summing to one.
    """
    _check_numbers(mu, eps, costs.shape[0])
    if isinstance(eps, Tensor):
        eps = eps.reshape(())
    if mask is not None:
        costs = costs.masked_fill(~mask[:, None], 0.0)
    affinity = -eps * costs
    weights = soft_selection(affinity.logsumexp(dim=1), mu, mask, prior)
    attributes = (affinity.softmax(dim=1) @ weights[:, :, None]).squeeze(-1)
    return TransportWeights(weights, attributes)


def gsp(
    features: Tensor,
    prototypes: Tensor,
    mu: Tensor | float,
    eps: Tensor | float,
    mask: Tensor | None = None,
    prior: Tensor | None = None,
) -> GSPOutput:
    r"""Pool features by Generalized Sum Pooling.

    $$g = \sum_j p_j f_j, \qquad p = \text{weights of the transport with }
      c_{ij} = \lVert \bar w_i - \bar f_j \rVert_2,\; \bar u = u / \max(1, \lVert u \rVert_2)$$

    Differentiable in features, prototypes, mu, eps and prior. Half-precision input is computed in float32; the pooled
    vector comes back in the features' dtype, weights and attributes in float32.

    On a GPU a fused form does all of it in a few kernels and keeps no (B, n, m) tensor; it takes up to 4096 features
    and 128 prototypes in float32 and half precision, and other inputs take the PyTorch form. There, prototypes are
    rounded to bfloat16 beside bfloat16 features, as a matrix product under autocast would, and the range of a tensor
    mu is not checked. `WINNOW_FUSED=0` in the environment forces the PyTorch form. A prior is weighed in plain PyTorch
    operations everywhere, and not inside a captured CUDA graph.

    Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023, section 4.

    Args:
        features: (B, n, d) local features.
        prototypes: (m, d).
        mu: Share of the features to keep, in (0, 1]; a number, a scalar tensor, or one value per image.
        eps: Sharpness of the selection, at least 0; a number or a tensor with one element.
        mask: (B, n) bool, true for real features, false for padding; what stands at masked places is never read.
        prior: (B, n) mass of each feature before any selection, not negative, in any unit; default the same for all.
            mu is a share of this mass, and with mu = 1 the prior itself weighs the features.

    Returns:
        pooled (B, d), weights (B, n) and attributes (B, m).

    Raises:
        ValueError: for shapes that do not fit, or mu or eps out of range (a tensor eps is not checked).
        DataError: if all features of an image are masked (not seen inside a compiled or captured graph on a GPU).
    """
    _check_shapes(features, prototypes, mask)
    _check_numbers(mu, eps, features.shape[0])
    if prior is not None:
        return _gsp_by_prior(features, prototypes, mu, eps, mask, prior)
    if can_fuse(features, prototypes):
        _check_mask(mask)
        return GSPOutput(*fused_gsp(features, prototypes, mu, eps, mask))
    return GSPOutput(*unfused_gsp(features, prototypes, mu, eps, mask))


def _gsp_by_prior(
    features: Tensor, prototypes: Tensor, mu: Tensor | float, eps: Tensor | float, mask: Tensor | None, prior: Tensor
) -> GSPOutput:
    """Pool with masses of one's own: the same closed form, put together from its parts."""
    if prior.shape != features.shape[:2]:
        raise ValueError(f"the prior must be {tuple(features.shape[:2])}, got {tuple(prior.shape)}")
    with torch.autocast(features.device.type, enabled=False):
        x = features.to(torch.promote_types(features.dtype, torch.float32))
        if mask is not None:
            x = torch.where(mask[..., None], x, 0.0)
        costs = pairwise_distance(clip_norm(x), clip_norm(prototypes.to(x.dtype))).mT
        weights, attributes = gsp_weights(costs, mu, eps, mask, prior)
        pooled = torch.bmm(weights[:, None], x).squeeze(1)
    return GSPOutput(pooled.to(features.dtype), weights, attributes)


def _check_numbers(mu: Tensor | float, eps: Tensor | float, images: int) -> None:
    if isinstance(eps, Tensor):
        if eps.numel() != 1:
            raise ValueError(f"the sharpness eps must be one number, got {tuple(eps.shape)}")
    elif not 0 <= eps < math.inf:
        raise ValueError(f"the sharpness eps must be finite and not negative, got {eps}")
    if isinstance(mu, Tensor):
        if mu.numel() not in (1, images):
            raise ValueError(f"the share mu must be one number or {images}, one per image, got {tuple(mu.shape)}")
    elif not 0 < mu <= 1:
        raise ValueError(f"the share mu must be in (0, 1], not {mu}")


def _check_mask(mask: Tensor | None) -> None:
    """Refuse an image without features, where to look at a value does not break a graph."""
    if mask is None or torch.compiler.is_compiling() or (mask.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    empty = ~mask.any(dim=1)
    if bool(empty.any()):
        image = int(empty.nonzero()[0])
        raise DataError(f"every feature of image {image} of the batch is masked; leave at least one unmasked")


def _check_shapes(features: Tensor, prototypes: Tensor, mask: Tensor | None) -> None:
    if features.dim() != 3:
        raise ValueError(f"features must be (B, n, d), got {tuple(features.shape)}")
    if prototypes.dim() != 2 or prototypes.shape[1] != features.shape[2] or len(prototypes) == 0:
        wanted = f"(m, {features.shape[2]}), m at least 1,"
        raise ValueError(f"prototypes must be {wanted} to fit the features, got {tuple(prototypes.shape)}")
    if mask is not None and (mask.shape != features.shape[:2] or mask.dtype != torch.bool):
        raise ValueError(
            f"mask must be bool {tuple(features.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}; "
            "true marks the features that count"
        )
