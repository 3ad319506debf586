"""Benchmark datasets by name, with published counts, splits, and sources."""

from winnow.data.datasets.base import (
    Benchmark,
    Dataset,
    DatasetParts,
    DatasetRegistry,
    MissingImages,
    Source,
    fold_range,
)
from winnow.data.datasets.cars196 import Cars196
from winnow.data.datasets.cifar import CIFAR10, CIFAR100
from winnow.data.datasets.cifar_collage import CIFARCollage
from winnow.data.datasets.cub200 import CUB200
from winnow.data.datasets.download import prepare_dataset
from winnow.data.datasets.inshop import InShop
from winnow.data.datasets.mnist import MNIST, FashionMNIST
from winnow.data.datasets.sop import SOP

DATASETS = DatasetRegistry(
    CUB200(),
    Cars196(),
    SOP(),
    InShop(),
    CIFAR10(),
    CIFAR100(),
    CIFARCollage(),
    CIFARCollage(distilled=True),
    CIFARCollage(parts="3/0/2"),
    CIFARCollage(parts="3/0/2", distilled=True),
    MNIST(),
    FashionMNIST(),
)
"""All datasets by name, in the order of the documentation."""

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CUB200",
    "DATASETS",
    "MNIST",
    "SOP",
    "Benchmark",
    "CIFARCollage",
    "Cars196",
    "Dataset",
    "DatasetParts",
    "DatasetRegistry",
    "FashionMNIST",
    "InShop",
    "MissingImages",
    "Source",
    "fold_range",
    "prepare_dataset",
]
