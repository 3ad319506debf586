"""Regularisers that push the centres of classes apart. Each is one file and one line in `CENTRES`."""

from winnow.centres.base import CentreRegulariser, class_means
from winnow.centres.hard import Hard
from winnow.centres.mhe import MHE
from winnow.centres.r1 import R1
from winnow.centres.r2 import R2
from winnow.centres.uniformface import UniformFace
from winnow.centres.unregularised import Unregularised
from winnow.registry import Registry

CENTRES: Registry[CentreRegulariser] = Registry(
    "centres",
    {
        "none": Unregularised,
        "r1": R1,
        "r2": R2,
        "hard": Hard,
        "uniformface": UniformFace,
        "mhe": MHE,
    },
    default="none",
)

__all__ = ["CENTRES", "MHE", "R1", "R2", "CentreRegulariser", "Hard", "UniformFace", "Unregularised", "class_means"]
