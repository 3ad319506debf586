"""What the study of validation on a cover tells: its text and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from winnow.report.style import method_colors, new_figure, styled
from winnow.studies.base import Row, paragraphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COVER, RANDOM, CLASSES = "cover", "random images", "random classes"
RANKS, LOST = "rank correlation", "points lost by the choice"
TRUSTED = 0.9  # rank correlation from which on a subset stands for the whole


def told(rows: Sequence[Row], checkpoints: str, images: int, draws: int) -> str:
    """Set a cover beside random images and beside random classes, by how it ranks and by what its choice loses.

    Args:
        rows: The table.
        checkpoints: What is ranked.
        images: Of the whole validation set.
        draws: Random subsets of each size.
    """
    by_way = {way: [row for row in rows if row["way"] == way] for way in (COVER, RANDOM, CLASSES)}
    items = [_beside(by_way[COVER], by_way[other], other) for other in (RANDOM, CLASSES)]
    needed = {}
    for way, own in by_way.items():
        good = [row["share, %"] for row in own if row[RANKS] >= TRUSTED]
        needed[way] = f"{min(good):g} %" if good else "more than tried"
    enough = f"A rank correlation of {TRUSTED} takes of the images: "
    enough += ", ".join(f"{way} {share}" for way, share in needed.items()) + "."
    how = (
        f"The embedded set: {checkpoints} are ranked by MAP@R on all {images} validation images and on subsets. The "
        "cover is one within each class; random images are as many of each class, random classes all images of some. "
        f"Rank correlation is Kendall's; points lost are those of MAP@R on all images between the best checkpoint and "
        f"the one that the subset would choose. Of random subsets both are means of {draws} draws. A cover is one "
        "subset, so that what it loses is one choice for each size."
    )
    none = "The thesis proposes to validate on a subset whose local features cover the others' (section 6.3), and has "
    return paragraphs(f"{none}no numbers: there is no claim to check.", "\n".join(items), enough, how)


def _beside(cover: Sequence[Row], other: Sequence[Row], name: str) -> str:
    """Compare a cover with another way, over all sizes."""
    ranks, lost = ([statistics.mean(row[key] for row in own) for own in (cover, other)] for key in (RANKS, LOST))
    most = [max(row[LOST] for row in own) for own in (cover, other)]
    ranked = "better" if ranks[0] > ranks[1] else "as well" if ranks[0] == ranks[1] else "worse"
    chosen = "less" if lost[0] < lost[1] else "as much" if lost[0] == lost[1] else "more"
    return (
        f"- Beside {name} a cover ranks checkpoints {ranked} and loses {chosen} by its choice: rank correlation "
        f"{ranks[0]:.3f} against {ranks[1]:.3f} in the mean over sizes, points lost {lost[0]:.2f} against "
        f"{lost[1]:.2f} in the mean and {most[0]:.2f} against {most[1]:.2f} at most."
    )


@styled
def draw(rows: Sequence[Row]) -> Figure:
    """Draw rank correlation, and what the choice loses, over the share of images, for each way."""
    figure = new_figure(7.6, 3.4)
    axes, choice = figure.subplots(1, 2)
    for way, colour in method_colors((RANDOM, COVER, CLASSES)).items():
        own = [row for row in rows if row["way"] == way]
        shares = [row["share, %"] for row in own]
        axes.plot(shares, [row[RANKS] for row in own], "o-", color=colour, label=way)
        axes.plot(shares, [row["worst"] for row in own], ":", color=colour, linewidth=1)
        choice.plot(shares, [row[LOST] for row in own], "o-", color=colour, label=way)
    axes.set_title("rank correlation; dotted: the worst draw")
    choice.set_title("points of MAP@R lost by the choice")
    for each in (axes, choice):
        each.set_xlabel("images validated on, %")
    axes.legend(fontsize=8)
    return figure
