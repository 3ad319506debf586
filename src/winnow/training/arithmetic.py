"""Where and how a run computes, as its config asks for and the machine allows: device, precision, CUDA graphs."""

from __future__ import annotations

import torch
from lightning_fabric import Fabric

from winnow.errors import ConfigError
from winnow.training.config import Config
from winnow.training.distributed import join, launched


def scaled(config: Config) -> bool:
    """Whether gradients are scaled to fit 16 bits, and steps skipped where they do not."""
    return config.train.precision == "16-mixed"


def wants_graph(config: Config, device: torch.device) -> bool:
    """Whether steps are replayed from CUDA graphs: if asked for, and by default wherever they can be.

    Raises:
        ConfigError: where they are asked for and cannot be.
    """
    # A scaler looks at every step's gradients on the host, and so does what gathers those of several processes.
    possible = device.type == "cuda" and not scaled(config) and launched().count == 1
    if config.train.graph and not possible:
        raise ConfigError("train.graph=true needs a GPU, one process and a precision other than 16-mixed; leave it out")
    return possible if config.train.graph is None else config.train.graph


def make_fabric(config: Config) -> Fabric:
    """Make the Fabric for this process, or for all that torchrun started, on the device the config asks for."""
    wanted = config.train.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device=cuda, but torch sees no GPU; use train.device=cpu")
    accelerator = ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted
    return join(accelerator, config.train.precision)
