"""DeLF: attention that scores every local feature by itself."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import relu, softplus

from winnow.functional import Pooled
from winnow.pooling.base import Pooling, counted, dense, glorot_linear, shares, uniform_weights, weighted_sum


class DeLF(Pooling):
    r"""Attentive local features: a small network scores each feature, and scores weigh the mean.

    $$g = \frac1n \sum_j a_j f_j, \qquad
      a_j = \operatorname{softplus}\big(v^\top \max(U f_j + b, 0) + c\big)$$

    The original sums where this averages, so that large maps do not make large vectors. Weights are the shares of a.

    Reference: Noh, Araujo, Sim, Weyand and Han, "Large-Scale Image Retrieval with Attentive Deep Local Features",
    ICCV 2017.

    Args:
        width: Size of the features.
        hidden: Hidden units of the network that scores.
    """

    def __init__(self, width: int, *, hidden: int = 512) -> None:
        super().__init__()
        if hidden < 1:
            raise ValueError(f"DeLF needs at least one hidden unit, got {hidden}")
        self.hidden, self.score = glorot_linear(width, hidden, bias=True), glorot_linear(hidden, 1, bias=True)

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d)."""
        x = counted(features, mask)
        uniform = uniform_weights(x, mask)
        a = softplus(dense(self.score, relu(dense(self.hidden, x))).squeeze(2))
        return Pooled(weighted_sum(x, a * uniform).to(features.dtype), shares(a * uniform, uniform), None)
