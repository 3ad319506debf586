"""Pure tensor math: GSP, distances, skewed means, k-center selection, and hulls."""

from winnow.functional.average_pooling import AveragePooling, analyze_average_pooling, prototype_histogram
from winnow.functional.distances import NORMALIZERS, Normalizer, clip_norm, l2_normalize, pairwise_distance
from winnow.functional.hulls import convex_hull, hull_overlap, in_hull
from winnow.functional.k_center import covering_radius, greedy_k_center
from winnow.functional.means import hard_skewed_mean, log_exp_mean, power_mean
from winnow.functional.selection import hard_selection, soft_selection
from winnow.functional.transport import GSPOutput, PoolingOutput, TransportWeights, gsp, gsp_weights

__all__ = [
    "NORMALIZERS",
    "AveragePooling",
    "GSPOutput",
    "Normalizer",
    "PoolingOutput",
    "TransportWeights",
    "analyze_average_pooling",
    "clip_norm",
    "convex_hull",
    "covering_radius",
    "greedy_k_center",
    "gsp",
    "gsp_weights",
    "hard_selection",
    "hard_skewed_mean",
    "hull_overlap",
    "in_hull",
    "l2_normalize",
    "log_exp_mean",
    "pairwise_distance",
    "power_mean",
    "prototype_histogram",
    "soft_selection",
]
