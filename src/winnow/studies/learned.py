"""Does a learned mu or eps help? Beyond the documents, whose gradients in both are not derived."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from winnow.models.factory import read_state_dict
from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import deviation, findings, scores
from winnow.studies.sweeps import compare, gsp, how, losses

STARTS = {True: ((0.05, 20.0), (0.3, 5.0)), False: ((0.3, 5.0),)}
LEARNED: dict[str, list[str]] = {
    "fixed": [],
    "mu learned": ["pooling.learn_mu=true", "train.lr_multipliers={'*.mu_logit': 30}"],
    "eps learned": ["pooling.learn_eps=true", "train.lr_multipliers={'*.log_eps': 30}"],
    "both learned": ["pooling.learn_mu=true", "pooling.learn_eps=true",
                     "train.lr_multipliers={'*.mu_logit': 30, '*.log_eps': 30}"],
}  # fmt: skip
"""One number learns slowly at the rate of a matrix, hence the factors."""
GRADIENTS = "gradients of mu and eps come from the implicit function theorem, and both learn 30 times as fast"
MATTERS = 0.5  # points of MAP@R; seeds of the embedded set differ by about 0.3


def comparison(small: bool) -> Comparison:
    """Return GSP from each start with mu and eps fixed, either learned, and both."""
    own = losses(small)["C2"]
    methods = []
    for mu, eps in STARTS[small]:
        for name, extra in LEARNED.items():
            methods.append(
                Method(f"mu {mu:g}, eps {eps:g}: {name}", [*gsp(mu, eps), *extra, *own], name, {"start": (mu, eps)})
            )
    return compare(methods, small)


@with_data(small=False, full=True)
@with_runs
def study(task: Task) -> Findings:
    """GSP whose mu, eps or both are learned, beside fixed ones, from good and from the documents' values (new).

    Cost: 1 minute (8 runs); in full 12 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    rows = compared.rows(found)
    for row, method in zip(rows, compared.methods, strict=True):
        folders = [compared.plan(method, seed, task).run_dir for seed in compared.seeds]
        weights = [each.model_folder / "model.safetensors" for each in folders if each.is_finished]
        # A run that is taken in from a file of results has none.
        ends = [ended(read_state_dict(file), *method.facts["start"]) for file in weights if file.is_file()]
        row.pop("start")
        for key in ("mu", "eps"):
            row[f"{key} at the end"] = round(statistics.mean(end[key] for end in ends), 4) if ends else None
    figure = compared.figure(found, "GSP with C2")
    spread = deviation(found)
    text = paragraphs(
        told(task.small, scores(found), rows, spread), how(compared, task, f"C2, no ZSR; {GRADIENTS}", theirs="")
    )
    return findings(task, "learned", "Learned mu and eps", text, compared, found, figure, rows)


def ended(state: Mapping[str, Any], mu: float, eps: float) -> dict[str, float]:
    """Return the mu and eps of a model's weights; where they were not learned, what they were set to."""
    for key, value in state.items():
        if key.endswith("pooling.mu_logit"):
            mu = 1 / (1 + math.exp(-float(value)))
        if key.endswith("pooling.log_eps"):
            eps = math.exp(float(value))
    return {"mu": mu, "eps": eps}


def told(small: bool, reached: Mapping[str, float], rows: list[dict[str, Any]], deviation: float = 0.0) -> str:
    """Say from each start whether learning helped by more than seeds deviate, and where it went."""
    items = []
    ends = {row["method"]: (row["mu at the end"], row["eps at the end"]) for row in rows}
    for mu, eps in STARTS[small]:
        start = f"mu {mu:g}, eps {eps:g}"
        names = {name: f"{start}: {name}" for name in LEARNED}
        if not all(name in reached for name in names.values()):
            items.append(f"- From {start} runs are missing.")
            continue
        base = reached[names["fixed"]]
        gains = {name: reached[full] - base for name, full in names.items() if name != "fixed"}
        best = max(gains, key=lambda name: gains[name])
        mu_end, eps_end = ends[names["both learned"]]
        end = "" if mu_end is None else f"; both together end at mu {mu_end:.3g} and eps {eps_end:.3g}"
        listed = ", ".join(f"{name} {gain:+.2f}" for name, gain in gains.items())
        top = gains[best]
        matters = max(MATTERS, deviation)
        verdict = "helps" if top > matters else "hardly matters" if top > -matters else "harms"
        items.append(
            f"- From {start} ({base:.2f} when fixed): {listed} points of MAP@R{end}. By the best of the "
            f"three gains{'' if deviation else ', in one seed,'} learning {verdict}."
        )
    counted = f"A gain counts from {max(MATTERS, deviation):.2g} points on"
    known = "; three seeds of a fixed one deviate by about 0.3" if small else ""
    since = f"; seeds deviate by up to {deviation:.2f}" if deviation else known
    none = "The documents fix mu and eps, so that there is no claim to check."
    return paragraphs(none, "\n".join(items), f"{counted}{since}; the best of three is the luckiest of three.")
