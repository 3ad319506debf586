"""Self-distillation: embeddings keep the similarities that an average of their own weights finds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from winnow.functional import l2_normalize


class RelationalDistillation(nn.Module):
    r"""Relational self-distillation: match the similarities within a batch to those of averaged weights.

    The teacher is the same network with the exponential moving average of its weights. For embeddings of unit length,
    $f_i$ of the network and $g_i$ of the teacher,

    $$p_{ij} = \operatorname{softmax}_{j \ne i} \frac{g_i^\top g_j}{T}, \qquad
      q_{ij} = \operatorname{softmax}_{j \ne i} \frac{f_i^\top f_j}{T}, \qquad
      L = \frac1B \sum_i \sum_{j \ne i} p_{ij} \log \frac{p_{ij}}{q_{ij}}$$

    No gradient reaches the teacher. A batch of fewer than three samples has a loss of zero, because a row needs two
    others to compare.

    Reference: Park et al., "Relational Knowledge Distillation", CVPR 2019; Roth et al., "Simultaneous Similarity-based
    Self-Distillation for Deep Metric Learning", ICML 2021, for rows of similarities as targets; Tarvainen, Valpola,
    "Mean teachers are better role models", NIPS 2017, for averaged weights as the teacher.

    Use when: a fine-tuned network overfits its training classes. Each step embeds the batch once more, without
    gradients.

    Differences: in S2SD the teacher is a second head of higher dimension in the same network, and the sum is
    multiplied by the square of the temperature. Not in PML.

    Args:
        weight: Factor on the value in training, at least 0. `forward` does not apply it.
        temperature: Temperature T of both softmax functions, above 0.
    """

    def __init__(self, *, weight: float = 1.0, temperature: float = 0.1) -> None:
        super().__init__()
        self.weight, self.temperature = weight, temperature

    def forward(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar loss without its weight.

        Args:
            embeddings: (B, d) embeddings of the network. They are normalized here.
            targets: (B, e) embeddings of the teacher for the same images, in the same order.
        """
        with torch.autocast(embeddings.device.type, enabled=False):
            if embeddings.dtype in (torch.bfloat16, torch.float16):
                embeddings = embeddings.float()
            if len(embeddings) < 3:
                return embeddings.sum() * 0.0
            own = self._log_neighbors(embeddings)
            wanted = self._log_neighbors(targets.detach().to(embeddings.dtype))
            return kl_div(own, wanted, log_target=True, reduction="batchmean")

    def _log_neighbors(self, embeddings: Tensor) -> Tensor:
        """Return the logarithms of q or p, (B, B - 1): rows without the similarity of a sample to itself."""
        unit = l2_normalize(embeddings)
        count = len(unit)
        # After the first element the diagonal is every (B + 1)-th.
        others = (unit @ unit.T).flatten()[1:].view(count - 1, count + 1)[:, :-1].reshape(count, count - 1)
        return log_softmax(others / self.temperature, dim=1)
