"""Tensors that several processes gather from each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def all_gather_rows(
    rows: Tensor, counts: Sequence[int] | None = None, group: dist.ProcessGroup | None = None
) -> Tensor:  # fmt: skip
    """Return the rows of all processes, concatenated in the order of the ranks.

    No gradient flows back.

    Every process of the group calls this with its own rows, of any number including 0. If `torch.distributed` is not
    initialized, the result is `rows`.

    Args:
        rows: (n_p, ...) rows of this process, on the device that the group communicates from.
        counts: Number of rows of each process. By default the processes exchange it, and the host waits for that.
        group: The processes; None: all of them.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return rows
    if counts is None:
        counts = _counts(rows, group)
    padded = rows.new_zeros(max(counts), *rows.shape[1:])  # processes can only exchange equal numbers of rows
    padded[: len(rows)] = rows.detach()
    gathered = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(gathered, padded, group=group)
    return torch.cat([one[:count] for one, count in zip(gathered, counts, strict=True)])


def _counts(rows: Tensor, group: dist.ProcessGroup | None) -> list[int]:
    own = torch.tensor([len(rows)], device=rows.device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    return [int(count) for count in torch.cat(every).tolist()]
