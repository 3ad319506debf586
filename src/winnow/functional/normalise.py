"""What is done to embeddings before they are compared, the same in training and in judging."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn.functional import normalize

from winnow.functional.distances import clip_norm

Normalise = Callable[[Tensor], Tensor]


def unit_norm(vectors: Tensor) -> Tensor:
    r"""Scale vectors to unit length: $u / \lVert u \rVert_2$.

    Args:
        vectors: (..., d).
    """
    return normalize(vectors, dim=-1)


NORMALISE: Mapping[str, Normalise] = {"unit": unit_norm, "ball": clip_norm}
"""By the name a model's config gives it: onto the sphere, or into the ball, where short vectors stay short."""
