"""One run in several processes of torchrun.

Each process embeds a slice of a batch, and all compute the whole loss.
"""

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
from winnow.pooling import MaskedBatchNorm
from winnow.seeding import derive_seed

TIMEOUT = timedelta(minutes=30)
"""Longest wait for the other processes. A process that has ended is noticed at once."""


class _Gather(torch.autograd.Function):
    r"""Gather rows and scale gradients.

    The mean over processes that DDP takes is then the gradient of the whole batch.

    Each of the P processes computes the same loss L of all embeddings e, of which it made the slice $e_p(\theta)$:

    $$\frac1P \sum_p \frac{\partial e_p}{\partial\theta}^\top \Big(P \frac{\partial L}{\partial e_p}\Big)
      = \frac{\partial L}{\partial\theta}$$

    Parameters of L itself, such as proxies, have their whole gradient on every process. Its mean is equal to it.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], own: slice) -> Tensor:
        ctx.processes, ctx.own = len(counts), own
        return all_gather_rows(rows, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.processes * grads[0][ctx.own], None, None


@dataclass(frozen=True)
class Processes:
    """Processes that train a run together, as one of them sees them."""

    rank: int = 0  # of this process; rank 0 writes and prints
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def own_slice(self, total: int) -> slice:
        """Return the contiguous rows of `total` that belong to this process.

        Slices are disjoint and of nearly equal size.
        """
        return self._slice(total, self.rank)

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """Return all rows (total, ...) from the slices of all processes.

        Gradients reach the rows of each process.
        """
        if self.count == 1:
            return rows
        slices = [self._slice(total, rank) for rank in range(self.count)]
        whole: Tensor = _Gather.apply(rows, [one.stop - one.start for one in slices], slices[self.rank])  # type: ignore[no-untyped-call]
        return whole

    @contextmanager
    def fork_rng(self, device: torch.device) -> Iterator[None]:
        """Draw random numbers that differ between processes, as dropout should.

        The common state is restored at exit.
        """
        if self.count == 1:
            yield
            return
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if not self.is_first:
                torch.manual_seed(derive_seed(torch.initial_seed(), self.rank))
            yield

    def _slice(self, total: int, rank: int) -> slice:
        return slice(total * rank // self.count, total * (rank + 1) // self.count)


SINGLE_PROCESS = Processes()


def launched_processes() -> Processes:
    """Return the processes that torchrun started, or this process alone."""
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        return SINGLE_PROCESS
    return Processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


class _MixedPrecision(MixedPrecision):
    """Mixed precision that does not round the inputs of a step.

    Fabric's class rounds inputs in training only. Features of a frozen backbone would then differ from those that
    validation and the pools of CCP use. The head computes in float32 and needs their digits.
    """

    def convert_input(self, data: Any) -> Any:
        """Return the inputs of a step unchanged."""
        return data


def launch_fabric(accelerator: str, precision: Any) -> Fabric:
    """Make the Fabric of a run and connect its processes.

    Raises:
        ConfigError: If a machine has fewer GPUs than processes.
    """
    count = launched_processes().count
    options: dict[str, Any] = {"precision": precision}
    if precision in ("16-mixed", "bf16-mixed"):
        # Float16 brings a CPU no gain, and bfloat16 needs no scaling.
        options = {"plugins": _MixedPrecision("bf16-mixed" if accelerator == "cpu" else precision, accelerator)}
    if count == 1:
        return Fabric(accelerator=accelerator, devices=1, **options)
    local_count = int(os.environ["LOCAL_WORLD_SIZE"])
    if accelerator == "cuda" and torch.cuda.device_count() < local_count:
        raise ConfigError(
            f"train.device: torchrun started {local_count} processes on a machine with {torch.cuda.device_count()} "
            "GPUs. Start one process for each GPU, or set train.device=cpu."
        )
    # Several parameters skip steps: prototypes before they are set, the backbone in the warm-up.
    # Buffers need no exchange, because every process computes the same. The option's name depends on torch's version.
    known = signature(nn.parallel.DistributedDataParallel).parameters
    exchange: dict[str, Any] = {
        "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
    }
    strategy = DDPStrategy(timeout=TIMEOUT, find_unused_parameters=True, **exchange)
    fabric = Fabric(
        accelerator=accelerator, devices=local_count, num_nodes=count // local_count, strategy=strategy, **options
    )
    fabric.launch()
    return fabric


def check_distributed(processes: Processes, batch: int, objective: nn.Module) -> None:
    """Check that several processes can train an objective.

    Raises:
        ConfigError: If a batch has fewer images than processes, or if batch norm is trained. Each process would
            normalize by its own images alone.
    """
    if processes.count == 1:
        return
    if batch < processes.count:
        raise ConfigError(
            f"train.classes_per_batch: a batch of {batch} images is too small for {processes.count} processes. Start "
            "fewer processes or use larger batches."
        )
    norm = find_trained_norm(objective)
    if norm is not None:
        raise ConfigError(
            f"{norm}: several processes cannot train batch norm. Keep backbone.freeze_batch_norm=true and use a "
            "pooling without batch norm, or train in one process."
        )


def find_trained_norm(objective: nn.Module) -> str | None:
    """Return the name of a batch norm in training mode, which uses other images of the batch; None without one."""
    objective.train()  # frozen modules stay in inference mode
    norms = (nn.modules.batchnorm._BatchNorm, MaskedBatchNorm)
    trained = (name for name, one in objective.named_modules() if isinstance(one, norms) and one.training)
    return next(trained, None)


@contextmanager
def report_lost_processes(processes: Processes) -> Iterator[None]:
    """Raise a readable error if another process of the run has ended.

    Raises:
        TrainingError: If a process has ended or has not answered in time.
    """
    try:
        yield
    except RuntimeError as error:
        if processes.count == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        minutes = round(TIMEOUT.total_seconds() / 60)
        raise TrainingError(
            f"process {processes.rank} of {processes.count}: another process has failed or has not answered for "
            f"{minutes} minutes. Read the message of that process, then resume the run from its last checkpoint."
        ) from error
