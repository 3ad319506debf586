"""Pure tensor maths: no state, no files, torch alone."""

from winnow.functional.average_pooling import AveragePooling, analyse_average_pooling, prototype_histogram
from winnow.functional.distances import clip_norm, pairwise_distance
from winnow.functional.hard_selection import hard_selection
from winnow.functional.hulls import convex_hull, hull_overlap, in_hull
from winnow.functional.kcentre import covering_radius, greedy_k_centre
from winnow.functional.means import hard_skewed_mean, log_exp_mean, power_mean
from winnow.functional.normalise import NORMALISE, Normalise, unit_norm
from winnow.functional.selection import soft_selection
from winnow.functional.transport import GSPOutput, Pooled, TransportWeights, gsp, gsp_weights

__all__ = [
    "NORMALISE",
    "AveragePooling",
    "GSPOutput",
    "Normalise",
    "Pooled",
    "TransportWeights",
    "analyse_average_pooling",
    "clip_norm",
    "convex_hull",
    "covering_radius",
    "greedy_k_centre",
    "gsp",
    "gsp_weights",
    "hard_selection",
    "hard_skewed_mean",
    "hull_overlap",
    "in_hull",
    "log_exp_mean",
    "pairwise_distance",
    "power_mean",
    "prototype_histogram",
    "soft_selection",
    "unit_norm",
]
