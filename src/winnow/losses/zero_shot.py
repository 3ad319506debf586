"""Zero-shot regularization (ZSR) and the ridge regression it uses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from winnow.functional import l2_normalize
from winnow.functional.pairs import check_class_labels
from winnow.kernels.ops import can_invert, spd_inverse
from winnow.registry import show_settings


def class_disjoint_halves(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Split a batch at random into two halves that share no class.

    All shapes are fixed, so it neither waits for the device nor breaks a compiled graph.

    Args:
        labels: (B,) integer labels, any values.

    Returns:
        (B,) bool, true for the first half; and the number of distinct classes, a scalar tensor.
    """
    same = labels[:, None] == labels[None, :]
    first = ~same.tril(-1).any(dim=1)  # the first sample of each class represents it
    representative = same.int().argmax(dim=1)
    # One number per class, from a permutation: two equal draws would unbalance the halves.
    draw = torch.randperm(len(labels), device=labels.device)[representative]
    rank = ((draw[None, :] < draw[:, None]) & first[None, :]).sum(dim=1)
    classes = first.sum()
    return rank < classes // 2, classes


def ridge_regression(inputs: Tensor, targets: Tensor, ridge: float) -> Tensor:
    r"""Solve a ridge regression in the smaller dimension.

    $$A = \arg\min_A \lVert Z A - Y \rVert^2 + \epsilon \lVert A \rVert^2
        = (Z^\top Z + \epsilon I)^{-1} Z^\top Y = Z^\top (Z Z^\top + \epsilon I)^{-1} Y$$

    A row of zeros in both Z and Y changes nothing.

    Args:
        inputs: Z, (..., B, m).
        targets: Y, (..., B, d).
        ridge: Penalty epsilon, above 0.

    Returns:
        Solution A, (..., m, d).
    """
    samples, width = inputs.shape[-2:]
    if width < samples:
        gram, right = inputs.mT @ inputs, inputs.mT @ targets
    else:
        gram, right = inputs @ inputs.mT, targets
    gram = gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    if can_invert(gram):
        solution = spd_inverse(gram) @ right
    else:
        # cholesky_ex: cholesky waits for the device to check what ridge > 0 guarantees.
        solution = torch.cholesky_solve(right, torch.linalg.cholesky_ex(gram).L)
    return solution if width < samples else inputs.mT @ solution


def class_directions(proxies: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    r"""Return the unit mean $\upsilon_y = \bar\rho_y / \lVert \bar\rho_y \rVert$ of each class's proxies.

    Args:
        proxies: (P, d) vectors, at least one of each class.
        labels: (P,) classes, 0 .. C - 1.
        num_classes: Number of classes C.

    Returns:
        (C, d) unit vectors.
    """
    sums = proxies.new_zeros(num_classes, proxies.shape[1]).index_add(0, labels, l2_normalize(proxies))
    return l2_normalize(sums)


_LARGE_LOGIT, _SMALL_WEIGHT = 120.0, 0.002  # a logit that is too large, and a weight that did little harm there
_ENOUGH, _RECENT = 10, 3  # validations before a warning, and those whose mean it reports
_FASTER = 10  # factor on the learning rate of class embeddings that a warning suggests


class ZeroShotRegularizer(nn.Module):
    r"""Zero-shot regularization (ZSR): attributes predict held-out class embeddings.

    The batch is split into halves $b_1, b_2$ without a class in common. A ridge regression from attributes $z$ to the
    trainable class embeddings $\upsilon$ is fitted on one half and classifies the other half:

    $$A_k = \arg\min_A \sum_{i \in b_k} \lVert A^\top z_i - \upsilon_{y_i} \rVert^2 + \epsilon \lVert A \rVert^2, \qquad
      L = \frac1{|b|} \sum_{i \in b} -\log \operatorname{softmax}_{y_i}\big(s\, \Upsilon A_{k'}^\top z_i\big)$$

    $k'$ is the half without $i$. The loss is zero for a batch of at most one class, and while the pooling has no
    attributes yet (all zero).

    Reference: [GSP], section 4.3.

    Use when: the pooling has attributes, as GSP. [GSP] uses a weight of 0.1 with 100 or more classes. Class embeddings
    start with a squared length of about 2 * embedding_size / num_classes, as in the authors' code. With the authors'
    scale of 9.5 and 16 classes the loss starts near 35, and its gradient dominates a loss such as C2 until all
    attributes are alike: take a weight well below 0.01 there.

    Differences: the authors' code has a scale $s = 9.5$, which the paper does not mention: `zsr.preset=authors`.
    Eq. 4.4 of the paper sums the means of the two halves; the authors' code and this loss average over the batch. Not
    in PML.

    Args:
        num_classes: Number of training classes C; labels are 0 .. C - 1.
        embedding_size: Size of the class embeddings.
        ridge_alpha: Penalty epsilon of the regression, above 0.
        logit_scale: Factor s on the logits, above 0.
        lr_multiplier: Factor on the learning rate of the class embeddings in training, at least 0.
        class_embeddings: "own" parameters, or "proxies": the unit mean of each class's proxies, which `forward` gets.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"authors": {"logit_scale": 9.5}}
    """Settings of the authors' code."""
    aliases: ClassVar[Mapping[str, str]] = {"ridge": "ridge_alpha", "scale": "logit_scale"}

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        ridge_alpha: float = 0.05,
        logit_scale: float = 1.0,
        lr_multiplier: float = 1.0,
        class_embeddings: Literal["own", "proxies"] = "own",
    ) -> None:
        super().__init__()
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.ridge_alpha, self.logit_scale, self.lr_multiplier = ridge_alpha, logit_scale, lr_multiplier
        self.class_embeddings: nn.Parameter | None = None
        if class_embeddings == "own":
            self.class_embeddings = nn.Parameter(torch.randn(num_classes, embedding_size) * (2 / num_classes) ** 0.5)

    def warnings(self, weight: float) -> list[str]:
        """Return a warning if the weight is large for the number of classes.

        A logit of 99, as in the largest setting of [GSP], does not dominate; one of 152 did (CIFAR Collage).
        """
        classes = self.num_classes
        logit = 2 * self.logit_scale * self.embedding_size / classes
        if self.class_embeddings is None or logit <= _LARGE_LOGIT or weight <= _SMALL_WEIGHT:
            return []
        return [
            f"zsr.weight: {weight:g} may be too large for {classes} training classes, whose class embeddings start "
            f"with a logit of {logit:.0f}. Set it to 0 or try {_SMALL_WEIGHT:g}."
        ]

    @property
    def guess(self) -> float:
        """Loss of guessing, ln C."""
        return math.log(self.num_classes)

    def guess_warning(self, values: Sequence[float]) -> str | None:
        """Return a warning if the loss is no better than guessing.

        Args:
            values: Mean losses before each validation, since attributes exist. The warning comes with the tenth, so
                there is at most one.
        """
        recent = sum(values[-_RECENT:]) / _RECENT
        if len(values) != _ENOUGH or recent <= self.guess:
            return None
        remedy = f"Try zsr.lr_multiplier={_FASTER}" if self.logit_scale <= 1 else "Try zsr.logit_scale=1"
        return (
            f"zsr.weight: the loss of ZSR is {recent:.2f} after {_ENOUGH} validations, above that of guessing, "
            f"ln {self.num_classes} = {self.guess:.2f}: attributes predict no classes. {remedy}, or zsr=0."
        )

    def extra_repr(self) -> str:
        """Return the sizes and settings as constructor arguments."""
        return f"{self.num_classes}, {self.embedding_size}, {show_settings(self)}"

    def forward(self, attributes: Tensor, labels: Tensor, proxies: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return the scalar loss.

        Args:
            attributes: (B, m) attributes of the pooling.
            labels: (B,) integer labels of the training classes.
            proxies: Proxies (P, d) and their labels (P,), with `class_embeddings="proxies"`.

        Raises:
            ValueError: If a label is not one of the classes (on a CPU; on a GPU an assertion fails), or proxies are
                missing.
        """
        with torch.autocast(attributes.device.type, enabled=False):
            if self.class_embeddings is not None:
                embeddings: Tensor = self.class_embeddings
            elif proxies is not None:
                embeddings = class_directions(*proxies, self.num_classes)
            else:
                raise ValueError("proxies: class_embeddings=proxies requires them, got None. Pass proxies and labels.")
            if len(labels) == 0:
                return attributes.sum() * 0.0 + embeddings.sum() * 0.0
            check_class_labels(labels, self.num_classes)
            in_first, classes = class_disjoint_halves(labels)
            z = attributes.to(embeddings.dtype)
            targets = embeddings[labels]
            halves = torch.stack([in_first, ~in_first])[..., None]
            predictors = ridge_regression(z * halves, targets * halves, self.ridge_alpha)  # (2, m, d)
            predicted = torch.where(in_first[:, None], z @ predictors[1], z @ predictors[0])
            logits = self.logit_scale * predicted @ embeddings.mT
            active = (classes >= 2) & (z != 0).any()
            return cross_entropy(logits, labels) * active
