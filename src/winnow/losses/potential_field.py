"""Potential-field loss (PFML): attraction and repulsion that decay with distance."""

from __future__ import annotations

from torch import Tensor

from winnow.functional.pairs import Pairs
from winnow.losses.base import Mining, Normalization
from winnow.losses.proxy import ProxyLoss

_LINEAR = 0.25
"""Fraction of delta below which the repulsion is linear, so coinciding vectors have a finite value and slope."""


class PotentialFieldLoss(ProxyLoss):
    r"""Potential-field loss (PFML): references are charges whose force decays.

    $$L = \frac1Q \sum_q \Big( \sum_{r \in P_q} \big(1 - \psi(\max(d_{qr}, \delta))\big)
        + \sum_{r \in N_q} \big(\psi(\min(d_{qr}, \delta)) - 1\big) \Big), \qquad
      \psi(d) = \Big(\frac{\delta}{d}\Big)^{\alpha}$$

    A positive attracts beyond the distance $\delta$, and less the farther it is. A negative repels within $\delta$.

    Reference: Bhatnagar, Ahuja, "Potential Field Based Deep Metric Learning", CVPR 2025, equations 1 to 6.

    Use when: classes vary much or labels are noisy, since far positives hardly pull. The paper takes several proxies
    per class and the forces within the batch: `references.proxies_per_class=15`, `references.batch_weight=0.5`.
    Proxies must learn faster than the network: `train.lr_multipliers={'references.proxies': 100}`.

    Differences: the paper's potentials are these divided by $\delta^\alpha$, plus constants, and summed over all
    queries; `references.proxy_weight` adds its forces between proxies. Below a quarter of $\delta$ the repulsion is
    continued as a straight line, where the paper's is infinite at 0. Not in PML.

    Args:
        num_classes: Number of classes of own proxies; None for a loss that is called with `ref_emb`.
        embedding_size: Size of own proxies; None for a loss that is called with `ref_emb`.
        delta: Distance delta within which positives rest and negatives repel, above 0. The paper takes 0.1 to 0.3.
        alpha: Exponent alpha of the decay, above 0. The paper takes 3 to 6.
        proxies_per_class: Own proxies of each class, at least 1.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Raises:
        ValueError: If delta or alpha is not above 0.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        *,
        delta: float = 0.2,
        alpha: float = 4.0,
        proxies_per_class: int = 1,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(
            num_classes, embedding_size, proxies_per_class=proxies_per_class, normalize=normalize, miner=miner
        )
        for name, value in (("delta", delta), ("alpha", alpha)):
            if value <= 0:
                raise ValueError(f"{name}: expected a value above 0, got {value}. Increase it.")
        self.delta, self.alpha = delta, alpha

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        d = pairs.distances()
        attract = 1 - (self.delta / d.clamp(min=self.delta)) ** self.alpha
        near = d.clamp(max=self.delta)
        inner = near.clamp(min=_LINEAR * self.delta)
        # The second factor is 1, with a gradient of 0, where the power holds.
        repel = (self.delta / inner) ** self.alpha * (1 + self.alpha * (1 - near / inner)) - 1
        return (attract * pairs.positives + repel * pairs.negatives).sum() / max(len(pairs.queries), 1)
