"""Poolings that concatenate one vector per codeword: NetVLAD and OTP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as scale_to_unit

from winnow.functional import PoolingOutput, clip_norm, pairwise_distance
from winnow.pooling.base import (
    Pooling,
    Stage,
    check_at_least,
    linear_in_dtype,
    masked_float,
    part_width,
    setting_repr,
    uniform_weights,
)
from winnow.pooling.prototypes import SETTING_ALIASES, PrototypePooling, check_eps
from winnow.registry import ComponentSettings

_SHARPNESS = 10.0  # initial alpha of the assignment, at which a feature belongs to its nearest center


def vlad(features: Tensor, assignment: Tensor, centers: Tensor) -> Tensor:
    r"""Return the residuals to centers, normalized and concatenated, (B, K d).

    $V_k = \sum_j a_{jk} (f_j - c_k)$, each scaled to length 1.

    Args:
        features: Tokens (B, n, d).
        assignment: (B, n, K), zero where features are masked.
        centers: (K, d).
    """
    residuals = assignment.mT @ features - assignment.sum(dim=1)[..., None] * centers
    # A cluster with almost no mass stays near zero, because the divisor is at least 1e-12.
    return scale_to_unit(residuals, dim=2).flatten(1)


class NetVLAD(Pooling):
    r"""Residuals of features to learned cluster centers, summed by soft assignment.

    $$V_k = \sum_j a_{jk} (f_j - c_k), \qquad a_j = \operatorname{softmax}(A f_j + b), \qquad
      g = \Big(\frac{V_1}{\lVert V_1 \rVert}, \dots, \frac{V_K}{\lVert V_K \rVert}\Big)$$

    Input: projected features of size dim / K. The 8x16 of [Thesis] is `dim=128 pooling.clusters=8`, its 64x128 is
    `dim=8192 pooling.clusters=64`.

    Reference: Arandjelović, Gronat, Torii, Pajdla, Sivic, "NetVLAD: CNN architecture for weakly supervised place
        recognition", CVPR 2016.
    Use when: images are scenes of many parts and vectors may be long.
    Differences: centers start at random, where the paper clusters features. The assignment starts as the softmax of
        $-\alpha \lVert f_j - c_k \rVert^2$ and is then free, as in the paper. The comparison of [Thesis] does not
        scale features to unit length (`normalize=False`). No weights.

    Args:
        in_features: Channels of the features.
        clusters: Number of centers K, at least 1. The embedding size must be a multiple of it.
        normalize: Scale features to unit length first.
    """

    stage: ClassVar[Stage] = "projected"
    has_weights: ClassVar[bool] = False
    aliases: ClassVar[Mapping[str, str]] = {"normalise": "normalize"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"comparison": {"normalize": False}}

    def __init__(self, in_features: int, *, clusters: int = 8, normalize: bool = True) -> None:
        super().__init__()
        check_at_least("clusters", clusters, 1)
        self.in_features, self.normalize = in_features, normalize
        self.centers = nn.Parameter(scale_to_unit(torch.randn(clusters, in_features), dim=1))
        self.assign = nn.Linear(in_features, clusters)
        with torch.no_grad():
            self.assign.weight.copy_(2 * _SHARPNESS * self.centers)
            self.assign.bias.copy_(-_SHARPNESS * self.centers.square().sum(dim=1))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # State dicts of winnow 0.1.0 contain the centers under the British name.
        if f"{prefix}centres" in state_dict:
            state_dict[f"{prefix}centers"] = state_dict.pop(f"{prefix}centres")
        super()._load_from_state_dict(state_dict, prefix, *args)

    @classmethod
    def local_width(cls, dim: int, settings: ComponentSettings) -> int:
        """Return dim / K."""
        return part_width("NetVLAD", dim, "clusters", settings)

    def output_width(self, width: int) -> int:
        """Return K d."""
        return len(self.centers) * width

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d) to (B, K d)."""
        x = masked_float(features, mask)
        if self.normalize:
            length = torch.linalg.vector_norm(x, dim=2, keepdim=True)
            x = torch.where(length > 0, x / torch.where(length > 0, length, 1.0), 0.0)  # zero has no direction
        a = linear_in_dtype(self.assign, x).softmax(dim=2)
        if mask is not None:
            a = torch.where(mask[..., None], a, 0.0)
        return PoolingOutput(vlad(x, a, self.centers.to(x.dtype)).to(features.dtype), None, None)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return setting_repr(in_features=self.in_features, clusters=len(self.centers), normalize=self.normalize)


def transport_plan(costs: Tensor, eps: float, steps: int, masses: Tensor) -> Tensor:
    r"""Return the entropic transport plan from features to prototypes (Sinkhorn).

    $$\pi_{ij} = u_i e^{-\varepsilon c_{ij}} v_j, \qquad \sum_j \pi_{ij} = \tfrac1m, \quad \sum_i \pi_{ij} = q_j$$

    Computed in the log domain, so no value of eps overflows. The last update normalizes the features, so their sums are
    exact.

    Args:
        costs: (B, m, n), from prototype i to feature j.
        eps: Sharpness, the inverse weight of the entropy.
        steps: Number of Sinkhorn iterations.
        masses: q, (B, n), with row sums of one; zero where features are masked.

    Returns:
        Plan (B, m, n).
    """
    kernel, log_q = -eps * costs, masses.log()
    log_v = torch.zeros_like(masses).masked_fill(masses == 0, -torch.inf)
    for _ in range(steps):
        log_u = -math.log(costs.shape[1]) - (kernel + log_v[:, None]).logsumexp(dim=2)
        log_v = log_q - (kernel + log_u[..., None]).logsumexp(dim=1)
    return (kernel + log_u[..., None] + log_v[:, None]).exp()


class OTP(PrototypePooling):
    r"""Optimal-transport pooling: one weighted sum of all features per prototype.

    $$g = \sqrt m \,\Big(\sum_j \pi_{1j} f_j, \dots, \sum_j \pi_{mj} f_j\Big), \qquad
      \pi = \arg\min_\pi \sum_{ij} \pi_{ij} c_{ij} + \tfrac1\varepsilon \sum_{ij} \pi_{ij} \log \pi_{ij}
      \;\text{ s.t. }\; \sum_j \pi_{ij} = \tfrac1m, \; \sum_i \pi_{ij} = \tfrac1n$$

    Costs as in [`GSP`][winnow.pooling.GSP]. Input: projected features of size dim / m. The 8x16 of [Thesis]
    is `dim=128 pooling.num_prototypes=8`, its 64x128 is `dim=8192 pooling.num_prototypes=64`.

    Reference: Mialon, Chen, d'Aspremont, Mairal, "A Trainable Optimal Transport Embedding for Feature Aggregation and
        its Relationship to Attention", ICLR 2021.
    Use when: you compare GSP with transport of all features, not of a fraction.
    Differences: distances as costs, as in [Thesis], where the paper has a kernel. Prototypes start from data as in
        GSP; until then the plan is uniform. All features and prototypes have equal mass, so there are neither weights
        nor attributes.

    Args:
        in_features: Channels of the features.
        num_prototypes: Number of prototypes m, at least 1. The embedding size must be a multiple of it.
        eps: Sharpness of the plan, at least 0; 0 is uniform, large values approach the cheapest plan.
        steps: Number of Sinkhorn iterations, at least 1.
        memory_size: Embeddings collected before initialization, at least twice `num_prototypes`.
    """

    stage: ClassVar[Stage] = "projected"
    has_weights: ClassVar[bool] = False
    aliases: ClassVar[Mapping[str, str]] = SETTING_ALIASES

    def __init__(
        self, in_features: int, *, num_prototypes: int = 8, eps: float = 2.0, steps: int = 10, memory_size: int = 1024
    ) -> None:
        super().__init__(in_features, num_prototypes, memory_size)
        check_eps(eps)
        check_at_least("steps", steps, 1)
        self.eps, self.steps = eps, steps

    @classmethod
    def local_width(cls, dim: int, settings: ComponentSettings) -> int:
        """Return dim / m."""
        return part_width("OTP", dim, "num_prototypes", settings)

    def output_width(self, width: int) -> int:
        """Return m d."""
        return len(self.prototypes) * width

    def pool(self, features: Tensor, mask: Tensor | None) -> PoolingOutput:
        """Pool tokens (B, n, d) to (B, m d)."""
        x, count = masked_float(features, mask), len(self.prototypes)
        if self.prototypes_ready:
            masses = uniform_weights(x, mask)
            costs = pairwise_distance(clip_norm(x), clip_norm(self.prototypes.to(x.dtype))).mT
            vectors = transport_plan(costs, self.eps, self.steps, masses) @ x
        else:
            mean, _ = self.average(features, mask)
            self.observe(mean)
            vectors = mean[:, None].expand(-1, count, -1) / count
        return PoolingOutput((math.sqrt(count) * vectors).flatten(1).to(features.dtype), None, None)

    def extra_repr(self) -> str:
        """Return the settings and the state for `repr`."""
        return self.describe(eps=self.eps, steps=self.steps)
