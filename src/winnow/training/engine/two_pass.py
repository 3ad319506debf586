"""Gradients of large batches: embed in chunks, then back-propagate chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor

from winnow.errors import ConfigError
from winnow.functional import PoolingOutput
from winnow.pooling import PrototypePooling
from winnow.training.engine.distributed import find_trained_norm
from winnow.training.objective import Objective


class TwoPassGradients:
    r"""Gradient of the loss of a whole batch, with the memory of one chunk of images.

    The first pass embeds all chunks $x_c$ without gradients, $e_c = f_\theta(x_c)$. The loss L of all embeddings gives
    the gradients $g_c = \partial L / \partial e_c$, and those of its own parameters. The second pass embeds each chunk
    again and back-propagates $g_c$:

    $$\frac{\partial L}{\partial \theta} = \sum_c \Big(\frac{\partial f_\theta(x_c)}{\partial \theta}\Big)^\top g_c$$

    This is the gradient of one pass, because each embedding depends on its image alone. Both passes draw the same
    random numbers, so dropout drops the same values. Losses, memories, and poolings that collect embeddings see the
    whole batch once.

    Reference: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", RepL4NLP 2021.

    Args:
        fabric: Fabric of the run.
        objective: Objective, not wrapped by Fabric.
        chunk_size: Number of images in a chunk, in each process.

    Raises:
        ConfigError: If batch norm is trained, which would normalize by the images of a chunk.
    """

    def __init__(self, fabric: Fabric, objective: Objective, chunk_size: int) -> None:
        norm = find_trained_norm(objective)
        if norm is not None:
            raise ConfigError(
                f"train.chunk_size: {norm} normalizes by the images of a chunk. Keep backbone.freeze_batch_norm=true "
                "and use a head and a pooling without batch norm, or remove train.chunk_size."
            )
        self._fabric, self._objective, self._chunk_size = fabric, objective, chunk_size
        self._precision = fabric.strategy.precision

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Add the gradient of a batch to all parameters, and return the terms of the loss.

        Args:
            inputs: Batch, or the slice of it of this process.
            labels: Labels (B,) of the whole batch.
        """
        chunks: tuple[Tensor, ...] = self._precision.convert_input(inputs).split(self._chunk_size)
        with _collect_once(self._objective, len(chunks)):
            targets = self._embed_targets(chunks)
            states, vectors, attributes = self._embed(chunks)
            with self._precision.forward_context():
                losses = self._objective.terms(vectors, attributes, labels, targets)
            losses = {name: self._precision.convert_output(value) for name, value in losses.items()}
            self._fabric.backward(losses["loss"])
            self._backpropagate(chunks, states, vectors, attributes)
        self._average_gradients()
        return losses

    def _embed_targets(self, chunks: Sequence[Tensor]) -> Tensor | None:
        """Return the teacher's embeddings of all chunks; None without self-distillation."""
        targets = list[Tensor]()
        for chunk in chunks:
            with self._precision.forward_context():
                found = self._objective.embed_targets(chunk)
            if found is None:
                return None
            targets.append(found)
        return torch.cat(targets)

    @torch.no_grad()
    def _embed(self, chunks: Sequence[Tensor]) -> tuple[list[list[Tensor]], Tensor, Tensor | None]:
        """Embed all chunks: states of the generators before each, embeddings, and attributes."""
        states, outputs = list[list[Tensor]](), list[PoolingOutput]()
        with self._objective.processes.fork_rng(chunks[0].device):
            for chunk in chunks:
                states.append(_random_state(chunk.device))
                with self._precision.forward_context():
                    outputs.append(self._objective.model(chunk, return_details=True))
        vectors = torch.cat([one.vector for one in outputs]).requires_grad_()
        found = [one.attributes for one in outputs if one.attributes is not None]
        return states, vectors, torch.cat(found).requires_grad_() if found else None

    def _backpropagate(
        self, chunks: Sequence[Tensor], states: Sequence[list[Tensor]], vectors: Tensor, attributes: Tensor | None
    ) -> None:
        """Embed each chunk again, and back-propagate the gradient of its embeddings and attributes."""
        device, start = chunks[0].device, 0
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for chunk, state in zip(chunks, states, strict=True):
                _set_random_state(device, state)
                with self._precision.forward_context():  # one per chunk, because it caches rounded weights
                    output = self._objective.model(chunk, return_details=True)
                rows, start = slice(start, start + len(chunk)), start + len(chunk)
                outputs, grads = list[Tensor](), list[Tensor]()
                for one, whole in ((output.vector, vectors), (output.attributes, attributes)):
                    if whole is not None and whole.grad is not None and one.requires_grad:
                        outputs.append(one)
                        grads.append(whole.grad[rows])
                torch.autograd.backward(outputs, grads)

    @torch.no_grad()
    def _average_gradients(self) -> None:
        """Average gradients over processes, as DDP does for the steps that it wraps."""
        count = self._objective.processes.count
        grads = [one.grad for one in self._objective.parameters() if one.grad is not None]
        if count == 1 or not grads:
            return
        flat = torch.cat([grad.flatten() for grad in grads])  # one message
        dist.all_reduce(flat)
        for grad, mean in zip(grads, torch.split(flat / count, [grad.numel() for grad in grads]), strict=True):
            grad.copy_(mean.view_as(grad))


@contextmanager
def _collect_once(objective: Objective, chunks: int) -> Iterator[None]:
    """Let poolings collect the embeddings of the whole batch at exit, and not in each pass."""
    with ExitStack() as stack:
        poolings = [module for module in objective.model.modules() if isinstance(module, PrototypePooling)]
        kept = [stack.enter_context(pooling.collecting_later()) for pooling in poolings]
        yield
    for pooling, embeddings in zip(poolings, kept, strict=True):
        if embeddings:  # of both passes
            pooling.collect(torch.cat(embeddings[:chunks]))


def _random_state(device: torch.device) -> list[Tensor]:
    """Return the states of the generators of the CPU and of a GPU."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(device: torch.device, states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
