"""The number of GSP's prototypes, swept (Fig. 5.11)."""

from __future__ import annotations

from collections.abc import Mapping

from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, scores, verdict
from winnow.studies.sweeps import compare, curves, deviations, gsp, how, losses

SMALL, FULL = (4, 16, 64, 128), (8, 16, 32, 64, 128, 256)
ENOUGH = 64  # from here on the documents see little change
EPS = {"C2": 5.0, "PNCA": 0.5}  # the documents', on CUB


def comparison(small: bool) -> Comparison:
    """Return GAP and GSP with each number of prototypes, with both losses."""
    methods = []
    for loss, own in losses(small).items():
        mu, eps = (0.05, 20.0) if small else (0.3, EPS[loss])
        methods.append(Method(f"GAP, {loss}", ["pooling=gap", *own], loss))
        methods += [Method(f"m {m}, {loss}", [*gsp(mu, eps, m, zsr=0.1), *own], loss, {"m": m})
                    for m in (SMALL if small else FULL)]  # fmt: skip
    return compare(methods, small)


@with_data(small=False, full=True)
@with_runs
def study(task: Task) -> Findings:
    """The number of prototypes, from few to many, with C2 and Proxy-NCA++ (Fig. 5.11).

    Cost: 1 minute (10 runs); in full 42 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    reached = scores(found)
    lines: dict[str, dict[float, str]] = {loss: {} for loss in losses(task.small)}
    for method in compared.methods:
        if "m" in method.facts:
            lines[method.group][float(method.facts["m"])] = method.name
    spread = deviations(compared, found)
    parts = [told(loss, {m: reached[name] for m, name in line.items() if name in reached},
                  reached.get(f"GAP, {loss}"), spread[loss])
             for loss, line in lines.items()]  # fmt: skip
    figure = curves(
        found, lines, {loss: f"GAP, {loss}" for loss in lines}, label="prototypes m", title="GSP + ZSR", log=True
    )
    rows = compared.rows(found)
    own = "mu 0.05 and eps 20 (documents: 0.3, and 5 with C2, 0.5 with PNCA)"
    fixed = f"ZSR of weight 0.1, {own if task.small else 'mu 0.3, eps 5 with C2 and 0.5 with PNCA'}"
    text = paragraphs("\n".join(parts), how(compared, task, fixed, theirs="SOP and In-shop", tuned=True))
    return findings(task, "prototypes", "The number of prototypes", text, compared, found, figure, rows)


def told(loss: str, by_m: Mapping[float, float], gap: float | None, deviation: float) -> str:
    """Check: any m of at least 64 improves on GAP, and more do not bring substantially more."""
    many = {m: score for m, score in by_m.items() if m >= ENOUGH}
    if not many or gap is None:
        return f"- With {loss} runs are missing."
    gain = max(by_m.values()) - gap
    spread = max(many.values()) - min(many.values())
    least, few = min(many.values()), min(by_m)
    return (
        f"- With {loss} any m of at least {ENOUGH} improves on GAP: these have {least:.2f} to "
        f"{max(many.values()):.2f}, GAP {gap:.2f}: {verdict(least - gap, deviation)}.\n"
        f"- With {loss} more prototypes bring little: from {ENOUGH} on scores differ by {spread:.2f} points where "
        f"{abs(gain) / 4:.2f}, a quarter of the gain, counts as little: {verdict(abs(gain) / 4 - spread, deviation)}; "
        f"m = {few:g} has {by_m[few]:.2f}."
    )
