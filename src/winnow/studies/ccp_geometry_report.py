"""What the study of CCP's geometry tells: its text and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from winnow.report.style import method_colors, new_figure, styled
from winnow.studies.base import Row, paragraphs
from winnow.studies.ccp_sweeps import where
from winnow.studies.outcomes import verdict
from winnow.studies.tsne import tsne

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 20  # classes in the pictures
PLAIN, MANY = "C2", "C2 + CCP"
RADIUS, APART = "covering radius", "inter-class distance"
GROWS = {"MAP@R": 1, RADIUS: -1, APART: 1}
"""What the documents say of each measure: it grows, or it falls."""
THEIRS = 3  # problems in their picture


@dataclass(frozen=True)
class Picture:
    """What a run came to at one moment.

    Attributes:
        name: Of the moment.
        embeddings: (N, d) of some unseen classes.
        labels: (N,).
        row: Of the table.
        curve: The classes' mean radius around 1, 2, ... images.
    """

    name: str
    embeddings: Tensor
    labels: Tensor
    row: Mapping[str, Any]
    curve: Sequence[float]


def told(rows: Sequence[Row]) -> str:
    """Check: through the problems of a run, and beside the plain loss, radii fall while distances and MAP@R grow."""
    runs: dict[str, dict[int, list[Row]]] = {PLAIN: {}, MANY: {}}
    for row in rows:
        runs[row["method"]].setdefault(row["seed"], []).append(row)
    several = [run for run in runs[MANY].values() if len(run) > 1]
    items = []
    if several:
        places = [min(THEIRS, len(run)) - 1 for run in several]
        till = "third" if set(places) == {THEIRS - 1} else "third (or the last)"
        before, after = [run[0] for run in several], [run[at] for run, at in zip(several, places, strict=True)]
        items += [f"from a run's first problem to its {till} {_checked(key, before, after)}" for key in GROWS]
    best = {name: [max(run, key=lambda row: row["validation MAP@R"]) for run in of.values()]
            for name, of in runs.items()}  # fmt: skip
    if all(best.values()):
        items += [f"from C2 alone to CCP, both at their best validation, {_checked(key, *best.values())}"
                  for key in GROWS]  # fmt: skip
    if not items:
        return "Runs are missing, so that the claims cannot be checked yet."
    said = (
        "The documents say that alternating problems reduce the covering radius of unseen classes and increase the "
        "distances between them, where one problem generalises poorly:"
    )
    return paragraphs(said, "\n".join(f"- {item}" for item in items))


def _checked(key: str, before: Sequence[Row], after: Sequence[Row]) -> str:
    """Say how a measure changed in the mean over seeds, and whether that is what the documents say."""
    first, last = ([row[key] for row in some] for some in (before, after))
    spread = max((statistics.stdev(each) for each in (first, last) if len(each) > 1), default=0.0)
    mean, then = statistics.mean(first), statistics.mean(last)
    digits = 2 if key == "MAP@R" else 3
    way = "grows" if GROWS[key] > 0 else "falls"
    return f"the {key} {way}: {mean:.{digits}f} to {then:.{digits}f}, {verdict(GROWS[key] * (then - mean), spread)}"


def how(small: bool) -> str:
    """Say how it was made."""
    return (
        f"{where(small)} The loss is C2. Numbers are of the test classes at the best validation of each problem (the "
        "documents: of the validation classes), in the mean over seeds. The covering radius of a class is the mean "
        "over k of its radius around k of its n images, k = 1 to n, as there."
    )


@styled
def draw(pictures: Sequence[Picture]) -> Figure:
    """Draw some classes in the plane at each moment, and the classes' mean radius around k images."""
    across = min(len(pictures) + 1, 3)
    down = -(-(len(pictures) + 1) // across)
    figure = new_figure(2.9 * across, 3.0 * down)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    *planes, curves = panels[: len(pictures) + 1]
    for empty in panels[len(pictures) + 1 :]:
        empty.set_axis_off()
    for axes, one in zip(planes, pictures, strict=True):
        axes.scatter(*tsne(one.embeddings).T, c=one.labels, cmap="tab20", s=4, linewidths=0)
        axes.set_title(one.name)
        axes.set_xlabel(f"MAP@R {one.row['MAP@R']:.1f}, radius {one.row[RADIUS]:.3f}, distance {one.row[APART]:.3f}",
                        fontsize=7.5)  # fmt: skip
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
    for one, colour in zip(pictures, method_colors([one.name for one in pictures]).values(), strict=True):
        curves.plot(range(1, len(one.curve) + 1), one.curve, color=colour, label=one.name)
    curves.set_title("Mean covering radius")
    curves.set_xlabel("images that cover a class")
    curves.legend(fontsize=8)
    return figure
