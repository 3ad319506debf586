"""Miners: rules that select the pairs of queries and references that enter a loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from winnow.functional.pairs import Pairs
from winnow.registry import Registry, show_settings


class Miner(nn.Module):
    """Base class of miners. Subclasses implement `mine`.

    A selection may depend on the vectors and on random numbers of torch. It has no gradient. A miner is independent of
    the loss and of the source of references: any loss takes one by `miner=`.
    """

    @abstractmethod
    def mine(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the selected positives and negatives, two (Q, R) bool masks."""

    def forward(self, pairs: Pairs, *unexpected: object) -> Pairs:
        """Return the same vectors with the selected pairs.

        Raises:
            TypeError: For embeddings and labels. A miner selects among the pairs of a loss.
        """
        if unexpected or not isinstance(pairs, Pairs):
            name = type(self).__name__
            raise TypeError(
                f"{name}: expected the pairs of a loss, got {type(pairs).__name__}. "
                f"Pass the miner to a loss, such as TripletMarginLoss(miner={name}())."
            )
        with torch.no_grad():
            positives, negatives = self.mine(pairs)
        return pairs.mask(positives, negatives)

    def extra_repr(self) -> str:
        """Return the settings as constructor arguments."""
        return show_settings(self)


class AllPairs(Miner):
    r"""All pairs: no mining.

    $$P'_q = P_q, \qquad N'_q = N_q$$

    Use when: the loss weights pairs itself, as `ms` and the proxy losses do. [GSP], [CCP], and [Thesis] report no
    experiment with a miner.
    """

    def mine(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return all positives and negatives."""
        return pairs.positives, pairs.negatives


class HardPairMiner(Miner):
    r"""Nearest negatives of each query, as many as it has positives.

    $$P'_q = P_q \;\text{ or }\; \big\{ \arg\max_{p \in P_q} d_{qp} \big\}, \qquad
      N'_q = \text{the } |P'_q| \text{ nearest of } N_q$$

    With the farthest positive alone, and thus the nearest negative alone, this is "batch hard".

    Reference: Hermans, Beyer, Leibe, "In Defense of the Triplet Loss for Person Re-Identification", 2017.

    Use when: most negatives are satisfied, as late in training or with a triplet loss on small batches. Early, the
    hardest negatives are often mislabeled or look alike, and the embeddings may collapse to one point: use `semi_hard`
    or `distance_weighted` then.

    Differences: the authors' code of [CCP] selects for each query as many negatives as the query with the most
    positives has. `positives="hardest"` selects the pairs of PML `BatchHardMiner()`, which returns triplets.

    Args:
        positives: "all" positives of a query, or the "hardest" alone.
    """

    def __init__(self, *, positives: Literal["all", "hardest"] = "all") -> None:
        super().__init__()
        if positives not in ("all", "hardest"):
            raise ValueError(f"positives: expected 'all' or 'hardest', got {positives!r}. Choose one of them.")
        self.positives = positives

    def mine(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the selected positives and as many of the nearest negatives."""
        d = pairs.distances()
        positives = pairs.positives
        if self.positives == "hardest":
            positives = select_largest(d, positives, torch.ones_like(pairs.labels))
        return positives, select_largest(-d, pairs.negatives, positives.sum(dim=1))


class SemiHardMiner(Miner):
    r"""Negatives that are farther than a positive of their query, but within a margin.

    $$P'_q = P_q, \qquad N'_q = \{ n \in N_q : \exists\, p \in P_q,\; d_{qp} < d_{qn} < d_{qp} + m \}$$

    A negative is selected if it forms a semi-hard triplet with any positive of its query. A query may have none.

    Reference: Schroff, Kalenichenko, Philbin, "FaceNet", CVPR 2015.

    Use when: you train with the triplet loss of the same margin, early in training. It excludes negatives nearer than
    every positive, which may be wrong labels, and those that are far enough already. It suits distances of images;
    with one proxy per class the band is mostly empty.

    Differences: FaceNet selects triplets, and this miner pairs: the pairs in the triplets of PML
    `TripletMarginMiner(margin, type_of_triplets="semihard")`.

    Args:
        margin: Distance m beyond a positive within which negatives are selected, above 0.

    Raises:
        ValueError: If the margin is not above 0.
    """

    def __init__(self, *, margin: float = 0.2) -> None:
        super().__init__()
        if margin <= 0:
            raise ValueError(f"margin: expected a value above 0, got {margin}. FaceNet uses 0.2.")
        self.margin = margin

    def mine(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return all positives and the semi-hard negatives."""
        d = pairs.distances()
        ordered = d.masked_fill(~pairs.positives, torch.inf).sort(dim=1).values
        nearer = torch.searchsorted(ordered, d)  # the number of positives nearer than this reference
        last = pad(ordered, (1, 0), value=-torch.inf).gather(1, nearer)  # the farthest of them
        return pairs.positives, pairs.negatives & (d < last + self.margin)


class DistanceWeightedMiner(Miner):
    r"""Negatives drawn with equal probability at all distances.

    $$P'_q = P_q, \qquad N'_q = |P_q| \text{ draws of } n \in N_q \text{ with } d_{qn} < u, \qquad
      \Pr(n) \propto \frac{1}{q(\max(l, d_{qn}))}, \qquad
      q(d) \propto d^{\,D-2} \Big[1 - \frac{d^2}{4}\Big]^{\frac{D-3}2}$$

    $q$ is the density of the distance of two random points on the unit sphere in $D$ dimensions, which peaks near
    $\sqrt 2$. Division by it draws near (hard) and far negatives alike. Draws are without replacement: the largest of
    $\log \Pr(n) + G_n$ with independent Gumbel $G_n$. A query with fewer negatives within $u$ gets fewer.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017.

    Use when: you train with the margin loss, as in the paper, or with contrastive or triplet losses on batches of
    several images per class. Vectors must be of unit length.

    Differences: PML `DistanceWeightedMiner(cutoff, nonzero_loss_cutoff)` draws from the same density, but one negative
    per positive with replacement, and returns triplets.

    Args:
        cutoff: Distance l below which the probability no longer grows, which avoids drawing noise; above 0.
        nonzero_loss_cutoff: Distance u from which on no negative is drawn, above `cutoff`.

    Raises:
        ValueError: If the two distances are not above 0 and in order.
    """

    aliases: ClassVar[Mapping[str, str]] = {"lower": "cutoff", "upper": "nonzero_loss_cutoff"}

    def __init__(self, *, cutoff: float = 0.5, nonzero_loss_cutoff: float = 1.4) -> None:
        super().__init__()
        if not 0 < cutoff < nonzero_loss_cutoff:
            raise ValueError(
                f"cutoff, nonzero_loss_cutoff: expected 0 < cutoff < nonzero_loss_cutoff, got {cutoff} and "
                f"{nonzero_loss_cutoff}. The paper uses 0.5 and 1.4."
            )
        self.cutoff, self.nonzero_loss_cutoff = cutoff, nonzero_loss_cutoff

    def mine(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return all positives and the drawn negatives."""
        d = pairs.distances()
        gumbel = -torch.empty_like(d).exponential_().log()
        scores = gumbel - log_density(d.clamp(min=self.cutoff), pairs.queries.shape[1])
        near = pairs.negatives & (d < self.nonzero_loss_cutoff)
        return pairs.positives, select_largest(scores, near, pairs.positives.sum(dim=1))


def log_density(distances: Tensor, dimensions: int) -> Tensor:
    r"""Return the log-density of the distance of random unit vectors.

    $$\log q(d) = (D - 2) \log d + \tfrac{D - 3}2 \log\big(1 - d^2 / 4\big) + \text{const}$$

    Args:
        distances: Any shape, above 0.
        dimensions: Dimension D of the vectors.
    """
    inside = (1 - distances.square() / 4).clamp(min=torch.finfo(distances.dtype).eps)  # above 0 for opposite vectors
    return (dimensions - 2) * distances.log() + (dimensions - 3) / 2 * inside.log()


def select_largest(scores: Tensor, candidates: Tensor, counts: Tensor) -> Tensor:
    """Mark the candidates with the largest scores in each row; ties keep the first.

    Args:
        scores: (Q, R), finite at candidates.
        candidates: (Q, R) bool.
        counts: (Q,) number of candidates to mark per row; all of them if there are fewer.

    Returns:
        (Q, R) bool.
    """
    order = scores.masked_fill(~candidates, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return candidates & (torch.empty_like(order).scatter(1, order, rank) < counts[:, None])


MINERS: Registry[Miner] = Registry(
    "miner",
    {
        "all": AllPairs,
        "hard": HardPairMiner,
        "semi_hard": SemiHardMiner,
        "distance_weighted": DistanceWeightedMiner,
    },
    default="all",
)

__all__ = ["MINERS", "AllPairs", "DistanceWeightedMiner", "HardPairMiner", "Miner", "SemiHardMiner"]
