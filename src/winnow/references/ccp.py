"""Chance-constrained proxies (CCP), selected from data for every subproblem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from winnow.functional import greedy_k_center
from winnow.references.base import ProxyReferences, check_at_least


class ChanceConstrainedProxies(ProxyReferences):
    r"""Chance-constrained proxies (CCP): subproblems with proxies from data.

    $$L = \ell(Q, R) + w\, \ell(Q, Q) + \frac{\lambda_k}{2} \lVert \theta - \theta^{(k-1)} \rVert_2^2, \qquad
      \lambda_1 = 0,\; \lambda_k = \lambda$$

    A subproblem ends when its validation metric has not improved for `patience` validations. Its best weights become
    $\theta^{(k-1)}$ of the next subproblem. Each class then selects new proxies from $b$ freshly embedded images by
    greedy k-center, away from the proxies of the last subproblem. The proximal penalty, the last term, applies to the
    weights of the network only.

    This module has the proxies, their selection (`seed`), and the settings. Training by a config runs the subproblems
    and adds the proximal penalty.

    Reference: [CCP]: Gürbüz, Can, Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024.

    Use when: you train a pair loss such as `c2` or `ms` against a few references of each class that represent its
    data. Training takes longer than with proxies, because each subproblem runs until validation stalls.

    Differences: [CCP] has no batch term; the authors' code has one with weight 0.1, the default here. The first
    subproblem has no penalty, as in the authors' code. Not in PML.

    Args:
        num_classes: Number of training classes C, at least 1. Labels are 0 .. C - 1.
        embedding_size: Size of the embeddings, at least 1.
        proxies_per_class: Number of proxies K of each class, at least 1.
        pool_size: Number of images b of each class from which proxies are selected, at least K. At b = K the selection
            is random.
        proximal_weight: Weight lambda of the proximal penalty, at least 0.
        batch_weight: Weight w of the loss within the batch, at least 0. The authors' code has 0.1, [CCP] has 0.
        patience: Validations without improvement that end a subproblem, at least 1.
        max_steps: Number of steps after which the next validation ends a subproblem, also one that still improves, at
            least 1. None means no limit.
        monitor: Validation metric that ends subproblems. The best weights of the run are chosen by `train.monitor`.
        max_problems: Maximum number of subproblems; the last one continues until the run ends. None means no limit.
        start_from: Weights that a subproblem starts from: the "best" of the last one, or its "last" ones, which the
            new subproblem then has to improve on.
        normalize_proxies: Select among normalized embeddings and use these as proxies, instead of raw ones. Adam moves
            a value by about the learning rate per step, so long proxies hardly turn. Raw embeddings may be a hundred
            times longer than normalized ones.
        lr_multiplier: Factor on the learning rate of the proxies in training by a config, at least 0. None means 10
            with a frozen backbone, 100 where it is trained, and 1 for proxies that are not normalized. Patterns of
            `train.lr_multipliers` that match the proxies replace it.

    Raises:
        ValueError: If a size or setting is below its minimum.
    """

    aliases: ClassVar[Mapping[str, str]] = {
        "per_class": "proxies_per_class", "pool": "pool_size", "pull": "proximal_weight", "problems": "max_problems",
        "start": "start_from", "normalised": "normalize_proxies",
    }  # fmt: skip
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "literal": {"normalize_proxies": False, "lr_multiplier": 1.0, "start_from": "last"},
        "cub": {"proxies_per_class": 8, "pool_size": 12},
        "cars": {"proxies_per_class": 8, "pool_size": 12},
        "sop": {"proxies_per_class": 4, "pool_size": 7},
        "inshop": {"proxies_per_class": 4, "pool_size": 7},
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        proxies_per_class: int = 8,
        pool_size: int = 12,
        proximal_weight: float = 2e-4,
        batch_weight: float = 0.1,
        patience: int = 3,
        max_steps: int | None = None,
        monitor: Literal["MAP@R", "P@1"] = "MAP@R",
        max_problems: int | None = None,
        start_from: Literal["best", "last"] = "best",
        normalize_proxies: bool = True,
        lr_multiplier: float | None = None,
    ) -> None:
        super().__init__(num_classes, embedding_size, proxies_per_class=proxies_per_class, batch_weight=batch_weight)
        if pool_size < proxies_per_class:
            raise ValueError(
                f"pool_size: expected at least proxies_per_class={proxies_per_class}, got {pool_size}. Increase it."
            )
        check_at_least("proximal_weight", proximal_weight, 0)
        check_at_least("patience", patience, 1)
        if max_steps is not None:
            check_at_least("max_steps", max_steps, 1)
        if max_problems is not None:
            check_at_least("max_problems", max_problems, 1)
        self.pool_size, self.proximal_weight = pool_size, proximal_weight
        self.patience, self.max_steps, self.monitor, self.max_problems = patience, max_steps, monitor, max_problems
        if lr_multiplier is not None:
            check_at_least("lr_multiplier", lr_multiplier, 0)
        self.start_from, self.normalize_proxies, self.lr_multiplier = start_from, normalize_proxies, lr_multiplier

    def warnings(self, steps: int, sizes: Sequence[int]) -> list[str]:
        """Return a warning if classes have no more images than proxies.

        Nothing can be selected then.
        """
        few = sum(size <= self.proxies_per_class for size in sizes)
        if not few:
            return []
        return [
            f"references.proxies_per_class: {few} classes have at most {self.proxies_per_class} images, which all "
            "become proxies. Use fewer proxies."
        ]

    def class_proxies(self, classes: Tensor) -> Tensor:
        """Return the proxies (c, K, d) of the given classes (c,)."""
        return self._by_class()[classes]

    @torch.no_grad()
    def seed(self, pool: Tensor, classes: Tensor, *, first: bool, normalize: Callable[[Tensor], Tensor]) -> None:
        r"""Set proxies to the pool members farthest from the other proxies of the class.

        $$q = \arg\max_{u \in p_c} \min_{v \in \rho_c \cup r_c} \lVert u - v \rVert_2, \qquad
          r_c \leftarrow r_c \cup \{q\}, \qquad \text{until } |r_c| = K$$

        The proxies change in place, so an optimizer and captured CUDA graphs stay valid.

        Args:
            pool: (c, b, d) raw embeddings $p_c$.
            classes: (c,) class of each row of the pool. Proxies of other classes do not change.
            first: Whether this is the first subproblem, which has no converged proxies $\rho_c$. The longest embedding
                is then selected first, also among normalized ones, whose lengths differ by rounding only.
            normalize: Normalization of the loss, such as `PairLoss.normalizer`.
        """
        normalized = normalize if self.normalize_proxies else lambda vectors: vectors
        candidates = normalized(pool)
        if first:
            selected = pool.square().sum(dim=-1).argmax(dim=-1, keepdim=True)
            if self.proxies_per_class > 1:
                others = torch.ones(pool.shape[:2], dtype=torch.bool, device=pool.device).scatter_(1, selected, False)
                centers = candidates.take_along_dim(selected[..., None], dim=1)
                rest = greedy_k_center(candidates, self.proxies_per_class - 1, centers, mask=others)
                selected = torch.cat([selected, rest], dim=-1)
        else:
            selected = greedy_k_center(candidates, self.proxies_per_class, normalized(self.class_proxies(classes)))
        proxies = candidates.take_along_dim(selected[..., None], dim=1)
        self._by_class().index_copy_(0, classes, proxies.to(self.proxies.dtype))

    def _by_class(self) -> Tensor:
        """Return a view (C, K, d) of the proxies."""
        return self.proxies.detach().view(-1, self.proxies_per_class, self.proxies.shape[1])
