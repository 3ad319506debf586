"""Prototypes that start from data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from winnow.distributed import all_gather_rows
from winnow.functional import clip_norm, greedy_k_centre
from winnow.pooling.base import Pooling


class PrototypePooling(Pooling):
    """Base of the poolings with prototypes, which start from data.

    Until a memory of average-pooled training embeddings is full (`is_ready` false) the prototypes mean nothing, and a
    subclass weighs all features alike and calls `collect` in training; then a greedy k-centre cover of the memory
    becomes the prototypes, in place, so that an optimiser built earlier goes on to train them. All of that state is in
    buffers and travels in the state dict.

    Args:
        width: Size of the prototypes.
        count: How many.
        memory: Embeddings to collect before the prototypes are set from them; at least twice as many.
    """

    memory: Tensor
    filled: Tensor
    ready: Tensor

    def __init__(self, width: int, count: int, memory: int) -> None:
        super().__init__()
        name = type(self).__name__
        if count < 1:
            raise ValueError(f"{name} needs at least one prototype, got {count}")
        if memory < 2 * count:
            raise ValueError(f"{name} needs a memory of at least twice its {count} prototypes, got {memory}")
        self.prototypes = nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, width)))
        self.register_buffer("memory", torch.zeros(memory, width))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        # What `filled` and `ready` hold, known on the host too: to look at the buffers would wait for the device.
        self._known_filled, self._known_ready = 0, False
        self._captured_rows = 0
        self.register_load_state_dict_post_hook(_read_state)  # type: ignore[no-untyped-call]

    @property
    def is_ready(self) -> bool:
        """Whether the prototypes have been set from data."""
        return self._known_ready

    @property
    def phase(self) -> bool:
        """What `forward` computes changes when the prototypes are ready."""
        return self._known_ready

    def advance(self) -> None:
        """Do on the host what a replay of a captured `forward` left to it: count, and set the prototypes when full."""
        if not self._known_ready:
            self._count(self._captured_rows)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it changes state on the host, which guards would follow
    @torch.no_grad()
    def collect(self, embeddings: Tensor) -> None:
        """Remember average-pooled embeddings (B, d); once the memory is full, set the prototypes from it."""
        # The rows of all processes, so that every process sets the same prototypes.
        rows = all_gather_rows(clip_norm(embeddings.to(self.memory.dtype)))
        if len(rows) == 0:
            return
        # Every place of the memory looks for its row, so that where they go is decided on the device.
        source = torch.arange(len(self.memory), device=rows.device) - self.filled
        fresh = (source >= 0) & (source < len(rows))
        source = source.clamp(min=0, max=len(rows) - 1)
        self.memory.copy_(torch.where(fresh[:, None], rows[source], self.memory))
        self.filled.add_(len(rows)).clamp_(max=len(self.memory))
        if _is_capturing(rows):
            self._captured_rows = len(rows)  # nothing was computed yet; each replay is counted by `advance`
        else:
            self._count(len(rows))

    @torch.no_grad()
    def _count(self, rows: int) -> None:
        """Note that the memory got rows; once it is full, set the prototypes from it."""
        self._known_filled = min(self._known_filled + rows, len(self.memory))
        if self._known_filled == len(self.memory):
            # As in the original code the first m rows only repel: the prototypes cover what those leave uncovered.
            count = len(self.prototypes)
            first, rest = self.memory[:count], self.memory[count:]
            # Most rows lie on the unit sphere, where rounding would decide which prototypes' gradients are cut to the
            # tangent, and two processes would come to other weights than one. A little beyond it all of them are, as
            # most were, and what is used, shortened to the sphere, is the row itself.
            beyond = 1 + 16 * torch.finfo(self.prototypes.dtype).eps
            self.prototypes.copy_(rest[greedy_k_centre(rest, count, centres=first)] * beyond)
            self.ready.fill_(True)
            self._known_ready = True


def _read_state(module: nn.Module, _incompatible_keys: Any) -> None:
    # Read once, here, so that a loaded layer compiles to one graph and its steps need not wait for the device.
    assert isinstance(module, PrototypePooling)
    if not module.ready.is_meta:
        module._known_filled, module._known_ready = int(module.filled), bool(module.ready)


def _is_capturing(tensor: Tensor) -> bool:
    """Whether work on this tensor is being recorded into a CUDA graph instead of done."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
