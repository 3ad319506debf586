"""Losses on smooth ranks: Smooth-AP and the recall@k surrogate."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from winnow.functional.pairs import Pairs
from winnow.losses.base import Mining, Normalization, PairLoss


class SmoothAPLoss(PairLoss):
    r"""Smooth-AP: one minus the average precision with sigmoids instead of steps.

    $$L = \operatorname{mean}_q \Big( 1 - \frac{1}{|P_q|} \sum_{p \in P_q} \frac{\rho_q(p, P_q)}
        {\rho_q(p, P_q \cup N_q)} \Big), \qquad
      \rho_q(p, S) = 1 + \sum_{r \in S,\, r \ne p} \sigma\Big(\frac{s_{qr} - s_{qp}}{\tau}\Big)$$

    $\rho_q(p, S)$ is the smooth rank of a positive within a set. The mean is over the queries that have a positive.

    Reference: Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020.

    Use when: MAP@R is the goal and batches are large, with several images per class. The loss weights all ranks.

    Differences: the authors' code and PML `SmoothAPLoss(temperature)` rank each query among its own references, as a
    positive at rank 1; pass the batch as `ref_emb` for that. PML 2.9 is right only where a batch has as many classes as
    images per class. At most `max_positives` positives of a query count, which bounds the time.

    Args:
        temperature: Temperature tau of the sigmoid, above 0. A small value is nearer to the true rank.
        max_positives: Number of positives of a query that count, the most similar ones; at least 1.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Raises:
        ValueError: If a setting is out of range.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.01,
        max_positives: int = 16,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(normalize=normalize, miner=miner)
        _check_ranking(temperature, max_positives)
        self.temperature, self.max_positives = temperature, max_positives

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        s = pairs.similarities()
        if s.shape[1] == 0:
            return s.sum()
        precision, count = torch.zeros_like(s[:, 0]), torch.zeros_like(s[:, 0])
        for counted, among_positives, among_all in smooth_ranks(s, pairs, self.temperature, self.max_positives):
            precision = precision + counted * among_positives / among_all
            count = count + counted
        complete = count > 0
        terms = (1 - precision / count.clamp(min=1)) * complete
        return terms.sum() / complete.sum().clamp(min=1)


class RecallAtKLoss(PairLoss):
    r"""Recall@k surrogate: one minus recall, with sigmoids instead of steps.

    $$L = \operatorname{mean}_{q,\, k} \Big( 1 - \frac{1}{\min(k, |P_q|)} \min\Big(k, \sum_{p \in P_q}
        \sigma\Big(\frac{k - \rho_q(p)}{\tau_k}\Big)\Big) \Big), \qquad
      \rho_q(p) = 1 + \sum_{r \ne p} \sigma\Big(\frac{s_{qr} - s_{qp}}{\tau}\Big)$$

    $\rho_q(p)$ is the smooth rank of a positive among all references, and $\tau_k$ is k times `rank_temperature`. The
    mean is over the queries that have a positive.

    Reference: Patel, Tolias, Matas, "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022.

    Use when: R@k is the goal and batches have hundreds to thousands of images. Ranks within a
    small batch say little about ranks in a gallery.

    Differences: the authors' code counts the query itself as the first reference, which shifts all ranks by one. Their
    similarity mixup is not part of this loss. At most `max_positives` positives of a query count. Not in PML.

    Args:
        ks: Ranks k, at least 1.
        temperature: Temperature tau of the sigmoid over similarities, above 0.
        rank_temperature: Temperature of the sigmoid over ranks at k = 1, above 0; it grows with k.
        max_positives: Number of positives of a query that count, the most similar ones; at least 1.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Raises:
        ValueError: If a setting is out of range.
    """

    def __init__(
        self,
        *,
        ks: tuple[int, ...] = (1, 2, 4, 8, 16),
        temperature: float = 0.01,
        rank_temperature: float = 1.0,
        max_positives: int = 16,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(normalize=normalize, miner=miner)
        _check_ranking(temperature, max_positives)
        if rank_temperature <= 0:
            raise ValueError(f"rank_temperature: expected a value above 0, got {rank_temperature}. The paper uses 1.")
        if not ks or min(ks) < 1:
            raise ValueError(f"ks: expected ranks of at least 1, got {ks}. The paper uses 1, 2, 4, 8, 16.")
        self.ks, self.temperature = tuple(ks), temperature
        self.rank_temperature, self.max_positives = rank_temperature, max_positives

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        s = pairs.similarities()
        if s.shape[1] == 0:
            return s.sum()
        ks = torch.tensor(self.ks, dtype=s.dtype, device=s.device)
        found, count = s.new_zeros(len(s), len(ks)), s.new_zeros(len(s), 1)
        for counted, _, rank in smooth_ranks(s, pairs, self.temperature, self.max_positives):
            within = torch.sigmoid((ks - rank[:, None]) / (self.rank_temperature * ks))
            found = found + counted[:, None] * within
            count = count + counted[:, None]
        complete = count > 0
        recall = torch.minimum(found, ks) / torch.minimum(count.clamp(min=1), ks)
        terms = (1 - recall).mean(dim=1, keepdim=True) * complete
        return terms.sum() / complete.sum().clamp(min=1)


def smooth_ranks(
    similarities: Tensor, pairs: Pairs, temperature: float, max_positives: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    r"""Yield the smooth ranks of each query's positives, most similar first.

    One positive of all queries at a time: the (Q, P, R) differences of all are never formed, and the number of rounds
    does not depend on the labels, as a captured graph requires.

    Args:
        similarities: (Q, R).
        pairs: Their kinds.
        temperature: Temperature of the sigmoid.
        max_positives: Number of rounds, limited to R.

    Yields:
        (Q,) bool, whether the query has such a positive; (Q,) its rank among the positives; (Q,) and among all.
    """
    positives, either = pairs.positives, pairs.positives | pairs.negatives
    candidates = similarities.detach().masked_fill(~positives, -torch.inf)
    best = candidates.topk(min(max_positives, candidates.shape[1]), dim=1)
    for values, position in zip(best.values.unbind(1), best.indices.unbind(1), strict=True):
        index = position[:, None]
        above = torch.sigmoid((similarities - similarities.gather(1, index)) / temperature)
        above = above.scatter(1, index, 0.0)  # a positive does not precede itself
        yield values > -torch.inf, 1 + (above * positives).sum(dim=1), 1 + (above * either).sum(dim=1)


def _check_ranking(temperature: float, max_positives: int) -> None:
    if temperature <= 0:
        raise ValueError(f"temperature: expected a value above 0, got {temperature}. The paper uses 0.01.")
    if max_positives < 1:
        raise ValueError(f"max_positives: expected at least 1, got {max_positives}. Pass a positive number.")
