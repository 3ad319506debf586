"""Poolings: from local features to one vector per image. Each is one file and one line in `POOLINGS`."""

from winnow.pooling.average import GAP
from winnow.pooling.base import Pooling
from winnow.pooling.gsp import GSP
from winnow.pooling.maximum import GMP, ProjectedGMP
from winnow.registry import Registry

POOLINGS: Registry[Pooling] = Registry(
    "pooling",
    {
        "gap": GAP,
        "gmp": GMP,
        "gmp_projected": ProjectedGMP,
        "gsp": GSP,
    },
    default="gsp",
)

__all__ = ["GAP", "GMP", "GSP", "POOLINGS", "Pooling", "ProjectedGMP"]
