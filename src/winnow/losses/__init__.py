"""Pair losses, proxy losses, zero-shot and intra-batch regularization, and self-distillation."""

from winnow.functional.pairs import Pairs
from winnow.losses.base import PairLoss
from winnow.losses.classification import ArcFaceLoss, NormalizedSoftmaxLoss
from winnow.losses.contrastive import ContrastiveLoss, CosineContrastiveLoss, MarginLoss
from winnow.losses.distillation import RelationalDistillation
from winnow.losses.intra_batch import IntraBatchRegularizer
from winnow.losses.potential_field import PotentialFieldLoss
from winnow.losses.proximal import ProximalPenalty
from winnow.losses.proxy import ProxyAnchorLoss, ProxyLoss, ProxyNCALoss, SoftTripleLoss
from winnow.losses.ranking import RecallAtKLoss, SmoothAPLoss
from winnow.losses.reference import ReferenceLoss
from winnow.losses.softmax import MultiSimilarityLoss, NPairsLoss, SupConLoss
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
        "supcon": SupConLoss,
        "smooth_ap": SmoothAPLoss,
        "recall_at_k": RecallAtKLoss,
        "proxy_anchor": ProxyAnchorLoss,
        "proxy_nca": ProxyNCALoss,
        "soft_triple": SoftTripleLoss,
        "norm_softmax": NormalizedSoftmaxLoss,
        "arcface": ArcFaceLoss,
        "pfml": PotentialFieldLoss,
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
        "supervised_contrastive": "supcon",
        "recall_at_k_surrogate": "recall_at_k",
        "normalized_softmax": "norm_softmax",
        "potential_field": "pfml",
    },
)

__all__ = [
    "LOSSES",
    "ArcFaceLoss",
    "ContrastiveLoss",
    "CosineContrastiveLoss",
    "GeneralizedLiftedStructureLoss",
    "IntraBatchRegularizer",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NPairsLoss",
    "NormalizedSoftmaxLoss",
    "PairLoss",
    "Pairs",
    "PotentialFieldLoss",
    "ProximalPenalty",
    "ProxyAnchorLoss",
    "ProxyLoss",
    "ProxyNCALoss",
    "RecallAtKLoss",
    "ReferenceLoss",
    "RelationalDistillation",
    "SmoothAPLoss",
    "SoftTripleLoss",
    "SupConLoss",
    "TripletMarginLoss",
    "ZeroShotRegularizer",
]
