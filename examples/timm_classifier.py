"""GSP in a plain timm classifier, trained with a loss of pytorch-metric-learning.

Run: `python examples/timm_classifier.py`. It needs `pip install winnow-dml timm pytorch-metric-learning` and takes half
a minute on a CPU. The images are synthetic: each shows a square in the color of its class in colored clutter.
"""

from __future__ import annotations

import timm
import torch
from pytorch_metric_learning import losses
from torch import Tensor, nn

from winnow.pooling import GSP

CLASSES, SIDE = 8, 64


def make_images(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a square in the color of the class at a random position in colored blocks: (B, 3, SIDE, SIDE)."""
    colors = torch.tensor([[c & 1, c >> 1 & 1, c >> 2 & 1] for c in range(CLASSES)]) * 2.0 - 1.0
    clutter = torch.randn(len(labels), 3, SIDE // 8, SIDE // 8, generator=generator)
    images = clutter.repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)
    corners = torch.randint(0, SIDE - 20, (len(labels), 2), generator=generator).tolist()
    for image, label, (y, x) in zip(images, labels.tolist(), corners, strict=True):
        image[:, y : y + 20, x : x + 20] = colors[label][:, None, None]
    return images


# --8<-- [start:model]
def make_model(backbone: str = "resnet10t") -> nn.Module:
    """Replace the average pooling of a timm classifier by GSP; its last layer returns the embedding."""
    model = timm.create_model(backbone, pretrained=False, num_classes=32)
    model.global_pool = GSP(model.num_features, num_prototypes=8, mu=0.2, eps=5.0, memory_size=64)
    return model


def train(model: nn.Module, steps: int, batch: int = 32, seed: int = 0) -> list[float]:
    """Train with the Proxy-Anchor loss and return the loss of each step."""
    loss = losses.ProxyAnchorLoss(num_classes=CLASSES, embedding_size=32)
    optimizer = torch.optim.AdamW(
        [{"params": model.parameters(), "lr": 1e-3}, {"params": loss.parameters(), "lr": 0.1}]
    )
    generator = torch.Generator().manual_seed(seed)
    history = []
    model.train()
    for _ in range(steps):
        labels = torch.arange(batch) % CLASSES
        value = loss(model(make_images(labels, generator)), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        history.append(float(value.detach()))
    return history
    # --8<-- [end:model]


@torch.no_grad()
def accuracy(model: nn.Module, count: int = 64, seed: int = 1) -> float:
    """Return the fraction of new images whose nearest neighbor has the same class (P@1)."""
    labels = torch.arange(count) % CLASSES
    embeddings = nn.functional.normalize(model.eval()(make_images(labels, torch.Generator().manual_seed(seed))))
    similar = (embeddings @ embeddings.mT).fill_diagonal_(-1)
    return float((labels[similar.argmax(dim=1)] == labels).float().mean())


if __name__ == "__main__":
    torch.manual_seed(0)
    network = make_model()
    print(f"P@1 before training: {accuracy(network):.0%}")
    curve = train(network, steps=60)
    print(f"loss {curve[0]:.2f} -> {curve[-1]:.2f}; prototypes set from data: {network.global_pool.prototypes_ready}")
    print(f"P@1 after training:  {accuracy(network):.0%}")
