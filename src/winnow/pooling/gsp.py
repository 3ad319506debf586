"""Generalized Sum Pooling as a layer, with prototypes that start from data."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from winnow.functional import Pooled, clip_norm, greedy_k_centre, gsp
from winnow.pooling.base import Pooling, masked_mean


class GSP(Pooling):
    r"""Generalized Sum Pooling: keep the share mu of the features that lie nearest to learned prototypes.

    $$g = \sum_j p_j f_j, \qquad p_j = \frac{\sigma(\tau + l_j)}{n\mu}, \qquad
      l_j = \log \sum_i e^{-\varepsilon \lVert \bar w_i - \bar f_j \rVert_2}, \qquad
      \tau:\; \tfrac1n\sum_j \sigma(\tau + l_j) = \mu$$

    It pools the projected map, so that prototypes live in the embedding's space. Prototypes start from data: until a
    memory of average-pooled training embeddings is full the layer *is* average pooling (uniform weights, zero
    attributes, `is_ready` false); then a greedy k-centre cover of the memory becomes the prototypes, in place, so that
    an optimiser built earlier goes on to train them. All of that state is in buffers and travels in the state dict.

    Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023.

    Args:
        width: Size of the features.
        prototypes: Number of prototypes m.
        mu: Share of the features to keep, in (0, 1].
        eps: Sharpness of the selection: 0 is average pooling, large a hard choice of the nearest features.
        memory: Embeddings to collect before the prototypes are set from them; at least twice `prototypes`.
    """

    pools: ClassVar[Literal["raw", "projected"]] = "projected"
    has_attributes: ClassVar[bool] = True
    memory: Tensor
    filled: Tensor
    ready: Tensor

    def __init__(
        self, width: int, *, prototypes: int = 64, mu: float = 0.3, eps: float = 5.0, memory: int = 1024
    ) -> None:
        super().__init__()
        if not 0 < mu <= 1:
            raise ValueError(f"GSP keeps a share mu of the features, which must be in (0, 1], got {mu}")
        if not 0 <= eps < math.inf:
            raise ValueError(f"the sharpness eps of GSP must be finite and not negative, got {eps}")
        if prototypes < 1:
            raise ValueError(f"GSP needs at least one prototype, got {prototypes}")
        if memory < 2 * prototypes:
            raise ValueError(f"GSP needs a memory of at least twice its {prototypes} prototypes, got {memory}")
        self.mu, self.eps = mu, eps
        self.prototypes = nn.Parameter(nn.init.xavier_uniform_(torch.empty(prototypes, width)))
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

    def pool(self, features: Tensor, mask: Tensor | None) -> Pooled:
        """Pool tokens (B, n, d)."""
        if self.is_ready:
            return Pooled(*gsp(features, self.prototypes, self.mu, self.eps, mask))
        pooled, weights = masked_mean(features, mask)
        if self.training:
            self._collect(pooled)
        return Pooled(pooled, weights, weights.new_zeros(len(pooled), len(self.prototypes)))

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it changes state on the host, which guards would follow
    @torch.no_grad()
    def _collect(self, embeddings: Tensor) -> None:
        """Remember average-pooled embeddings (B, d); once the memory is full, set the prototypes from it."""
        rows = _gather_processes(clip_norm(embeddings.to(self.memory.dtype)))
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
            self.prototypes.copy_(rest[greedy_k_centre(rest, count, centres=first)])
            self.ready.fill_(True)
            self._known_ready = True

    def extra_repr(self) -> str:
        """Describe the layer in `repr`."""
        count, width = self.prototypes.shape
        return f"width={width}, prototypes={count}, mu={self.mu}, eps={self.eps}, ready={self.is_ready}"


def _read_state(module: nn.Module, _incompatible_keys: Any) -> None:
    # Read once, here, so that a loaded layer compiles to one graph and its steps need not wait for the device.
    assert isinstance(module, GSP)
    if not module.ready.is_meta:
        module._known_filled, module._known_ready = int(module.filled), bool(module.ready)


def _is_capturing(tensor: Tensor) -> bool:
    """Whether work on this tensor is being recorded into a CUDA graph instead of done."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _gather_processes(rows: Tensor) -> Tensor:
    """Collect the rows of all processes, so that every process sets the same prototypes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return rows
    parts = [torch.empty_like(rows) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, rows.contiguous())
    return torch.cat(parts)
