"""No mining."""

from __future__ import annotations

from torch import Tensor

from winnow.losses import Pairs
from winnow.mining.base import Mining


class All(Mining):
    r"""All pairs remain.

    $$P'_q = P_q, \qquad N'_q = N_q$$

    When to use it: by default. Losses that weigh pairs by themselves, such as `ms` or the proxy losses, need nothing
    else, and the documents mine in none of their experiments.
    """

    def choose(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return which positives and which negatives remain."""
        return pairs.positives, pairs.negatives
