"""The share mu that GSP keeps, swept (Fig. 5.8)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import deviation, findings, scores, verdict
from winnow.studies.sweeps import compare, curves, gsp, how, losses

SMALL, FULL = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LOW, HIGH = 0.3, 0.7  # what counts as low and as high
EPS = {True: 20, False: 5}  # chosen for the embedded set; the documents' on CUB


def comparison(small: bool) -> Comparison:
    """Return GAP, and GSP with each mu, with C2."""
    own = losses(small)["C2"]
    values = SMALL if small else FULL
    methods = [Method(name_of(mu), [*gsp(mu, EPS[small], zsr=0.1), *own], "GSP + ZSR", {"mu": mu})
               for mu in values]  # fmt: skip
    return compare([Method("GAP", ["pooling=gap", *own], "GAP"), *methods], small)


def name_of(mu: float) -> str:
    """Return a method's name."""
    return f"mu {mu:g}"


@with_data(small=False, full=True)
@with_runs
def study(task: Task) -> Findings:
    """The share mu that GSP keeps, from small to large, beside average pooling (Fig. 5.8).

    Cost: 1 minute (8 runs); in full 30 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    values = {float(method.facts["mu"]): method.name for method in compared.methods if "mu" in method.facts}
    figure = curves(found, {"GSP + ZSR": values}, {"GSP + ZSR": "GAP"}, label="mu", title="C2")
    by_mu = {mu: scores(found)[name] for mu, name in values.items() if found[name]}
    fixed = f"C2, ZSR of weight 0.1, eps {EPS[task.small]}{' (documents: 5)' if task.small else ''}"
    text = paragraphs(told(by_mu, scores(found).get("GAP"), deviation(found)), how(compared, task, fixed, tuned=True))
    rows = compared.rows(found)
    return findings(task, "mu", "The share mu", text, compared, found, figure, rows)


def told(by_mu: Mapping[float, float], gap: float | None, deviation: float) -> str:
    """Check: low values of mu perform similarly, and as mu grows the score drops towards that of average pooling."""
    low = [score for mu, score in by_mu.items() if mu <= LOW]
    high = [score for mu, score in by_mu.items() if mu >= HIGH]
    if gap is None or not low or not high:
        return "Runs are missing, so that the claim cannot be checked yet."
    best = max(by_mu, key=lambda mu: by_mu[mu])
    gain, spread = by_mu[best] - gap, max(low) - min(low)
    before, after = statistics.mean(low), statistics.mean(high)
    levels = f"MAP@R is {min(low):.2f} to {max(low):.2f} up to mu = {LOW}"
    drop = (
        f"- The score drops towards average pooling's as mu grows: {before:.2f} in the mean up to mu = {LOW}, "
        f"{after:.2f} from {HIGH} on, {gap:.2f} with GAP; the best is mu = {best:g} with {by_mu[best]:.2f}"
    )
    if before - gap <= deviation:
        none = "there is no gain that could drop" if before - gap <= -deviation else "the gain cannot be told either"
        return (
            f"- Low values of mu are ahead of average pooling: {levels}, {gap:.2f} with GAP: "
            f"{verdict(before - gap, deviation)}.\n{drop}: cannot be told, as {none}."
        )
    return (
        f"- Low values of mu perform similarly: {levels}, within {spread:.2f} points where {abs(gain) / 4:.2f}, a "
        f"quarter of the gain, counts as similar: {verdict(abs(gain) / 4 - spread, deviation)}.\n"
        f"{drop}: {verdict(before - after, deviation)}."
    )
