"""Cifar-100 (Krizhevsky, 2009)."""

from __future__ import annotations

from pathlib import Path

from winnow.data.sets.base import Contents, Dataset, Source
from winnow.data.sets.cifar import read_cifar

SUPERCLASSES = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""The 20 super-classes in the order of their labels, each with its 5 classes in the order of the alphabet."""

CLASSES = tuple(sorted(name for members in SUPERCLASSES.values() for name in members))
"""The 100 classes in the order of their labels."""


class Cifar100(Dataset):
    """Small photographs; its test has other images of the same classes."""

    name = "cifar100"
    title = "Cifar-100"
    about = "60,000 photographs of 32 x 32 pixels in 100 classes; the test has other images of the same classes"
    terms = "as its owner states (Krizhevsky)"
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    layout = "train and test, as pickles or .bin; or train/CLASS/* and test/CLASS/*"
    folds_by = "images"
    sources = (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
        ),
    )

    def __init__(self, *, train: int = 50_000, test: int = 10_000) -> None:
        self.counts = {"train": train, "test": test}
        self.classes = {"train": 100, "test": 100}

    def read(self, root: Path) -> Contents:
        """Read pickles, the binary version or class folders."""
        return read_cifar(root, {"train": ["train"], "test": ["test"]}, CLASSES, key="fine_labels", skip=1)
