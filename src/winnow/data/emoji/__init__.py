"""The embedded data set: collages of emoji drawn by several artists, of which only one cell matters.

The drawings are shipped with the package; the collages are composed on reading. Sources and licences of the drawings
are in `LICENSES.md` beside this file; `scripts/build_emoji.py` makes the shipped files.
"""

from __future__ import annotations

from winnow.data.emoji.collages import EmojiCollages
from winnow.data.emoji.drawings import Emoji, emoji
from winnow.data.imageset import Splits

__all__ = ["Emoji", "EmojiCollages", "emoji", "load_emoji"]


def load_emoji(*, images_per_class: int = 8, seed: int = 0, distilled: bool = False) -> Splits:
    """Return the embedded data set; classes and clutter are both disjoint between the splits, which are fixed.

    Args:
        images_per_class: How many collages each class has; its artists' drawings take turns.
        seed: Chooses clutter, places, sizes, turns and colours, but not the splits.
        distilled: Leave out the clutter: the same images with only the foreground drawn.
    """

    def split(name: str) -> EmojiCollages:
        of_split = [one for one in emoji() if one.split == name]
        return EmojiCollages(
            [one for one in of_split if one.role == "foreground"],
            [one for one in of_split if one.role == "clutter"],
            images_per_class=images_per_class,
            seed=seed,
            distilled=distilled,
        )

    return Splits(train=split("train"), val=split("val"), test=split("test"))
