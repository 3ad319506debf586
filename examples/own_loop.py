"""GSP, a loss, a miner, and retrieval metrics of winnow in a plain PyTorch loop.

Run it with `python examples/own_loop.py`. It needs winnow only and takes under a minute on two cores. It trains a
projection and GSP on the feature maps of a frozen network, and evaluates them on emoji of other classes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from winnow.data import ImageSet, MPerClassSampler
from winnow.data.emoji import load_emoji
from winnow.evaluation import retrieval_metrics
from winnow.losses import MultiSimilarityLoss
from winnow.miners import SemiHardMiner
from winnow.models import BackboneConfig, build_backbone
from winnow.pooling import GSP


# --8<-- [start:loop]
@torch.inference_mode()
def compute_maps(network: nn.Module, images: ImageSet, batch: int = 64) -> tuple[Tensor, Tensor]:
    """Return the feature maps (N, C, h, w) of all images, and their labels (N,)."""
    pixels = torch.stack([torch.from_numpy(np.array(images.read(i))) for i in range(len(images))])
    maps = [network(some.permute(0, 3, 1, 2) / 255) for some in pixels.split(batch)]
    return torch.cat(maps).clone(), torch.from_numpy(images.labels)


def main(train_classes: int = 100, test_classes: int = 40, steps: int = 150) -> list[dict[str, float]]:
    """Train a head; return the test metrics of averaged frozen features and of the head."""
    torch.manual_seed(0)
    network = build_backbone(BackboneConfig(name="tf_efficientnet_lite0")).eval()
    splits = load_emoji(images_per_class=6)
    maps, labels = compute_maps(network, splits.train.select_classes(range(train_classes)))
    test_maps, test_labels = compute_maps(network, splits.test.select_classes(range(test_classes)))

    gsp = GSP(128, num_prototypes=32, mu=0.1, eps=20.0, memory_size=256)
    head = nn.Sequential(nn.Conv2d(maps.shape[1], 128, kernel_size=1), gsp)
    criterion = MultiSimilarityLoss(miner=SemiHardMiner(margin=0.2))
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    sampler = MPerClassSampler(labels, classes_per_batch=16, samples_per_class=4, batches_per_epoch=steps)
    loader = DataLoader(TensorDataset(maps, labels), batch_sampler=sampler)

    with torch.no_grad():
        gsp.init_prototypes(head[0](maps[:256]))
    for batch_maps, batch_labels in loader:
        loss = criterion(head(batch_maps), batch_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with torch.inference_mode():
        embeddings = head.eval()(test_maps)
    return [retrieval_metrics(vectors, test_labels) for vectors in (test_maps.mean(dim=(2, 3)), embeddings)]
    # --8<-- [end:loop]


if __name__ == "__main__":
    for name, metrics in zip(("frozen average", "GSP head"), main(), strict=True):
        print(f"{name}: P@1 {100 * metrics['P@1']:.1f}%, MAP@R {100 * metrics['MAP@R']:.1f}%")
