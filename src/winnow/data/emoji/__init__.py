"""Bundled emoji dataset: collages of four drawings, of which one gives the class.

The drawings are installed with the package. Collages are composed when read. `LICENSES.md` in this folder lists
sources and licenses of the drawings. `scripts/build_emoji.py` builds the installed files.
"""

from __future__ import annotations

from winnow.data.emoji.collages import EmojiCollages
from winnow.data.emoji.drawings import Emoji, emoji
from winnow.data.image_set import Splits

__all__ = ["Emoji", "EmojiCollages", "emoji", "load_emoji"]


def load_emoji(*, images_per_class: int = 8, seed: int = 0, distilled: bool = False) -> Splits:
    """Return the bundled emoji dataset.

    Its splits are fixed, and share neither classes nor clutter.

    Args:
        images_per_class: Number of collages of each class. The drawings of its artists are used in rotation.
        seed: Seed of clutter, positions, sizes, rotations, and colors; the splits do not depend on it.
        distilled: Whether to omit the clutter: the same images with only the foreground drawn.
    """

    def split(name: str) -> EmojiCollages:
        in_split = [one for one in emoji() if one.split == name]
        return EmojiCollages(
            [one for one in in_split if one.role == "foreground"],
            [one for one in in_split if one.role == "clutter"],
            images_per_class=images_per_class,
            seed=seed,
            distilled=distilled,
        )

    return Splits(train=split("train"), val=split("val"), test=split("test"))
