"""A screening of GSP's four settings: half of all combinations of two levels each (Table 5.4)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, scores, verdict
from winnow.studies.sweeps import compare, deviations, gsp, how, losses

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
THEIRS = "thesis, CUB validation"
Effects = Mapping[str, Mapping[str, float]]
"""For each loss, the main effects of the factors."""


def comparison(small: bool) -> Comparison:
    """Return average pooling and the eight settings, with both losses."""
    methods = []
    for loss, own in losses(small).items():
        methods.append(Method(f"GAP, {loss}", ["pooling=gap", *own], loss, {THEIRS: BASELINE[loss]}))
        for setting, theirs in THESIS.items():
            m, mu, eps, weight = setting
            facts = {THEIRS: theirs[loss]}
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
    ours: dict[str, dict[str, float]] = {}
    theirs: dict[str, dict[str, float]] = {}
    for loss in losses(task.small):
        results = {setting: reached[name] for setting in THESIS if (name := name_of(setting, loss)) in reached}
        if len(results) == len(THESIS):
            ours[loss] = main_effects(results)
        theirs[loss] = main_effects({setting: numbers[loss] for setting, numbers in THESIS.items()})
    fixed = "Main effects are the mean of the four runs at the high level less that of the four at the low one"
    fixed += "; the documents' are of their validation classes"
    text = paragraphs(told(ours, theirs, deviations(compared, found)), how(compared, task, fixed, tuned=True))
    rows = [*compared.rows(found), *effect_rows(ours, theirs)]
    return findings(task, "screening", "Screening of GSP's settings", text, compared, found, draw(ours, theirs), rows)


def effect_rows(ours: Effects, theirs: Effects) -> list[dict[str, Any]]:
    """Return a row for each main effect: ours, where its runs are in, and the thesis'."""
    return [{"method": f"effect of {factor}, {loss}", "MAP@R": round(ours[loss][factor], 2) if loss in ours else None,
             THEIRS: round(effect, 2)}
            for loss, effects in theirs.items() for factor, effect in effects.items()]  # fmt: skip


def told(ours: Effects, theirs: Effects, deviation: Mapping[str, float]) -> str:
    """Check: the lower the better for lambda and mu, and eps matters most; effects stand beside those of their table.

    Their text does not say which eps is better, their table does.

    Args:
        ours: For each loss, the main effects of our runs; a loss with missing runs is left out.
        theirs: For each loss, those of the thesis' table.
        deviation: For each loss, of seeds. An effect is a difference of two means, each of four methods, and so
            deviates less than one.
    """
    items = []
    for loss, table in theirs.items():
        if loss not in ours:
            items.append(f"- With {loss} runs are missing.")
            continue
        own, spread = ours[loss], deviation[loss]
        others = [factor for factor in FACTORS if factor != "eps"]
        most = abs(own["eps"]) - max(abs(own[factor]) for factor in others)
        for factor in ("lambda", "mu", "eps"):
            claim = f"a lower {factor} is better" + (", as in their table" if factor == "eps" else "")
            but = "; their own table says the opposite" if table[factor] > 0 else ""
            items.append(
                f"- With {loss} {claim}: its effect is {own[factor]:+.2f} (thesis {table[factor]:+.2f}{but}): "
                f"{verdict(-own[factor], spread)}."
            )
        listed = ", ".join(f"{factor} {own[factor]:+.2f} (thesis {table[factor]:+.2f})" for factor in others)
        items.append(f"- With {loss} eps has the most effect: beside it, {listed}: {verdict(most, spread)}.")
    return "\n".join(items)


@styled
def draw(ours: Effects, theirs: Effects) -> Figure:
    """Draw main effects, the thesis' beside ours."""
    figure = new_figure(7.2, 3.0)
    colours = method_colors(("thesis", "ours"))
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
