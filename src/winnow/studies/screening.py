"""A screening of GSP's four settings: half of all combinations of two levels each (Table 5.4)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from winnow.report.style import INK, method_colours, new_figure, styled
from winnow.studies.base import Findings, Task, with_data, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, scores, verdict
from winnow.studies.sweeps import compare, deviations, gsp, losses, where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Setting = tuple[int, float, float, float]
FACTORS = ("m", "mu", "eps", "lambda")
# m, mu, eps, lambda to MAP@R with C2 and PNCA. The level of lambda is the product of the others', so that no main
# effect is mixed up with an effect of two settings at once.
THESIS: dict[Setting, dict[str, float]] = {
    (16, 0.3, 0.5, 0.1): {"C2": 40.63, "PNCA": 40.59},
    (16, 0.7, 0.5, 0.5): {"C2": 40.41, "PNCA": 40.34},
    (128, 0.3, 0.5, 0.5): {"C2": 40.22, "PNCA": 40.35},
    (128, 0.7, 0.5, 0.1): {"C2": 40.07, "PNCA": 40.85},
    (16, 0.3, 20, 0.5): {"C2": 36.11, "PNCA": 40.51},
    (16, 0.7, 20, 0.1): {"C2": 39.11, "PNCA": 39.88},
    (128, 0.3, 20, 0.1): {"C2": 39.61, "PNCA": 39.12},
    (128, 0.7, 20, 0.5): {"C2": 35.36, "PNCA": 39.92},
}
BASELINE = {"C2": 39.77, "PNCA": 39.90}


def comparison(small: bool) -> Comparison:
    """Return average pooling and the eight settings, with both losses."""
    methods = []
    for loss, own in losses(small).items():
        methods.append(Method(f"GAP, {loss}", ["pooling=gap", *own], loss, {"thesis, CUB validation": BASELINE[loss]}))
        for setting, theirs in THESIS.items():
            m, mu, eps, weight = setting
            facts = {"thesis, CUB validation": theirs[loss]}
            methods.append(Method(name_of(setting, loss), [*gsp(mu, eps, m, weight), *own], loss, facts))
    return compare(methods, small)


def name_of(setting: Setting, loss: str) -> str:
    """Return a method's name."""
    return ", ".join([*(f"{factor} {value:g}" for factor, value in zip(FACTORS, setting, strict=True)), loss])


def main_effects(results: Mapping[Setting, float]) -> dict[str, float]:
    """Return what the high level of each setting changes: the mean with it less the mean with the low level."""
    effects = {}
    for place, factor in enumerate(FACTORS):
        low, high = sorted({setting[place] for setting in THESIS})
        means = [statistics.mean(score for setting, score in results.items() if setting[place] == level)
                 for level in (low, high)]  # fmt: skip
        effects[factor] = means[1] - means[0]
    return effects


@with_data(small=False, full=True)
@with_runs
def study(task: Task) -> Findings:
    """A screening of m, mu, eps and the weight of ZSR, two levels each, with C2 and Proxy-NCA++ (Table 5.4).

    Cost: 2 minutes (18 runs); in full 54 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    reached = scores(found)
    ours, theirs = {}, {}
    for loss in losses(task.small):
        results = {setting: reached[name] for setting in THESIS if (name := name_of(setting, loss)) in reached}
        if len(results) == len(THESIS):
            ours[loss] = main_effects(results)
        theirs[loss] = main_effects({setting: numbers[loss] for setting, numbers in THESIS.items()})
    text = " ".join(
        [f"{where(task.small)}; the documents' numbers are of their validation classes.",
         *told(ours, theirs, deviations(compared, found))]
    )  # fmt: skip
    rows = compared.rows(found)
    return findings(task, "screening", "Screening of GSP's settings", text, compared, found, draw(ours, theirs), rows)


def told(
    ours: Mapping[str, Mapping[str, float]], theirs: Mapping[str, Mapping[str, float]], deviation: Mapping[str, float]
) -> list[str]:
    """Check: the lower the better for lambda and mu, and eps matters most; effects stand beside those of their table.

    Their text does not say which eps is better, their table does.

    Args:
        ours: For each loss, the main effects of our runs; a loss with missing runs is left out.
        theirs: For each loss, those of the thesis' table.
        deviation: For each loss, of seeds. An effect is a difference of two means, each of four methods, and so
            deviates less than one.
    """
    sentences = []
    for loss in theirs:
        listed = ", ".join(f"{factor} {effect:+.2f}" for factor, effect in theirs[loss].items())
        sentences.append(f"{loss}: the thesis' table has the main effects {listed}")
        if loss not in ours:
            sentences[-1] += "; runs of ours are missing."
            continue
        own = ours[loss]
        most = abs(own["eps"]) - max(abs(own[factor]) for factor in FACTORS if factor != "eps")
        sentences[-1] += (
            f"; ours are {', '.join(f'{factor} {effect:+.2f}' for factor, effect in own.items())}. That a lower lambda "
            f"is better {verdict(-own['lambda'], deviation[loss])}, that a lower mu is "
            f"{verdict(-own['mu'], deviation[loss])}, and that eps has the most effect "
            f"{verdict(most, deviation[loss])}; that a lower eps is better, as in their table, "
            f"{verdict(-own['eps'], deviation[loss])}."
        )
        against = [factor for factor in ("lambda", "mu") if theirs[loss][factor] > 0]
        if against:
            sentences[-1] += f" (Of {' and '.join(against)} their own table says the opposite with {loss}.)"
    return sentences


@styled
def draw(ours: Mapping[str, Mapping[str, float]], theirs: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw main effects, the thesis' beside ours."""
    figure = new_figure(7.2, 3.0)
    colours = method_colours(("thesis", "ours"))
    for place, loss in enumerate(theirs):
        axes = figure.add_subplot(1, len(theirs), place + 1)
        for shift, (name, effects) in enumerate((("thesis", theirs[loss]), ("ours", ours.get(loss)))):
            if effects is not None:
                bars: Sequence[float] = [effects[factor] for factor in FACTORS]
                places = [number + 0.4 * shift - 0.2 for number in range(len(FACTORS))]
                axes.bar(places, bars, 0.38, color=colours[name], label=name)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xticks(range(len(FACTORS)), FACTORS)
        axes.set_title(f"{loss}: from low to high, points of MAP@R")
        axes.legend(fontsize=8)
    return figure
