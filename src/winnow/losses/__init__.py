"""Losses. Each pair loss is one file and one line in `LOSSES`."""

from winnow.losses.base import PairLoss
from winnow.losses.contrastive import C1, C2
from winnow.losses.lifted import LiftedStructure
from winnow.losses.margin import Margin
from winnow.losses.multi_similarity import MultiSimilarity
from winnow.losses.npair import NPair
from winnow.losses.pairs import Pairs
from winnow.losses.proxy_anchor import ProxyAnchor
from winnow.losses.proxy_nca import ProxyNCA
from winnow.losses.pull import Pull
from winnow.losses.soft_triple import SoftTriple
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
        "margin": Margin,
        "npair": NPair,
        "lifted": LiftedStructure,
        "proxy_anchor": ProxyAnchor,
        "proxy_nca": ProxyNCA,
        "soft_triple": SoftTriple,
    },
    default="ms",
)

__all__ = [
    "C1",
    "C2",
    "LOSSES",
    "LiftedStructure",
    "Margin",
    "MultiSimilarity",
    "NPair",
    "PairLoss",
    "Pairs",
    "ProxyAnchor",
    "ProxyNCA",
    "Pull",
    "SoftTriple",
    "Triplet",
    "ZeroShotRegularisation",
]
