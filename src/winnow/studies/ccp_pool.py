"""The number of CCP's proxies and the pool they are picked from (Fig. 3.6)."""

from __future__ import annotations

from collections.abc import Mapping

from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.ccp_sweeps import LOSSES, ccp, compare, train, where
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import deviation, findings, scores, verdict
from winnow.studies.sweeps import curves

PROXIES = (1, 4, 8)
POOLS = {True: (12, 20), False: (12, 24)}  # beside one of as many images as proxies, which picks at random


def comparison(task: Task) -> Comparison:
    """Return C2 alone, and CCP with each number of proxies out of each pool."""
    own = LOSSES[task.small]["C2"]
    methods = [Method(name_of(k, b), [*own, *ccp(per_class=k, pool=b)], f"K = {k}", {"proxies": k, "pool": b})
               for k in PROXIES for b in (k, *POOLS[task.small])]  # fmt: skip
    return compare([Method("C2", own, "batch"), *methods], task)


def name_of(proxies: int, pool: int) -> str:
    """Return a method's name."""
    return f"C2 + CCP, {proxies} of {pool}"


@with_data(small=False, full=True)
@with_runs
def study(task: Task) -> Findings:
    """CCP with few and many proxies of a class, out of small and large pools, with C2 (Fig. 3.6).

    Cost: 1 minute (20 runs); in full 30 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task)
    found = train(compared, task)
    reached = scores(found)
    lines: dict[str, dict[float, str]] = {f"K = {k}": {} for k in PROXIES}
    grid: dict[tuple[int, int], float] = {}
    for method in compared.methods:
        if "pool" in method.facts:
            lines[method.group][float(method.facts["pool"])] = method.name
            if method.name in reached:
                grid[method.facts["proxies"], method.facts["pool"]] = reached[method.name]
    figure = curves(found, lines, dict.fromkeys(lines, "C2"), label="images of a class in the pool",
                    title="C2 + CCP, K proxies of a class")  # fmt: skip
    verdicts = told(grid, reached.get("C2"), POOLS[task.small], deviation(found))
    text = paragraphs(verdicts, f"{where(task.small)} The loss is C2.")
    rows = compared.rows(found)
    return findings(task, "ccp-pool", "Proxies and their pool", text, compared, found, figure, rows)


def told(
    grid: Mapping[tuple[int, int], float], plain: float | None, pools: tuple[int, ...], deviation: float = 0.0
) -> str:
    """Check: more proxies and larger pools help, but a pool not a single proxy; random picks work too.

    Args:
        grid: (proxies, pool) to MAP@R.
        plain: Of the loss without CCP.
        pools: Larger than the number of proxies, from small to large.
        deviation: Of seeds.
    """
    if plain is None or not {(k, b) for k in PROXIES for b in (k, *pools)} <= set(grid):
        return "Runs are missing, so that the claims cannot be checked yet."
    few, most = PROXIES[0], PROXIES[-1]
    mean = {k: sum(grid[k, b] for b in (k, *pools)) / (1 + len(pools)) for k in PROXIES}
    gains = {k: sum(grid[k, b] for b in pools) / len(pools) - grid[k, k] for k in PROXIES}
    several = [gains[k] for k in PROXIES[1:]]
    nothing = (
        "cannot be told (one seed)" if not deviation
        else f"agrees as far as seeds tell, which deviate by {deviation:.2f}" if abs(gains[few]) <= deviation
        else "does not agree, by more than seeds deviate"
    )  # fmt: skip
    means = ", ".join(f"{mean[k]:.2f} with {k}" for k in PROXIES)
    listed = ", ".join(f"{gains[k]:+.2f} with {k}" for k in PROXIES[1:])
    return paragraphs(
        "The documents make four claims of CCP's proxies; in MAP@R:",
        "\n".join([
            f"- more proxies help: {means}, in the mean over pools, {verdict(mean[most] - mean[few], deviation)}",
            f"- a larger pool helps several proxies: {listed}, in the mean of larger pools beside random picks, "
            f"{verdict(min(several), deviation)}",
            f"- it brings nothing to a single proxy: {gains[few]:+.2f}, {nothing}",
            "- proxies picked at random, out of a pool no larger than they are, still work well (ahead of the loss "
            f"alone): {grid[most, most]:.2f} with {most}, C2 alone {plain:.2f}, "
            f"{verdict(grid[most, most] - plain, deviation)}",
        ]),
    )  # fmt: skip
