"""Modules that do something on the host besides computing, and how they take part in replayed steps."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

from torch import nn


@runtime_checkable
class Advances(Protocol):
    """A module whose `forward` has a part on the host: it counts, or what it computes changes as training goes on.

    A step replayed from a CUDA graph repeats the kernels of one `forward` and runs none of its Python. So such a module

    - does in `forward`, while a graph is captured, only what the device can do, with indices and counts in buffers;
      called otherwise it does everything, so that a loop of one's own needs to know nothing of this;
    - does the rest in `advance`, which is called after every replay, and after replays only;
    - says by `phase` which kernels its `forward` launches; a graph is captured for every phase, when it comes.

    [`GSP`][winnow.pooling.GSP] is one: it counts its memory on the host, and its phase is whether that is full.
    """

    @property
    def phase(self) -> Hashable:
        """What distinguishes one course of `forward` from another."""
        ...

    def advance(self) -> None:
        """Do what a replay of `forward` has left to the host."""
        ...


def advancing(model: nn.Module) -> list[Advances]:
    """Return the modules inside a model that take part."""
    return [module for module in model.modules() if isinstance(module, Advances)]
