"""Classes that have several references: their means, and how far they are spread. All with fixed shapes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

_COINCIDE = 1e-14  # squared distance of unit vectors that are the same but for rounding; the root has no gradient at 0


def first_of_class(reference_labels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Name every class by the place of its first reference, whatever its label is.

    Args:
        reference_labels: (R,) integer labels, any values; at least one.
        labels: (Q,) those of the queries.

    Returns:
        (R,) for each reference the place of its class, and (Q, R) bool, true at the place of the query's class.
    """
    ordered, order = reference_labels.sort(stable=True)
    places = order[torch.searchsorted(ordered, reference_labels)]
    found = torch.searchsorted(ordered, labels).clamp(max=len(ordered) - 1)
    own = order[found].masked_fill(ordered[found] != labels, -1)  # no place where the class has no reference
    return places, own[:, None] == torch.arange(len(order), device=order.device)


def softmax_means(values: Tensor, logits: Tensor, counted: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    r"""Average values over the references of each class, weighted by the softmax of logits within the class.

    Args:
        values: (Q, R).
        logits: (Q, R).
        counted: (Q, R) bool, what takes part.
        places: (R,) where each reference's class is written, see `first_of_class`.

    Returns:
        (Q, R) the averages in the places of the classes, 0 elsewhere; and (Q, R) bool, where something took part.
    """
    into = places.expand_as(values)
    nothing = torch.zeros_like(values)
    largest = torch.full_like(values, -torch.inf)
    largest = largest.scatter_reduce(1, into, logits.detach().masked_fill(~counted, -torch.inf), "amax")
    weights = (logits - largest.gather(1, into)).masked_fill(~counted, -torch.inf).exp()
    present = largest > -torch.inf
    total = nothing.scatter_add(1, into, weights).masked_fill(~present, 1.0)
    return nothing.scatter_add(1, into, weights * values) / total, present


def spread_within_classes(vectors: Tensor, classes: Tensor, counted: Tensor, reach: int) -> Tensor:
    r"""Return the mean distance between two vectors of one class; 0, with a gradient of 0, where they coincide.

    With the vectors sorted by class, the partners of one lie next to it. Each block of `reach` vectors is compared
    with itself and the next block, so all pairs of a class of at most `reach` are seen, and at most 2 R reach
    distances are held.

    Args:
        vectors: (R, d).
        classes: (R,) integers, at least 0.
        counted: (R,) bool, which vectors take part.
        reach: Vectors in a block.
    """
    block = min(reach, len(vectors))
    group, order = classes.masked_fill(~counted, -1).sort(stable=True)
    rest = -len(vectors) % block + block  # to whole blocks, and one more for the last to look at
    x = pad(vectors.index_select(0, order).double(), (0, 0, 0, rest)).view(-1, block, vectors.shape[1])
    group = pad(group, (0, rest), value=-1).view(-1, block)
    y, partner = torch.cat([x[:-1], x[1:]], dim=1), torch.cat([group[:-1], group[1:]], dim=1)
    x, group = x[:-1], group[:-1]
    later = torch.ones(block, 2 * block, dtype=torch.bool, device=x.device).triu(1)
    pairs = (group[:, :, None] == partner[:, None, :]) & (group >= 0)[:, :, None] & later
    # In float64 the product form keeps all that float32 vectors say of their distances.
    squares = torch.baddbmm(x.square().sum(2)[:, :, None] + y.square().sum(2)[:, None, :], x, y.mT, alpha=-2)
    apart = pairs & (squares > _COINCIDE)
    total: Tensor = squares.masked_fill(~apart, 1.0).sqrt().masked_fill(~apart, 0.0).sum()
    return (total / pairs.sum().clamp(min=1)).to(vectors.dtype)
