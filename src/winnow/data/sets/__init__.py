"""Benchmark sets by name: read from their own files, held to their published counts, split as published."""

from winnow.data.sets.base import Contents, Dataset, Shortfall, Source
from winnow.data.sets.benchmark import Benchmark, fold_range
from winnow.data.sets.cars196 import Cars196
from winnow.data.sets.cifar10 import Cifar10
from winnow.data.sets.cifar100 import Cifar100
from winnow.data.sets.cifar_collage import CifarCollage
from winnow.data.sets.cub200 import CUB200
from winnow.data.sets.fashion_mnist import FashionMnist
from winnow.data.sets.fetch import get
from winnow.data.sets.inshop import InShop
from winnow.data.sets.mnist import Mnist
from winnow.data.sets.named import Datasets
from winnow.data.sets.sop import SOP

DATASETS = Datasets(
    CUB200(),
    Cars196(),
    SOP(),
    InShop(),
    Cifar10(),
    Cifar100(),
    CifarCollage(),
    CifarCollage(distilled=True),
    CifarCollage(parts="3/0/2"),
    CifarCollage(parts="3/0/2", distilled=True),
    Mnist(),
    FashionMnist(),
)

__all__ = [
    "DATASETS",
    "Benchmark",
    "Contents",
    "Dataset",
    "Datasets",
    "Shortfall",
    "Source",
    "fold_range",
    "get",
]
