"""Losses. Each pair loss is one file and one line in `LOSSES`."""

from winnow.losses.base import PairLoss
from winnow.losses.contrastive import C1, C2
from winnow.losses.multi_similarity import MultiSimilarity
from winnow.losses.triplet import Triplet
from winnow.losses.zsr import ZeroShotRegularisation
from winnow.registry import Registry

LOSSES: Registry[PairLoss] = Registry(
    "loss",
    {
        "c1": C1,
        "c2": C2,
        "triplet": Triplet,
        "ms": MultiSimilarity,
    },
    default="ms",
)

__all__ = ["C1", "C2", "LOSSES", "MultiSimilarity", "PairLoss", "Triplet", "ZeroShotRegularisation"]
