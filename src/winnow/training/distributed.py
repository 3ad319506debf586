"""One run trained by several processes, which torchrun starts: each embeds its share of a batch, all see the whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from winnow.distributed import all_gather_rows
from winnow.errors import ConfigError, TrainingError
from winnow.pooling.batch_norm import TokenNorm
from winnow.seeding import derive_seed

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others; one that ended is noticed at once."""


class _Gather(torch.autograd.Function):
    r"""Gathers rows so that the mean of all processes' gradients, which DDP takes, is that of the whole batch.

    Each of the P processes computes the same loss L of all embeddings e, of which it made the share $e_p(\theta)$:

    $$\frac1P \sum_p \frac{\partial e_p}{\partial\theta}^\top \Big(P \frac{\partial L}{\partial e_p}\Big)
      = \frac{\partial L}{\partial\theta}$$

    Parameters of L itself, such as proxies, have their whole gradient on every process, and so as its mean.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], share: slice) -> Tensor:
        ctx.processes, ctx.share = len(counts), share
        return all_gather_rows(rows, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.processes * grads[0][ctx.share], None, None


@dataclass(frozen=True)
class Processes:
    """The processes that train a run together, seen from one of them.

    Attributes:
        rank: Which one this is; the first, 0, is the one that writes and prints.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all."""
        return self.rank == 0

    def share(self, total: int) -> slice:
        """Return which of so many rows are this process's: one after another, none twice, as even as can be."""
        return self._share(total, self.rank)

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """Return all rows (total, ...), of which each process gives its share; gradients go back to these."""
        if self.count == 1:
            return rows
        shares = [self._share(total, rank) for rank in range(self.count)]
        whole: Tensor = _Gather.apply(rows, [one.stop - one.start for one in shares], shares[self.rank])  # type: ignore[no-untyped-call]
        return whole

    @contextmanager
    def own_random(self, device: torch.device) -> Iterator[None]:
        """Draw other numbers than the other processes, as dropout should, and go on after it with the same as they."""
        if self.count == 1:
            yield
            return
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if not self.is_first:
                torch.manual_seed(derive_seed(torch.initial_seed(), self.rank))
            yield

    def _share(self, total: int, rank: int) -> slice:
        return slice(total * rank // self.count, total * (rank + 1) // self.count)


ALONE = Processes()


def launched() -> Processes:
    """Return the processes that torchrun started, or this one alone."""
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        return ALONE
    return Processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


class _Mixed(MixedPrecision):
    """Mixed precision that leaves the inputs of a step as they are: autocast rounds what it computes with.

    Fabric's own rounds them all, and training alone: a frozen backbone's features would not be those that a validation
    or a pool of CCP sees, and reach the head, which computes in float32, without their digits.
    """

    def convert_input(self, data: Any) -> Any:
        """Return the inputs of a step."""
        return data


def join(accelerator: str, precision: Any) -> Fabric:
    """Make the Fabric of a run, for one process or for all that torchrun started, and connect these.

    Raises:
        ConfigError: where a machine has fewer GPUs than processes.
    """
    count = launched().count
    how: dict[str, Any] = {"precision": precision}
    if precision in ("16-mixed", "bf16-mixed"):
        # A CPU has no float16 to gain from, and bfloat16 needs no scaling.
        how = {"plugins": _Mixed("bf16-mixed" if accelerator == "cpu" else precision, accelerator)}
    if count == 1:
        return Fabric(accelerator=accelerator, devices=1, **how)
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    if accelerator == "cuda" and torch.cuda.device_count() < here:
        raise ConfigError(
            f"torchrun started {here} processes on a machine with {torch.cuda.device_count()} GPUs: start as many as "
            "there are GPUs (--nproc-per-node), or use train.device=cpu"
        )
    # Not all parameters learn at every step: prototypes not before they are set, the backbone not in the warm-up.
    # Buffers need no exchange, because every process computes the same; how to say so depends on torch's version.
    known = signature(nn.parallel.DistributedDataParallel).parameters
    exchange: dict[str, Any] = {
        "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
    }
    strategy = DDPStrategy(timeout=TIMEOUT, find_unused_parameters=True, **exchange)
    fabric = Fabric(accelerator=accelerator, devices=here, num_nodes=count // here, strategy=strategy, **how)
    fabric.launch()
    return fabric


def check_batch(processes: Processes, batch: int, learner: nn.Module) -> None:
    """Refuse what processes cannot do together.

    Raises:
        ConfigError: for batches of fewer images than processes, and for batch norm that learns, which would see its own
            process's images alone.
    """
    if processes.count == 1:
        return
    if batch < processes.count:
        raise ConfigError(
            f"a batch of {batch} images cannot be shared by {processes.count} processes: start fewer, or use larger "
            "batches (train.classes_per_batch)"
        )
    learner.train()  # what is frozen stays in inference mode
    norms = (nn.modules.batchnorm._BatchNorm, TokenNorm)
    for name, module in learner.named_modules():
        if isinstance(module, norms) and module.training:
            raise ConfigError(
                f"{name} is batch norm that learns, which processes cannot do together: keep "
                "backbone.freeze_batch_norm=true and use a pooling without batch norm, or train in one process"
            )


@contextmanager
def missing_others(processes: Processes) -> Iterator[None]:
    """Tell plainly when the other processes are gone.

    Raises:
        TrainingError: where a process has ended, or has not answered in time.
    """
    try:
        yield
    except RuntimeError as error:
        if processes.count == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        minutes = round(TIMEOUT.total_seconds() / 60)
        raise TrainingError(
            f"process {processes.rank} of {processes.count} has lost the others: one of them has failed, and told why, "
            f"or has not answered for {minutes} minutes; go on from the last checkpoint with --resume"
        ) from error
