"""Sweeps of GSP's settings: on the embedded set in small, on a fold of CUB-200-2011 in full; curves and grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from winnow.report.style import INK, MUTED, method_colors, new_figure, styled
from winnow.studies.bands import bands
from winnow.studies.base import Task
from winnow.studies.cub_losses import CONFIG
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import Found, deviation, scores
from winnow.studies.poolings import EMBEDDED, PNCA, WORDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CUB_LOSSES = {"C2": ["loss=c2", "loss.preset=cub"], "PNCA": [*PNCA, "train.freeze_backbone_steps=100"]}
CUB = "CUB-200-2011"
WHERE = {
    True: "On the embedded set with a frozen backbone, {steps} steps",
    False: "On the first fold of the fair protocol on CUB-200-2011 with ResNet-50 (the documents: BN-Inception)",
}


def losses(small: bool) -> Mapping[str, Sequence[str]]:
    """Return the words of C2 and Proxy-NCA++ for the set a size is trained on."""
    return EMBEDDED if small else CUB_LOSSES


def compare(methods: Sequence[Method], small: bool, *, seeds: int = 1, steps: int = 200) -> Comparison:
    """Return a comparison on the embedded set, or in full on CUB with three seeds."""
    if not small:
        return Comparison(methods, seeds=(0, 1, 2), file=CONFIG)
    words = [*WORDS, "dim=128", f"train.max_steps={steps}", f"train.eval_steps={max(1, steps // 4)}"]
    return Comparison(methods, seeds=tuple(range(seeds)), words=words)


def deviations(compared: Comparison, found: Found) -> dict[str, float]:
    """Return how far seeds deviate in each group of methods, which is each loss: scores of losses differ in scale."""
    groups = dict.fromkeys(method.group for method in compared.methods)
    return {group: deviation({method.name: found[method.name] for method in compared.methods if method.group == group})
            for group in groups}  # fmt: skip


def gsp(mu: float | None = None, eps: float | None = None, m: int | None = None, zsr: float = 0.0) -> list[str]:
    """Return the words of GSP; what is None stays as it is by default."""
    settings = {"mu": mu, "eps": eps, "num_prototypes": m}
    words = ["pooling=gsp", *(f"pooling.{key}={value:g}" for key, value in settings.items() if value is not None)]
    return [*words, f"zsr={zsr:g}"] if zsr else words


def where(small: bool, steps: int = 200) -> str:
    """Say on what a comparison was made."""
    return WHERE[small].format(steps=steps)


def how(compared: Comparison, task: Task, fixed: str, *, theirs: str = CUB, tuned: bool = False) -> str:
    """Say how a comparison was made, and where that differs from the documents.

    Args:
        compared: What is compared; numbers are those of its runs, which settings of the task may have changed.
        task: What was asked for.
        fixed: What all methods share, the documents' in brackets where these differ.
        theirs: What the documents train on; nothing where they have no such comparison.
        tuned: Whether the documents made theirs by their protocol of tuning, which the full size is not made by.
    """
    config = compared.plan(compared.methods[0], compared.seeds[0], task).config
    said = where(task.small, config.train.max_steps)
    if not task.small and config.backbone.train == "frozen":
        said += ", which is not trained"
    if theirs and task.small:
        said += f" (the documents: {theirs}, fine-tuned)"
    elif theirs not in ("", CUB):
        said += f" (the documents: {theirs})"
    said += f". {fixed}."
    if task.small or not tuned:
        return said
    return (
        f"{said} A quarter of the training classes validates, training ends after {config.train.patience} validations "
        "without a gain, and MAP@R is of the test classes; the documents tune on four fifths of the training classes, "
        "validate on the fifth, end after 10, and take the mean of three runs."
    )


@styled
def curves(
    found: Found,
    lines: Mapping[str, Mapping[float, str]],
    baselines: Mapping[str, str],
    *,
    label: str,
    title: str,
    log: bool = False,
) -> Figure:
    """Draw MAP@R over a setting: a line and a band of one deviation for each loss, its baseline dashed.

    Args:
        found: Results by the name of their method.
        lines: For each loss, the setting's value to the method's name.
        baselines: For each loss, the method that the others are compared with, if any; one for several is drawn once.
        label: What the setting is.
        title: Of the figure.
        log: Whether the setting is spread over orders of magnitude.
    """
    figure = new_figure(6.0, 3.6)
    axes = figure.subplots()
    colours = method_colors(["", *lines])
    bands(axes, found, lines, colours)
    shared = len(set(baselines.values())) == 1  # one for all lines has the colour of none
    for loss, name in {name: (loss, name) for loss, name in baselines.items()}.values():
        if found[name]:
            colour = colours[""] if shared else colours[loss]
            level = scores({name: found[name]})[name]
            axes.axhline(level, color=colour, linestyle=(0, (4, 3)), linewidth=1, label=name)
    if log:
        axes.set_xscale("log", base=2)
    ticks = sorted({value for by_value in lines.values() for value in by_value})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_title(f"{title}: MAP@R on unseen classes, %")
    axes.legend(fontsize=8)
    return figure


@styled
def grids(values: Mapping[str, Mapping[tuple[float, float], float]], *, rows: str, columns: str, title: str) -> Figure:
    """Draw a heat map of MAP@R for each loss over two settings; what is missing stays white.

    Args:
        values: For each loss, (row's value, column's value) to a score.
        rows: What changes from row to row.
        columns: What changes from column to column.
        title: Of the figure.
    """
    figure = new_figure(3.7 * max(len(values), 1), 3.3)
    for place, (loss, grid) in enumerate(values.items()):
        axes = figure.add_subplot(1, len(values), place + 1)
        down, across = (sorted({key[i] for key in grid}) for i in (0, 1))
        table = np.full((len(down), len(across)), np.nan)
        for (row, column), value in grid.items():
            table[down.index(row), across.index(column)] = value
        axes.imshow(table, cmap="cividis", aspect="auto")
        middle = (np.nanmin(table) + np.nanmax(table)) / 2 if grid else 0
        for (row, column), value in np.ndenumerate(table):
            if np.isfinite(value):
                colour = INK if value > middle else "white"
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(len(across)), [f"{one:g}" for one in across])
        axes.set_yticks(range(len(down)), [f"{one:g}" for one in down])
        axes.set_xlabel(columns, color=MUTED)
        axes.set_ylabel(rows, color=MUTED)
        axes.grid(False)
        axes.set_title(f"{loss}: {title}")
    return figure
