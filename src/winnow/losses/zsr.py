"""Zero-shot regularisation: attributes learned on some classes must predict the embeddings of others."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from winnow.losses.inverse import can_invert, spd_inverse


def class_disjoint_halves(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Split a batch at random into two halves that share no class.

    Written with fixed shapes throughout, so that it neither waits for the device nor breaks a compiled graph.

    Args:
        labels: (B,) integer labels, any values.

    Returns:
        (B,) bool, true for the first half; and how many distinct classes there are, a scalar tensor.
    """
    same = labels[:, None] == labels[None, :]
    first = ~same.tril(-1).any(dim=1)  # the first sample of each class stands for it
    representative = same.int().argmax(dim=1)
    # One number per class, from a permutation: two equal draws would unbalance the halves.
    draw = torch.randperm(len(labels), device=labels.device)[representative]
    rank = ((draw[None, :] < draw[:, None]) & first[None, :]).sum(dim=1)
    classes = first.sum()
    return rank < classes // 2, classes


def ridge_regression(inputs: Tensor, targets: Tensor, ridge: float) -> Tensor:
    r"""Return $A = \arg\min_A \lVert Z A - Y \rVert^2 + \epsilon \lVert A \rVert^2$, solved in the smaller dimension.

    $$A = (Z^\top Z + \epsilon I)^{-1} Z^\top Y = Z^\top (Z Z^\top + \epsilon I)^{-1} Y$$

    A row of zeros in both Z and Y is as good as absent.

    Args:
        inputs: Z, (..., B, m).
        targets: Y, (..., B, d).
        ridge: epsilon, above 0.

    Returns:
        (..., m, d).
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
        # cholesky_ex, because cholesky would wait for the device only to check what ridge > 0 guarantees.
        solution = torch.cholesky_solve(right, torch.linalg.cholesky_ex(gram).L)
    return solution if width < samples else inputs.mT @ solution


_LONG, _LITTLE = 120.0, 0.002  # a logit that is too large, and a weight that did little harm there


class ZeroShotRegularisation(nn.Module):
    r"""Zero-shot prediction loss on the prototypes' attributes (ZSR).

    The batch is split into halves $b_1, b_2$ without a class in common. A ridge regression from attributes $z$ to the
    learnable class embeddings $\upsilon$ is fitted on one half and must classify the other:

    $$A_k = \arg\min_A \sum_{i \in b_k} \lVert A^\top z_i - \upsilon_{y_i} \rVert^2 + \epsilon \lVert A \rVert^2, \qquad
      L = \frac1{|b|} \sum_{i \in b} -\log \operatorname{softmax}_{y_i}\big(s\, \Upsilon A_{k'}^\top z_i\big)$$

    with $k'$ the half that $i$ is not in. Zero for a batch of one class or none, and while the pooling has no
    attributes yet (all zero). The scale $s = 9.5$ is in the original code, not in the text, whose Eq. 4.4 also sums
    the two halves' means where the code averages over the batch; this follows the code.

    When to use a small weight: with few classes. Class embeddings begin with a squared length of about 2 width /
    num_classes, as in the original code; with 16 classes the loss begins near 35 and its gradient overrules a loss such
    as C2, until all attributes are alike. There take a weight well below 0.01; the documents' 0.1 is for 100 or more.

    Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023, section 4.3.

    Args:
        num_classes: Number of training classes; labels must be 0 .. num_classes - 1.
        width: Size of the class embeddings.
        ridge: Weight epsilon of the regression's penalty.
        scale: Factor s on the logits.
    """

    def __init__(self, num_classes: int, width: int, *, ridge: float = 0.05, scale: float = 9.5) -> None:
        super().__init__()
        self.ridge, self.scale = ridge, scale
        self.class_embeddings = nn.Parameter(torch.randn(num_classes, width) * (2 / num_classes) ** 0.5)

    def notes(self, weight: float) -> list[str]:
        """Say so if there are so few classes that the loss is likely to overrule the one it is added to.

        With a logit of 99, as in the documents' largest setting, it does not; with 152 it did (Cifar Collage).
        """
        classes, width = self.class_embeddings.shape
        logit = 2 * self.scale * width / classes
        if logit <= _LONG or weight <= _LITTLE:
            return []
        return [
            f"zsr={weight:g} with {classes} training classes: its class embeddings begin long (a logit of {logit:.0f} "
            f"with themselves), and it may overrule the loss; leave it out, or try zsr={_LITTLE:g}"
        ]

    def forward(self, attributes: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss.

        Args:
            attributes: (B, m) from the pooling.
            labels: (B,) training labels.
        """
        if len(labels) == 0:
            return attributes.sum() * 0.0 + self.class_embeddings.sum() * 0.0
        with torch.autocast(attributes.device.type, enabled=False):
            in_first, classes = class_disjoint_halves(labels)
            z = attributes.to(self.class_embeddings.dtype)
            targets = self.class_embeddings[labels]
            halves = torch.stack([in_first, ~in_first])[..., None]
            predictors = ridge_regression(z * halves, targets * halves, self.ridge)  # (2, m, d)
            predicted = torch.where(in_first[:, None], z @ predictors[1], z @ predictors[0])
            logits = self.scale * predicted @ self.class_embeddings.mT
            active = (classes >= 2) & (z != 0).any()
            return cross_entropy(logits, labels) * active
