"""What several processes hold together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def gather_rows(share: Tensor, counts: Sequence[int] | None = None, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the rows of all processes, one share after another in the order of the ranks; no gradient goes back.

    Every process of the group calls this with its own share, of any number of rows, also none. Without
    `torch.distributed` initialised there is one share, the whole.

    Args:
        share: This process's rows, (n_p, ...); on the device the group communicates from.
        counts: How many rows each process has. Default they tell each other, for which the host waits.
        group: The processes; None: all of them.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return share
    if counts is None:
        counts = _counts(share, group)
    padded = share.new_zeros(max(counts), *share.shape[1:])  # processes can only exchange the same number of rows
    padded[: len(share)] = share.detach()
    shares = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(shares, padded, group=group)
    return torch.cat([one[:count] for one, count in zip(shares, counts, strict=True)])


def _counts(share: Tensor, group: dist.ProcessGroup | None) -> list[int]:
    own = torch.tensor([len(share)], device=share.device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    return [int(count) for count in torch.cat(every).tolist()]
