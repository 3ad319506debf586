"""What a second look at the neighbours does to retrieval; beyond the documents, whose figures are all of the first."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from winnow.evaluation import KReciprocal, reranked_metrics, retrieval_metrics
from winnow.report.style import method_colors, new_figure, styled
from winnow.studies.base import Findings, Task, paragraphs, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings
from winnow.studies.sweeps import compare, gsp, losses, where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("MAP@R", "P@1", "P@R", "R@8")
LOOKS = {"plain": None, "aqe": 5, "reciprocal, k1 = 8": 8, "reciprocal, k1 = 20": 20}
"""Each look, and the size of its neighbourhoods; classes of the embedded set have 8 images, those of CUB about 60."""

ALONE = "Figures with a second look compare only with others of the same look."

Measured = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]


def comparison(small: bool) -> Comparison:
    """Return average pooling and GSP, whose test embeddings are kept."""
    own = [*losses(small)["C2"], "train.save_embeddings=true"]
    better = gsp(0.05, 20.0) if small else gsp()
    return compare([Method("GAP", ["pooling=gap", *own]), Method("GSP", [*better, *own])], small, seeds=3, steps=600)


@with_runs
def study(task: Task) -> Findings:
    """Query expansion and k-reciprocal re-ranking of the neighbours that GAP and GSP find (new).

    Cost: 2 minutes (6 runs); in full 6 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    measured: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for method in compared.methods:
        for seed in compared.seeds:
            folder = compared.plan(method, seed, task).run_dir
            if folder.is_finished:
                for look in LOOKS:
                    task.note(f"{method.name}, seed {seed}: {look}")
                    measured.setdefault((method.name, look), []).append(looked(*folder.read_embeddings(), look))
    known = " Its classes have 8 images, which k1 = 8 knows; a user's set may not say so." if task.small else ""
    made = f"{where(task.small, 600)}, C2, test classes.{known} {ALONE}"
    text = paragraphs("\n".join(told(measured)), made)
    return findings(task, "reranking", "A second look", text, compared, found, draw(measured), rows(measured))


def looked(embeddings: Tensor, labels: Tensor, look: str) -> dict[str, float]:
    """Return the metrics of a set that is searched in itself, by a look."""
    name, size = look.partition(",")[0], LOOKS[look]
    if size is None:
        return retrieval_metrics(embeddings, labels)
    return reranked_metrics(embeddings, labels, name, num_neighbors=size, settings=KReciprocal(k1=size))


def rows(measured: Measured) -> list[dict[str, object]]:
    """Return the table: means over the seeds, in percent, and the deviation of MAP@R."""
    table = []
    for (method, look), each in measured.items():
        row: dict[str, object] = {"method": method, "look": look, "runs": len(each)}
        for name in SHOWN:
            row[name] = round(100 * statistics.mean(one[name] for one in each), 2)
        row["MAP@R sd"] = round(100 * statistics.stdev(one["MAP@R"] for one in each), 2) if len(each) > 1 else None
        table.append(row)
    return table


def gains(measured: Measured, method: str, look: str, name: str) -> list[float]:
    """Return by how many points a look is better than the plain one, with every seed."""
    pairs = zip(measured[method, look], measured[method, "plain"], strict=True)
    return [100 * (one[name] - plain[name]) for one, plain in pairs]


def told(measured: Measured) -> list[str]:
    """Say what each look does to MAP@R, and to the very first hit: a line for each method."""
    lines = []
    for method in dict.fromkeys(method for method, _ in measured):
        whole, first = ({look: gains(measured, method, look, name) for look in LOOKS if look != "plain"}
                        for name in ("MAP@R", "P@1"))  # fmt: skip
        mean = {look: statistics.mean(each) for look, each in whole.items()}
        listed = "; ".join(f"{look} ({mean[look]:+.2f}, {statistics.mean(first[look]):+.2f})" for look in mean)
        best = max(mean, key=mean.__getitem__)
        spread = statistics.stdev(whole[best]) if len(whole[best]) > 1 else 0.0
        gathers = (
            f"{best} gathers most of the class" if mean[best] > spread
            else "none gathers more of the class" if mean[best] <= 0
            else f"none gathers more of the class than seeds deviate by ({spread:.2f})"
        )  # fmt: skip
        lines.append(f"- With {method} {gathers}. Points of MAP@R and of P@1: {listed}.")
    return lines


@styled
def draw(measured: Measured) -> Figure:
    """Draw MAP@R and P@1 by each look, a bar for each method."""
    figure = new_figure(7.2, 3.0)
    methods = list(dict.fromkeys(method for method, _ in measured))
    colours = method_colors(methods)
    for place, name in enumerate(("MAP@R", "P@1")):
        axes = figure.add_subplot(1, 2, place + 1)
        for number, method in enumerate(methods):
            values = [[100 * one[name] for one in measured[method, look]] for look in LOOKS]
            spots = [spot + 0.38 * (number - (len(methods) - 1) / 2) for spot in range(len(LOOKS))]
            spread = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in values]
            axes.bar(spots, list(map(statistics.mean, values)), 0.36, yerr=spread, color=colours[method], label=method)
        axes.set_xticks(range(len(LOOKS)), [look.replace(", ", "\n") for look in LOOKS], fontsize=7)
        axes.set_title(f"{name}, %")
    if methods:
        figure.axes[0].legend(fontsize=8)
    return figure
