"""Poolings: from local features to one vector per image. Each is one file and one line in `POOLINGS`."""

from winnow.pooling.average import GAP
from winnow.pooling.average_maximum import GAPGMP
from winnow.pooling.base import Pooling
from winnow.pooling.cbam import CBAM
from winnow.pooling.crow import CroW
from winnow.pooling.delf import DeLF
from winnow.pooling.gemax import GeMax
from winnow.pooling.gemean import GeMean
from winnow.pooling.gsop import GSoP
from winnow.pooling.gsp import GSP
from winnow.pooling.gsp_combined import GMPGSP, GeMeanGSP
from winnow.pooling.maximum import GMP, ProjectedGMP
from winnow.pooling.netvlad import NetVLAD
from winnow.pooling.otp import OTP
from winnow.pooling.prototypes import PrototypePooling
from winnow.pooling.solar import SOLAR
from winnow.pooling.tsmk import TSMK
from winnow.pooling.weldon import WELDON
from winnow.registry import Registry

POOLINGS: Registry[Pooling] = Registry(
    "pooling",
    {
        "gap": GAP,
        "gmp": GMP,
        "gmp_projected": ProjectedGMP,
        "gap_gmp": GAPGMP,
        "cbam": CBAM,
        "crow": CroW,
        "delf": DeLF,
        "gemax": GeMax,
        "gemean": GeMean,
        "gsop": GSoP,
        "otp": OTP,
        "solar": SOLAR,
        "tsmk": TSMK,
        "netvlad": NetVLAD,
        "weldon": WELDON,
        "gsp": GSP,
        "gmp_gsp": GMPGSP,
        "gemean_gsp": GeMeanGSP,
    },
    default="gsp",
)

__all__ = [
    "CBAM",
    "GAP",
    "GAPGMP",
    "GMP",
    "GMPGSP",
    "GSP",
    "OTP",
    "POOLINGS",
    "SOLAR",
    "TSMK",
    "WELDON",
    "CroW",
    "DeLF",
    "GSoP",
    "GeMax",
    "GeMean",
    "GeMeanGSP",
    "NetVLAD",
    "Pooling",
    "ProjectedGMP",
    "PrototypePooling",
]
