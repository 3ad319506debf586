"""Intra-batch connections (LIBC): message passing between the samples of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, cross_entropy

from winnow.functional import l2_normalize
from winnow.functional.pairs import check_class_labels


class IntraBatchRegularizer(nn.Module):
    r"""Intra-batch connections (LIBC): classify embeddings refined by their batch.

    All samples of a batch exchange messages by attention, in one or more layers with H heads, from $x_i$, the
    embedding of unit length:

    $$a_{ij}^h = \operatorname{softmax}_j \frac{(W_q^h x_i)^\top W_k^h x_j}{\sqrt{d / H}}, \qquad
      y_i = \operatorname{LN}\Big(x_i + W_o \big[\textstyle\sum_j a_{ij}^h W_v^h x_j\big]_{h=1}^H\Big), \qquad
      x_i \leftarrow \operatorname{LN}\big(y_i + W_2 [W_1 y_i]_+\big)$$

    Biases are omitted. The refined $x_i$ are classified after batch normalization without a bias, with smoothed labels
    $\tilde y$:

    $$L = -\frac1B \sum_i \sum_c \tilde y_{ic} \log \operatorname{softmax}_c \big(U \operatorname{BN}(x_i) / T\big)$$

    Only training uses the messages: evaluation compares the plain embeddings. A batch of fewer than two samples has a
    loss of zero.

    Reference: Seidenschwarz, Elezi, Leal-Taixe, "Learning Intra-Batch Connections for Deep Metric Learning", ICML 2021.

    Use when: you compare with LIBC. It is added to a loss on plain embeddings; with `loss=norm_softmax` the sum is the
    objective of the paper. Batches need several images per class, such as 6 classes with 9 images.

    Differences: the classifier of plain embeddings in the authors' code has a bias, smoothed labels, and no
    normalization. On Cars196 the authors concatenate the outputs of two layers. Their training returns to the weights
    with the best test recall at each reduction of the rate; training here selects weights on validation classes. Not in
    PML.

    Args:
        num_classes: Number of training classes C; labels are 0 .. C - 1.
        embedding_size: Size of the embeddings, a multiple of `num_heads`.
        weight: Factor on the value in training, at least 0. `forward` does not apply it.
        num_layers: Number of layers, at least 1.
        num_heads: Number of heads H of the attention, at least 1.
        temperature: Temperature T of the classifier, above 0.
        label_smoothing: Probability that a label spreads over all classes, in [0, 1).
        dropout: Dropout in the layers, in [0, 1).

    Raises:
        ValueError: If the number of heads does not divide the embedding size.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"num_layers": 1, "num_heads": 2, "temperature": 0.2},
        "cars": {"num_layers": 2, "num_heads": 8, "temperature": 0.1111},
        "sop": {"num_layers": 1, "num_heads": 8, "temperature": 0.6047},
        "inshop": {"num_layers": 1, "num_heads": 4, "temperature": 0.1859},
    }
    """Settings of the authors' code by dataset."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        weight: float = 1.0,
        num_layers: int = 1,
        num_heads: int = 2,
        temperature: float = 0.2,
        label_smoothing: float = 0.1,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if embedding_size % num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of embedding_size={embedding_size}, got {num_heads}. Change it."
            )
        self.weight, self.temperature, self.label_smoothing = weight, temperature, label_smoothing
        layers = [
            nn.TransformerEncoderLayer(embedding_size, num_heads, 4 * embedding_size, dropout)
            for _ in range(num_layers)
        ]
        layers[-1].norm2.bias.requires_grad_(False)  # batch normalization removes it
        self.layers = nn.ModuleList(layers)
        self.scale = nn.Parameter(torch.ones(embedding_size))
        self.classifier = nn.Linear(embedding_size, num_classes, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.001)

    def refine(self, embeddings: Tensor) -> Tensor:
        """Return the embeddings (B, d) after message passing.

        Dropout is active in training mode.
        """
        refined: Tensor = l2_normalize(embeddings)
        for layer in self.layers:
            refined = layer(refined)
        return refined

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss without its weight.

        Args:
            embeddings: (B, d) embeddings. They are normalized here.
            labels: (B,) integer labels of the training classes.

        Raises:
            ValueError: If a label is not one of the classes (on a CPU; on a GPU an assertion fails).
        """
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings = embeddings.to(self.scale.dtype)
            if len(labels) < 2:  # without statistics of a batch
                return embeddings.sum() * 0.0
            check_class_labels(labels, self.classifier.out_features)
            neck = batch_norm(self.refine(embeddings), None, None, self.scale, None, training=True)
            return cross_entropy(self.classifier(neck) / self.temperature, labels, label_smoothing=self.label_smoothing)
