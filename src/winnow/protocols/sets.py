"""The sets that protocols are run on: what of a protocol depends on the set."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol as Interface

from winnow.data import load_images
from winnow.data.datasets import DATASETS, fold_range
from winnow.errors import ConfigError, nearest
from winnow.training.evaluation import KS


class Cut(Interface):
    """What a set needs to know of a protocol to be cut by it: parts of the training classes, 0 for none."""

    @property
    def parts(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class ProtocolSet:
    """A set of images, as protocols see it.

    Attributes:
        name: What it is called.
        title: In tables.
        preset: Name of the documents' settings of losses and references for it; None for a set of one's own.
        large: Whether the documents train longer between validations: SOP and In-shop.
        memory: Batches of a small and of a large memory (XBM).
        path: Folder of class folders, for a set of one's own.
    """

    name: str
    title: str
    preset: str | None = None
    large: bool = False
    memory: tuple[int, int] = (3, 25)
    path: str | None = None

    def data_words(self, protocol: Cut, model: int, root: str | None) -> list[str]:
        """Return the settings that choose the images of a model of a protocol.

        Args:
            protocol: Into how many parts training classes are cut, one of which validates.
            model: Which model, from 1; it validates on the part that is as far from the last.
            root: The folder of a published set; None for where it usually is.
        """
        if self.path is not None:
            return own_words(self.path, model, protocol.parts)
        cut = (
            [f"data.fold={model}", f"data.num_folds={protocol.parts}"] if protocol.parts else ["data.val_classes=test"]
        )
        return [f"data={self.name}", *cut, *([] if root is None else [f"data.root={root}"])]

    @property
    def ks(self) -> tuple[int, ...]:
        """The ranks of R@k it is reported at."""
        return DATASETS[self.name].ks if self.path is None else KS


SETS = {
    "cub200": ProtocolSet("cub200", "CUB-200-2011", "cub"),
    "cars196": ProtocolSet("cars196", "Cars196", "cars"),
    "sop": ProtocolSet("sop", "Stanford Online Products", "sop", large=True, memory=(400, 1400)),
    "inshop": ProtocolSet("inshop", "In-shop", "inshop", large=True, memory=(100, 400)),
}
SHORT = {"cub": "cub200", "cars": "cars196"}


def find_set(name: str) -> ProtocolSet:
    """Return a set by its name, or a set of one's own by its folder.

    Raises:
        ConfigError: for what is neither.
    """
    known = SETS.get(SHORT.get(name, name))
    if known is not None:
        return known
    if Path(name).exists():
        title = Path(name).name or "data"
        return ProtocolSet(name=title, title=title, path=_spelled(name))
    names = [*SETS, *SHORT]
    raise ConfigError(
        f"there is no set '{name}'{nearest(name, names)}; known: {', '.join(SETS)}, or a folder of class folders"
    )


def _spelled(path: str) -> str:
    """Write a path one way, so that runs know their data again: no slash at its end, relative where it is below."""
    here = os.getcwd()
    return os.path.relpath(path, here) if Path(path).is_relative_to(here) else os.path.normpath(path)


def own_words(path: str, model: int, parts: int) -> list[str]:
    """Cut a set of one's own as the documents cut theirs: the first half of the classes trains, the second tests.

    Raises:
        ConfigError: when the classes are too few.
    """
    count = len(load_images(path).class_names)
    half = count // 2
    if half < max(2, 2 * parts):
        raise ConfigError(f"{path} has {count} classes; this protocol needs at least {max(4, 4 * parts)}")
    test = f"data.test_classes={half + 1}-{count}"
    if parts == 0:
        return [f"data.path={path}", f"data.train_classes=1-{half}", "data.val_classes=test", test]
    held = fold_range(half, model, parts)
    around = [(1, held.start), (held.stop + 1, half)]
    train = ",".join(f"{first}-{last}" for first, last in around if first <= last)
    return [f"data.path={path}", f"data.train_classes={train}", f"data.val_classes={held.start + 1}-{held.stop}", test]
