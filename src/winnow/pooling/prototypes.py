"""Base class of poolings with prototypes that are initialized from data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from winnow.distributed import all_gather_rows
from winnow.errors import DataError, warn_caller
from winnow.functional import clip_norm, greedy_k_center
from winnow.pooling.base import (
    Pooling,
    as_tokens,
    check_at_least,
    check_features,
    masked_float,
    setting_repr,
    uniform_weights,
    weighted_sum,
)

SETTING_ALIASES: Mapping[str, str] = {"prototypes": "num_prototypes", "memory": "memory_size"}
"""Settings of winnow 0.1.0 and their present names."""


class PrototypesNotSetWarning(UserWarning):
    """Warning of a layer that is evaluated before its prototypes are set."""


class PrototypePooling(Pooling):
    """Base class of poolings with prototypes that are initialized from data.

    In training mode the layer collects average-pooled embeddings in a memory. Until the memory is full,
    `prototypes_ready` is false and subclasses weight all features equally. Greedy k-center then selects the prototypes
    from the memory. They are set in place, so an optimizer built earlier trains them. `init_prototypes` sets them at
    once instead. The state is in buffers and is saved with the state dict.

    Args:
        in_features: Size of a prototype.
        num_prototypes: Number of prototypes, at least 1.
        memory_size: Embeddings collected before initialization, at least twice `num_prototypes`.

    Attributes:
        standalone: Whether the layer itself raises on NaN features and warns when it is evaluated too early. The
            trainer reports both with more context, and sets this to false.
    """

    standalone: bool = True
    memory: Tensor
    filled: Tensor
    ready: Tensor

    def __init__(self, in_features: int, num_prototypes: int, memory_size: int) -> None:
        super().__init__()
        check_at_least("num_prototypes", num_prototypes, 1)
        check_at_least("memory_size", memory_size, 2 * num_prototypes, " (twice num_prototypes)")
        self.in_features = in_features
        self.prototypes = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_prototypes, in_features)))
        self.register_buffer("memory", torch.zeros(memory_size, in_features))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        # Host copies of `filled` and `ready`: reading the buffers would synchronize with the device.
        self._host_filled, self._host_ready = 0, False
        self._captured_rows = 0
        self._kept: list[Tensor] | None = None
        self._warned = False
        self.register_load_state_dict_post_hook(_read_state)  # type: ignore[no-untyped-call]

    @property
    def prototypes_ready(self) -> bool:
        """Whether the prototypes have been set from data."""
        return self._host_ready

    @property
    def graph_key(self) -> bool:
        """Key of the captured graph; it changes once the prototypes are set."""
        return self._host_ready

    def after_replay(self) -> None:
        """Update the host state after a replay of a captured `forward`.

        Sets the prototypes once the memory is full.
        """
        if not self._host_ready:
            self._count(self._captured_rows)

    @torch.no_grad()
    def init_prototypes(self, features: Tensor | Iterable[Tensor | Sequence[Any]]) -> None:
        """Set the prototypes from features now, without a training step.

        Uses the same rule as training: average each image, then select prototypes by greedy k-center. The first
        `num_prototypes` embeddings only repel; the prototypes are selected from the others. Prototypes that are
        already set are replaced. In a distributed run, every process must call this method.

        Args:
            features: Features as passed to `forward` (for a pooling with a guide: as passed as `guide`). A tensor of
                maps (B, C, H, W) or tokens (B, N, C), or an iterable of batches, such as a DataLoader of features. A
                batch is a tensor, or a tuple or list whose first element is one. For a loader of images pass
                `(backbone(images) for images, _ in loader)`. At most `memory_size` images are read.

        Raises:
            TypeError: If a batch has no features tensor.
            ValueError: If a shape does not match, or there are fewer than 2 x `num_prototypes` images.
            DataError: If a feature is NaN or infinite.
        """
        found: list[Tensor] = []
        count, size = 0, len(self.memory)
        for batch in [features] if isinstance(features, Tensor) else features:
            if isinstance(batch, Tensor):
                local = batch
            elif isinstance(batch, list | tuple) and len(batch) > 0:
                local = batch[0]
            else:
                raise TypeError(
                    f"features: expected batches of tensors or of (features, labels), got {type(batch).__name__}. "
                    "Yield the features first in a tuple."
                )
            check_features(local, self.prototypes.shape[1])
            with torch.autocast(self.memory.device.type, enabled=False):
                mean, _ = self.average(as_tokens(local.to(self.memory.device)), None)
            found.append(clip_norm(mean.to(self.memory.dtype)))
            count += len(mean)
            if count >= size:
                break
        rows = all_gather_rows(torch.cat([self.memory[:0], *found]))[:size]
        least = 2 * len(self.prototypes)
        if len(rows) < least:
            raise ValueError(
                f"features: expected at least {least} images (twice num_prototypes), got {len(rows)}. "
                "Pass more images, or use fewer prototypes."
            )
        _check_finite(rows, "Pass finite features.")
        self.memory.zero_()
        self.memory[: len(rows)] = rows
        self.filled.fill_(len(rows))
        self._host_filled = len(rows)
        self._set_prototypes(rows)

    def average(self, features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the mean (B, d) of tokens (B, n, d) and its weights (B, n)."""
        x = masked_float(features, mask)
        weights = uniform_weights(x, mask)
        return weighted_sum(x, weights), weights

    def observe(self, embeddings: Tensor) -> None:
        """Collect averages (B, d) in training mode; warn once in evaluation mode."""
        if self.training and self._kept is not None:
            self._kept.append(embeddings.detach())
        elif self.training:
            self.collect(embeddings)
        elif self.standalone and not self._warned and not torch.compiler.is_compiling():
            self._warned = True
            warn_caller(
                f"{type(self).__name__} is evaluated before its prototypes are set, so it averages all features. "
                f"Train on {len(self.memory)} images or call init_prototypes first.",
                PrototypesNotSetWarning,
            )

    @contextmanager
    def collecting_later(self) -> Iterator[list[Tensor]]:
        """Keep the averages of forward passes in a list, without collecting them.

        A batch that is embedded in chunks is collected as a whole afterward.
        """
        kept: list[Tensor] = []
        self._kept = kept
        try:
            yield kept
        finally:
            self._kept = None

    # Not compiled, because guards would follow the host state it changes. `torch.compiler.disable` does the same, but
    # imports the compiler here, which takes a second.
    @_disable_dynamo
    @torch.no_grad()
    def collect(self, embeddings: Tensor) -> None:
        """Store averages (B, d), and set the prototypes once the memory is full.

        Raises:
            DataError: If an embedding on the CPU is NaN or infinite and the layer is `standalone`. On other devices
                the check would synchronize; there such a row is replaced by a finite row of the batch.
        """
        # Rows of all processes, so every process sets the same prototypes.
        rows = all_gather_rows(clip_norm(embeddings.to(self.memory.dtype)))
        if len(rows) == 0:
            return
        if rows.device.type != "cpu" or not self.standalone or _is_capturing(rows):
            rows = _replace_non_finite(rows)
        else:
            _check_finite(rows, "Check the images, the learning rate, and the precision.")
        # Each slot of the memory looks up its row, so the destination is computed on the device.
        source = torch.arange(len(self.memory), device=rows.device) - self.filled
        fresh = (source >= 0) & (source < len(rows))
        source = source.clamp(min=0, max=len(rows) - 1)
        self.memory.copy_(torch.where(fresh[:, None], rows[source], self.memory))
        self.filled.add_(len(rows)).clamp_(max=len(self.memory))
        if _is_capturing(rows):
            self._captured_rows = len(rows)  # nothing is computed during capture; `after_replay` counts each replay
        else:
            self._count(len(rows))

    @torch.no_grad()
    def _count(self, rows: int) -> None:
        """Add to the number of stored rows; set the prototypes once the memory is full."""
        self._host_filled = min(self._host_filled + rows, len(self.memory))
        if self._host_filled == len(self.memory):
            self._set_prototypes(self.memory)

    def _set_prototypes(self, rows: Tensor) -> None:
        # As in the authors' code, the first m rows only repel: the prototypes cover the rest of the data.
        count = len(self.prototypes)
        first, rest = rows[:count], rows[count:]
        # Most rows have unit length. There, rounding would decide which gradients `clip_norm` cuts to the tangent, and
        # two processes could train different weights. Slightly longer prototypes are all clipped, to the same row.
        beyond = 1 + 16 * torch.finfo(self.prototypes.dtype).eps
        self.prototypes.copy_(rest[greedy_k_center(rest, count, centers=first)] * beyond)
        self.ready.fill_(True)
        self._host_ready = True

    def describe(self, **settings: Any) -> str:
        """Return settings, sizes, and the state for `repr`."""
        count, width = self.prototypes.shape
        sizes = {"num_prototypes": count, "memory_size": len(self.memory)}
        return setting_repr(in_features=width, **sizes, **settings, prototypes_ready=self.prototypes_ready)

    def extra_repr(self) -> str:
        """Return the settings and the state for `repr`."""
        return self.describe()


def check_eps(eps: float) -> None:
    """Raise `ValueError` if a sharpness is negative, infinite, or NaN."""
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps: expected a finite number of at least 0, got {eps}.")


def _check_finite(rows: Tensor, remedy: str) -> None:
    if not rows.isfinite().all():
        image = int((~rows.isfinite().all(dim=1)).nonzero()[0])
        raise DataError(
            f"features: image {image} of the batch has NaN or infinite features, and prototypes are set from them. "
            f"{remedy}"
        )


def _replace_non_finite(rows: Tensor) -> Tensor:
    """Replace non-finite rows by a finite row of the batch, without synchronizing.

    Rows are zero if none is finite. Greedy k-center selects a duplicate only after all other rows, so the prototypes
    stay finite.
    """
    finite = rows.isfinite().all(dim=1)
    index = torch.where(finite, torch.arange(len(rows), device=rows.device), finite.to(torch.uint8).argmax())
    return torch.where(finite.any(), rows[index], 0.0)


def _read_state(module: nn.Module, _incompatible_keys: Any) -> None:
    # Read once after loading, so a loaded layer compiles to one graph and its steps do not synchronize.
    assert isinstance(module, PrototypePooling)
    if not module.ready.is_meta:
        module._host_filled, module._host_ready = int(module.filled), bool(module.ready)


def _is_capturing(tensor: Tensor) -> bool:
    """Return whether operations on this tensor are captured into a CUDA graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
