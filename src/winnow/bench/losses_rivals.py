"""The losses of pytorch-metric-learning that answer to winnow's."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

AGAINST = "pytorch-metric-learning"

Rival = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Returns the loss of queries (Q, d) of labels (Q,) against references (R, d) of labels (R,)."""

_PAIR = {
    "c1": "ContrastiveLoss",
    "c2": "ContrastiveLoss",
    "triplet": "TripletMarginLoss",
    "ms": "MultiSimilarityLoss",
    "margin": "MarginLoss",
    "npair": "NTXentLoss",  # its NPairsLoss takes one pair of a class; this is the same softmax over all of them
    "lifted": "GeneralizedLiftedStructureLoss",
}
_PROXY = {"proxy_anchor": "ProxyAnchorLoss", "proxy_nca": "ProxyNCALoss", "soft_triple": "SoftTripleLoss"}


def rival(name: str, references: Tensor, num_classes: int, per_class: int) -> Rival | None:
    """Return the other library's loss, with its own default parameters; None where it has none or is not installed.

    Args:
        name: Of the loss in winnow.
        references: Trainable references (R, d), which a loss that keeps its own takes over.
        num_classes: Of the references.
        per_class: References of each class.
    """
    if find_spec("pytorch_metric_learning") is None:
        return None
    from pytorch_metric_learning import losses  # type: ignore[import-untyped]

    if name in _PAIR:
        pair: Any = getattr(losses, _PAIR[name])()
        return lambda queries, labels, others, other_labels: pair(queries, labels, None, others, other_labels)
    if name not in _PROXY:
        return None
    more = {"centers_per_class": per_class} if name == "soft_triple" else {}
    proxy: Any = getattr(losses, _PROXY[name])(num_classes=num_classes, embedding_size=references.shape[1], **more)
    kept = "fc" if name == "soft_triple" else "proxies"
    # Its matrix is (R, d), or (d, R) for SoftTriple: a view of ours, so that both have the same gradients to compute.
    setattr(proxy, kept, nn.Parameter(references.detach().mT if name == "soft_triple" else references.detach()))
    return lambda queries, labels, others, other_labels: proxy(queries, labels)
