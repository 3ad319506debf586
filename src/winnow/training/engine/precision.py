"""Device, precision, and CUDA graph use of a run, from its config and the machine."""

from __future__ import annotations

import torch
from lightning_fabric import Fabric

from winnow.errors import ConfigError
from winnow.training.config import RunConfig
from winnow.training.engine.distributed import launch_fabric, launched_processes


def uses_grad_scaler(config: RunConfig) -> bool:
    """Return whether gradients are scaled to fit 16 bits.

    Steps whose gradients overflow are skipped.
    """
    return config.train.precision == "16-mixed"


def uses_cuda_graph(config: RunConfig, device: torch.device) -> bool:
    """Return whether steps are replayed from CUDA graphs.

    The default is yes where possible.

    Raises:
        ConfigError: If `train.cuda_graph` is true and graphs are not possible.
    """
    # A gradient scaler reads the gradients of every step on the host. Gathering from several processes does so too.
    # Two passes restore the state of the random number generator for each chunk, which a graph cannot.
    processes = launched_processes().count
    possible = (
        device.type == "cuda"
        and processes == 1
        and not uses_grad_scaler(config)
        and not config.train.takes_two_passes(processes)
    )
    if config.train.cuda_graph and not possible:
        raise ConfigError(
            "train.cuda_graph: true requires a GPU, one process, a precision other than 16-mixed, and batches without "
            "train.chunk_size. Remove the setting."
        )
    return possible if config.train.cuda_graph is None else config.train.cuda_graph


def make_fabric(config: RunConfig) -> Fabric:
    """Make the Fabric of a run, for one process or all processes of torchrun."""
    requested = config.train.device
    if requested == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device: 'cuda' is set but torch detects no GPU. Set train.device=cpu.")
    accelerator = ("cuda" if torch.cuda.is_available() else "cpu") if requested == "auto" else requested
    return launch_fabric(accelerator, config.train.precision)
