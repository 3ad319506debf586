"""Pair losses, proxy losses, zero-shot regularization, and the proximal penalty."""

from winnow.functional.pairs import Pairs
from winnow.losses.base import PairLoss
from winnow.losses.contrastive import ContrastiveLoss, CosineContrastiveLoss, MarginLoss
from winnow.losses.proximal import ProximalPenalty
from winnow.losses.proxy import ProxyAnchorLoss, ProxyLoss, ProxyNCALoss, SoftTripleLoss
from winnow.losses.reference import ReferenceLoss
from winnow.losses.softmax import MultiSimilarityLoss, NPairsLoss
from winnow.losses.triplet import GeneralizedLiftedStructureLoss, TripletMarginLoss
from winnow.losses.zero_shot import ZeroShotRegularizer
from winnow.registry import Registry

LOSSES: Registry[PairLoss] = Registry(
    "loss",
    {
        "c1": CosineContrastiveLoss,
        "c2": ContrastiveLoss,
        "triplet": TripletMarginLoss,
        "ms": MultiSimilarityLoss,
        "margin": MarginLoss,
        "npair": NPairsLoss,
        "lifted": GeneralizedLiftedStructureLoss,
        "proxy_anchor": ProxyAnchorLoss,
        "proxy_nca": ProxyNCALoss,
        "soft_triple": SoftTripleLoss,
    },
    default="ms",
    aliases={
        "cosine_contrastive": "c1",
        "contrastive": "c2",
        "multi_similarity": "ms",
        "npairs": "npair",
        "lifted_structure": "lifted",
        "pa": "proxy_anchor",
        "pnca": "proxy_nca",
        "softtriple": "soft_triple",
    },
)

__all__ = [
    "LOSSES",
    "ContrastiveLoss",
    "CosineContrastiveLoss",
    "GeneralizedLiftedStructureLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NPairsLoss",
    "PairLoss",
    "Pairs",
    "ProximalPenalty",
    "ProxyAnchorLoss",
    "ProxyLoss",
    "ProxyNCALoss",
    "ReferenceLoss",
    "SoftTripleLoss",
    "TripletMarginLoss",
    "ZeroShotRegularizer",
]
