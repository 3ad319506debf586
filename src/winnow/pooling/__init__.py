"""Poolings: from local features to one vector per image, by name in `POOLINGS`."""

from winnow.pooling.attention import CBAM, TSMK, CroW, DeLF
from winnow.pooling.base import (
    MaskedBatchNorm,
    Pooling,
    as_tokens,
    display_weights,
    masked_float,
    uniform_weights,
    weighted_sum,
)
from winnow.pooling.codebook import OTP, NetVLAD
from winnow.pooling.gsp import GMPGSP, GSP, GeMGSP, GSPGuidedPooling, pool_residual
from winnow.pooling.mean_max import GAP, GMP, WELDON, AverageMaxPooling, GeM, GeMax, ProjectedMaxPooling
from winnow.pooling.prototypes import PrototypePooling, PrototypesNotSetWarning
from winnow.pooling.second_order import SOLAR, GSoP, RankKBilinearPooling
from winnow.registry import Registry

POOLINGS: Registry[Pooling] = Registry(
    "pooling",
    {
        "gap": GAP,
        "gmp": GMP,
        "gmp_projected": ProjectedMaxPooling,
        "gap_gmp": AverageMaxPooling,
        "cbam": CBAM,
        "crow": CroW,
        "delf": DeLF,
        "gemax": GeMax,
        "gemean": GeM,
        "gsop": GSoP,
        "rk_fbp": RankKBilinearPooling,
        "otp": OTP,
        "solar": SOLAR,
        "tsmk": TSMK,
        "netvlad": NetVLAD,
        "weldon": WELDON,
        "gsp": GSP,
        "gmp_gsp": GMPGSP,
        "gemean_gsp": GeMGSP,
    },
    default="gsp",
    aliases={"gem": "gemean", "avgmax": "gap_gmp", "gem_gsp": "gemean_gsp"},
)

__all__ = [
    "CBAM",
    "GAP",
    "GMP",
    "GMPGSP",
    "GSP",
    "OTP",
    "POOLINGS",
    "SOLAR",
    "TSMK",
    "WELDON",
    "AverageMaxPooling",
    "CroW",
    "DeLF",
    "GSPGuidedPooling",
    "GSoP",
    "GeM",
    "GeMGSP",
    "GeMax",
    "MaskedBatchNorm",
    "NetVLAD",
    "Pooling",
    "ProjectedMaxPooling",
    "PrototypePooling",
    "PrototypesNotSetWarning",
    "RankKBilinearPooling",
    "as_tokens",
    "display_weights",
    "masked_float",
    "pool_residual",
    "uniform_weights",
    "weighted_sum",
]
