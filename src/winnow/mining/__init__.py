"""Which pairs of queries and references a loss compares. Each choice is one file and one line in `MINING`."""

from winnow.mining.all import All
from winnow.mining.base import Mining
from winnow.mining.distance_weighted import DistanceWeighted
from winnow.mining.hard import Hard
from winnow.mining.semi_hard import SemiHard
from winnow.registry import Registry

MINING: Registry[Mining] = Registry(
    "mining",
    {
        "all": All,
        "hard": Hard,
        "semi_hard": SemiHard,
        "distance_weighted": DistanceWeighted,
    },
    default="all",
)

__all__ = ["MINING", "All", "DistanceWeighted", "Hard", "Mining", "SemiHard"]
