"""Retrieval metrics of each query, from the relevance of its neighbors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.evaluation.inputs import as_count


def metric_names(ks: Sequence[int]) -> list[str]:
    """Return metric names in order: `P@1`, `R@k` for each k, `P@R`, `MAP@R`.

    Raises:
        ConfigError: If a k is not a whole number of at least 1.
    """
    return ["P@1", *dict.fromkeys(f"R@{as_count(k, 'ks', 1)}" for k in ks), "P@R", "MAP@R"]


def query_metrics(hits: Tensor, relevant: Tensor, ks: Sequence[int] = (1, 2, 4, 8)) -> dict[str, Tensor]:
    r"""Compute P@1, R@k, P@R, and MAP@R of every query.

    $\mathrm{rel}_i \in \{0, 1\}$ is the relevance of the neighbor at rank $i$, and $R$ is the number of references
    that are relevant to the query. With $\mathrm{P@}i = \frac1i \sum_{j \le i} \mathrm{rel}_j$,

    $$\mathrm{R@}k = \max_{i \le k} \mathrm{rel}_i, \qquad
    \mathrm{P@R} = \frac1R \sum_{i=1}^{R} \mathrm{rel}_i, \qquad
    \mathrm{MAP@R} = \frac1R \sum_{i=1}^{R} \mathrm{rel}_i \, \mathrm{P@}i .$$

    R@k follows metric learning: it is 1 if any of the first k neighbors is relevant. It is not the fraction of
    relevant references among the first k.

    Reference: Musgrave, Belongie, Lim, "A Metric Learning Reality Check", ECCV 2020 (P@R and MAP@R).

    Args:
        hits: $\mathrm{rel}$, shape (Q, K), bool. K covers $R$ of every query and every k of `ks`, or all references.
        relevant: $R$, shape (Q,), int64.
        ks: Ranks of R@k.

    Returns:
        Metric name to values of shape (Q,), float64, in [0, 1]. Values are NaN where $R = 0$.
    """
    ranks = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    counted = hits & (ranks <= relevant[:, None])
    precision = counted.cumsum(dim=1) / ranks.double()
    total = relevant.double()
    values = {"P@1": hits[:, :1].any(dim=1).double()}
    values |= {f"R@{k}": hits[:, :k].any(dim=1).double() for k in ks}
    values["P@R"] = counted.sum(dim=1) / total
    # A running sum gives the same value regardless of the number of neighbors behind rank R.
    values["MAP@R"] = (precision * counted).cumsum(dim=1)[:, -1] / total
    return {name: value.masked_fill(relevant == 0, torch.nan) for name, value in values.items()}


def count_relevant(query_labels: Tensor, reference_labels: Tensor, *, exclude_self: bool = False) -> Tensor:
    """Count the references that share the label of each query.

    Args:
        query_labels: Shape (Q,), int64.
        reference_labels: Shape (N,), int64.
        exclude_self: The queries are among the references; subtract each query itself.

    Returns:
        Shape (Q,), int64.
    """
    ordered = reference_labels.sort().values
    below = torch.searchsorted(ordered, query_labels)
    upto = torch.searchsorted(ordered, query_labels, right=True)
    return upto - below - int(exclude_self)
