"""Proxies that are seeded anew from the data, problem after problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from winnow.functional import greedy_k_centre
from winnow.losses import PairLoss
from winnow.references.proxies import Proxies


class CCP(Proxies):
    r"""Chance-constrained programming (CCP): a sequence of problems, each with proxies picked from the data.

    $$L = \ell(Q, R) + w\, \ell(Q, Q) + \frac{\lambda_k}{2} \lVert \theta - \theta^{(k-1)} \rVert_2^2, \qquad
      \lambda_1 = 0,\; \lambda_k = \lambda$$

    A problem ends when the MAP@R of validations (or its `monitor`) stalls. Its best weights become the next one's
    $\theta^{(k-1)}$, and every class picks its new proxies out of a fresh pool of $b$ embedded images by greedy
    k-centre, away from the proxies the last problem came to. The pull towards $\theta^{(k-1)}$ is on the network's
    weights alone.

    When to use it: with a loss over pairs of images, such as `c2` or `ms`, to train against a few references of every
    class that stand for its data instead of free proxies. Training goes through several problems, each until
    validation stalls, so it takes longer than proxies do.

    Reference: Gürbüz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024.

    Args:
        num_classes: Training classes C; labels must be 0 .. C - 1.
        width: Size of the embeddings.
        per_class: Proxies K of each class.
        pool: Images b of each class among which its proxies are picked; at least K.
        pull: Weight lambda of the pull towards the last problem's weights.
        batch_weight: Weight w of the loss within the batch: 0.1 in the documents' code, 0 in their text.
        patience: Validations without a better value that end a problem.
        monitor: The metric of a validation that this goes by, whatever decides on the run's best weights.
        problems: How many there are at most; the last goes on until the run ends. None for any number.
        start: What a problem starts from: the last one's "best" weights, or its "last", which it then has to beat.
        normalised: Pick among embeddings as the loss compares them, which become the proxies, instead of raw ones.
            An optimiser such as Adam moves a number by about the learning rate in a step, whatever its size: proxies
            as long as raw embeddings, which may be a hundred times longer, hardly move.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"per_class": 8, "pool": 12},
        "cars": {"per_class": 8, "pool": 12},
        "sop": {"per_class": 4, "pool": 7},
        "inshop": {"per_class": 4, "pool": 7},
    }

    def __init__(
        self,
        num_classes: int,
        width: int,
        *,
        per_class: int = 8,
        pool: int = 12,
        pull: float = 2e-4,
        batch_weight: float = 0.1,
        patience: int = 3,
        monitor: Literal["MAP@R", "P@1"] = "MAP@R",
        problems: int | None = None,
        start: Literal["best", "last"] = "best",
        normalised: bool = False,
    ) -> None:
        super().__init__(num_classes, width, per_class=per_class)
        if pool < per_class:
            raise ValueError(f"a pool of {pool} images is too small for {per_class} proxies of a class")
        if pull < 0 or batch_weight < 0:
            raise ValueError(f"pull and batch_weight cannot be negative, got {pull} and {batch_weight}")
        if patience < 1:
            raise ValueError(f"a problem needs a patience of at least 1 validation, got {patience}")
        if problems is not None and problems < 1:
            raise ValueError(f"training needs at least 1 problem, got {problems}")
        self.per_class, self.problems = per_class, problems
        self.pool, self.pull, self.batch_weight = pool, pull, batch_weight
        self.patience, self.monitor, self.start, self.normalised = patience, monitor, start, normalised

    def notes(self, steps: int, sizes: Sequence[int]) -> list[str]:
        """Say so if classes have no more images than proxies: then every image is one, and nothing is chosen."""
        few = sum(size <= self.per_class for size in sizes)
        if not few:
            return []
        return [f"{few} classes have at most {self.per_class} images: all of them become proxies; use fewer "
                "(references.per_class)"]  # fmt: skip

    def forward(self, loss: PairLoss, queries: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the batch against all proxies, and a share of that within itself."""
        value = super().forward(loss, queries, labels)
        if self.batch_weight:
            value = value + self.batch_weight * loss(queries, labels)
        return value

    def of_classes(self, classes: Tensor) -> Tensor:
        """Return the proxies (c, K, d) of some classes."""
        return self._by_class()[classes]

    @torch.no_grad()
    def seed(self, pool: Tensor, classes: Tensor, *, first: bool, normalise: Callable[[Tensor], Tensor]) -> None:
        r"""Set proxies to members of a pool, each the farthest from those of its class.

        $$q = \arg\max_{u \in p_c} \min_{v \in \rho_c \cup r_c} \lVert u - v \rVert_2, \qquad
          r_c \leftarrow r_c \cup \{q\}, \qquad \text{until } |r_c| = K$$

        In place, so that the optimiser and captured steps go on with them.

        Args:
            pool: (c, b, d) raw embeddings $p_c$.
            classes: (c,) whose they are; proxies of other classes stay.
            first: Whether there are no converged proxies $\rho_c$ yet; the farthest from the origin is then first.
            normalise: What the loss does to vectors before it compares them.
        """
        seen, converged = pool, self.of_classes(classes)
        if self.normalised:
            seen, converged = normalise(seen), normalise(converged)
        picks = greedy_k_centre(seen, self.per_class, None if first else converged)
        picked = seen.take_along_dim(picks[..., None], dim=1)
        self._by_class().index_copy_(0, classes, picked.to(self.proxies.dtype))

    def _by_class(self) -> Tensor:
        """Return a view (C, K, d) of the proxies."""
        return self.proxies.detach().view(-1, self.per_class, self.proxies.shape[1])
