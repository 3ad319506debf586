"""Proxy-NCA++ loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from winnow.losses.base import PairLoss
from winnow.losses.pairs import Pairs


class ProxyNCA(PairLoss):
    r"""Proxy-NCA++ loss: the references of a query's own class must take the softmax over all references.

    $$L = \operatorname{mean}_q -\log \frac{\sum_{r \in P_q} e^{h_{qr}}}{\sum_{r \in P_q \cup N_q} e^{h_{qr}}}, \qquad
      h_{qr} = -\frac{\lVert q - r \rVert^2}{T} \;\text{ or }\; \frac{q^\top r}{T}$$

    over the queries that have a positive. The squared distance is the original's; the documents' code takes the dot
    product, which for unit vectors is the same with twice the temperature.

    When to use it: like `proxy_anchor`, where a classifier's view of the classes is wanted: it is a softmax over
    proxies, without a margin. The low temperature matters; `train.lr_multipliers={'references.proxies': 100}` too.

    Reference: Teh, DeVries and Taylor, "ProxyNCA++", ECCV 2020.

    Args:
        temperature: T.
        form: Whether to compare by "squared" distance or by "dot" product.
    """

    made_for: ClassVar[str] = "proxies"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"temperature": 0.11, "form": "dot"},
        "cars": {"temperature": 0.11, "form": "dot"},
        "sop": {"temperature": 0.11, "form": "dot"},
        "inshop": {"temperature": 0.11, "form": "dot"},
    }

    def __init__(self, *, temperature: float = 0.11, form: Literal["squared", "dot"] = "squared") -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"the temperature must be above 0, got {temperature}")
        self.temperature, self.form = temperature, form

    def compare(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        h = pairs.cosines()
        if self.form == "squared":
            h = 2 * h - pairs.queries.square().sum(dim=1, keepdim=True) - pairs.references.square().sum(dim=1)
        h = h / self.temperature
        judged = pairs.positives.any(dim=1)
        # A query without a positive takes all references on both sides: zero, and a gradient of zero.
        own = pairs.positives | ~judged[:, None]
        either = pairs.positives | pairs.negatives | ~judged[:, None]
        if h.shape[1] == 0:
            return h.sum()
        terms = h.masked_fill(~either, -torch.inf).logsumexp(dim=1) - h.masked_fill(~own, -torch.inf).logsumexp(dim=1)
        return terms.sum() / judged.sum().clamp(min=1)
