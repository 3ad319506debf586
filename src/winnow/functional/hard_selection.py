"""The linear program that soft selection smooths: keep the highest-scored items, all or nothing."""

from __future__ import annotations

from torch import Tensor


def hard_selection(scores: Tensor, share: float) -> Tensor:
    r"""Return weights that keep a share $\mu$ of the items, the highest-scored first: what soft selection tends to.

    $$\max_{0 \le s_j \le 1} \sum_j l_j s_j \quad\text{s.t.}\quad \tfrac1n \sum_j s_j = \mu, \qquad
      p_j = \frac{s_j}{n \mu}$$

    With $l_j = -\min_i c_{ij}$ these are the weights $(1/n - \rho_j)/\mu$ of problem (P1) of "Generalized Sum Pooling
    for Metric Learning": each feature's mass goes to the nearest prototype or nowhere. Items are taken in order of
    their score, ties by position, and the last one in part where $n \mu$ is no whole number.

    Args:
        scores: (..., n).
        share: mu in (0, 1].

    Returns:
        (..., n) weights that sum to one. They do not depend on the scores smoothly: there is no gradient.
    """
    if not 0 < share <= 1:
        raise ValueError(f"the share to keep must be in (0, 1], not {share}")
    count = scores.shape[-1]
    order = scores.argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(dim=-1)
    return (count * share - rank.to(scores.dtype)).clamp(min=0, max=1) / (count * share)
