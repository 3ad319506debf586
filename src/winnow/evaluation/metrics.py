"""The metrics of retrieval, one value per query, from the relevance of its ranked neighbours.

They do not know how the neighbours were found.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.evaluation.inputs import as_count


def metric_names(ks: Sequence[int]) -> list[str]:
    """The names of the metrics in order: `P@1`, `R@k` for every k of `ks`, `P@R`, `MAP@R`.

    Raises:
        ConfigError: if a k is not a whole number of at least 1.
    """
    return ["P@1", *dict.fromkeys(f"R@{as_count(k, 'k of R@k', 1)}" for k in ks), "P@R", "MAP@R"]


def query_metrics(hits: Tensor, relevant: Tensor, ks: Sequence[int] = (1, 2, 4, 8)) -> dict[str, Tensor]:
    r"""P@1, R@k, P@R and MAP@R of every query.

    With $\mathrm{rel}_i \in \{0, 1\}$ the relevance of the neighbour at rank $i$, $R$ the number of references that are
    relevant to the query, and $\mathrm{P@}i = \frac1i \sum_{j \le i} \mathrm{rel}_j$,

    $$\mathrm{R@}k = \max_{i \le k} \mathrm{rel}_i, \qquad
    \mathrm{P@R} = \frac1R \sum_{i=1}^{R} \mathrm{rel}_i, \qquad
    \mathrm{MAP@R} = \frac1R \sum_{i=1}^{R} \mathrm{rel}_i \, \mathrm{P@}i .$$

    R@k is the share of queries with a hit among the first k, as usual in metric learning, and not the share of the
    relevant references that were found.

    Args:
        hits: $\mathrm{rel}$, shape (Q, K), bool. K is at least $R$ of every query and every k of `ks`, or else all the
            references there are.
        relevant: $R$, shape (Q,), int64.
        ks: The ranks of R@k.

    Returns:
        Name to values, each of shape (Q,), float64, in [0, 1]; NaN where $R = 0$.

    References:
        Musgrave, Belongie and Lim, "A Metric Learning Reality Check", ECCV 2020 (P@R and MAP@R).
    """
    ranks = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    counted = hits & (ranks <= relevant[:, None])
    precision = counted.cumsum(dim=1) / ranks.double()
    total = relevant.double()
    values = {"P@1": hits[:, :1].any(dim=1).double()}
    values |= {f"R@{k}": hits[:, :k].any(dim=1).double() for k in ks}
    values["P@R"] = counted.sum(dim=1) / total
    # Summed one after the other, so that the value does not depend on how many neighbours follow.
    values["MAP@R"] = (precision * counted).cumsum(dim=1)[:, -1] / total
    return {name: value.masked_fill(relevant == 0, torch.nan) for name, value in values.items()}


def count_relevant(query_labels: Tensor, reference_labels: Tensor, *, exclude_self: bool = False) -> Tensor:
    """How many references share the label of each query, the query itself left out if `exclude_self`.

    Args:
        query_labels: Shape (Q,), int64.
        reference_labels: Shape (N,), int64.
        exclude_self: The queries are the references.

    Returns:
        Shape (Q,), int64.
    """
    ordered = reference_labels.sort().values
    below = torch.searchsorted(ordered, query_labels)
    upto = torch.searchsorted(ordered, query_labels, right=True)
    return upto - below - int(exclude_self)
