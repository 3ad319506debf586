"""The number of prototypes and the sharpness of GSP, on a grid (Fig. 5.10)."""

from __future__ import annotations

from collections.abc import Mapping

from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, scores, verdict
from winnow.studies.sweeps import compare, deviations, grids, gsp, how, losses

SMALL = ((16, 64), (0.5, 5.0, 20.0, 50.0))
FULL = ((16, 32, 64, 128), (0.5, 1.0, 5.0, 10.0, 20.0))
BEST = {"C2": (64, 5.0), "PNCA": (64, 0.5)}  # the documents'
MU = {True: 0.05, False: 0.3}  # chosen for the embedded set; the documents' on CUB


def comparison(small: bool) -> Comparison:
    """Return GAP and GSP with each m and eps, with both losses."""
    counts, sharpness = SMALL if small else FULL
    methods = []
    for loss, own in losses(small).items():
        methods.append(Method(f"GAP, {loss}", ["pooling=gap", *own], loss))
        methods += [Method(name_of(m, eps, loss), [*gsp(MU[small], eps, m, zsr=0.1), *own], loss, {"m": m, "eps": eps})
                    for m in counts for eps in sharpness]  # fmt: skip
    return compare(methods, small)


def name_of(m: int, eps: float, loss: str) -> str:
    """Return a method's name."""
    return f"m {m}, eps {eps:g}, {loss}"


@with_data(small=False, full=True)
@with_runs
def study(task: Task) -> Findings:
    """The number of prototypes m and the sharpness eps of GSP on a grid, with C2 and Proxy-NCA++ (Fig. 5.10).

    Cost: 2 minutes (18 runs); in full 126 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    reached = scores(found)
    values: dict[str, dict[tuple[float, float], float]] = {loss: {} for loss in losses(task.small)}
    for method in compared.methods:
        if "m" in method.facts and method.name in reached:
            values[method.group][method.facts["m"], method.facts["eps"]] = reached[method.name]
    spread = deviations(compared, found)
    told_of = [told(loss, grid, reached.get(f"GAP, {loss}"), spread[loss]) for loss, grid in values.items()]
    shown = {loss: grid for loss, grid in values.items() if grid}
    fixed = f"ZSR of weight 0.1, mu {MU[task.small]:g}{' (documents: 0.3)' if task.small else ''}"
    text = paragraphs("\n".join(told_of), how(compared, task, fixed, tuned=True))
    figure = grids(shown, rows="prototypes m", columns="eps", title="MAP@R, %")
    rows = compared.rows(found)
    return findings(task, "m-eps", "Prototypes and sharpness", text, compared, found, figure, rows)


def told(loss: str, grid: Mapping[tuple[float, float], float], gap: float | None, deviation: float) -> str:
    """Check: the documents' best is ahead of the best other setting; and say which of the two settings matters more."""
    theirs = BEST[loss]
    if theirs not in grid or len(grid) == 1 or gap is None:
        return f"- With {loss} runs are missing."
    m, eps = max((pair for pair in grid if pair != theirs), key=grid.__getitem__)
    by_m, by_eps = (
        [sum(each) / len(each) for value in {pair[i] for pair in grid}
         if (each := [score for pair, score in grid.items() if pair[i] == value])]
        for i in (0, 1)
    )  # fmt: skip
    return (
        f"- With {loss}, m = {theirs[0]} and eps = {theirs[1]:g} are best: they have {grid[theirs]:.2f}, of all others "
        f"m = {m:g} and eps = {eps:g} have most, {grid[m, eps]:.2f}, and GAP has {gap:.2f}: "
        f"{verdict(grid[theirs] - grid[m, eps], deviation)}. Means over the other setting differ by up to "
        f"{max(by_m) - min(by_m):.2f} points from m to m and {max(by_eps) - min(by_eps):.2f} from eps to eps."
    )
