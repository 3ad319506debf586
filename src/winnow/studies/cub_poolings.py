"""Every pooling on one fold of CUB-200-2011, fine-tuned (Fig. 5.12b)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.cub_losses import C2, CONFIG, SHORT, TITLE
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, scores, verdict
from winnow.studies.poolings import LARGE, THEIR_GSP, every_pooling
from winnow.training import load_config

# The documents' settings of GSP: what is dropped as background is what mu does not keep.
POOLINGS = every_pooling(background=["pooling.mu=0.7"]) | LARGE

# What is trained first, where there is no time for all.
FIRST = ("GAP", THEIR_GSP, "GSP", "ZSR alone (mu = 1)", "GeMean", "NetVLAD 8x16", "OTP 8x16", "DeLF", "CBAM")
ON_PAR = ("DeLF", "GeMean")  # with GSP, in the thesis
FINE_TUNED = 0.8  # points by which three runs of average pooling deviate in cub-losses, with a fine-tuned network
ORDER = [*FIRST, *(name for name in POOLINGS if name not in FIRST)]


def _group(name: str) -> str:
    """Return the colour of a method: does it build on GSP's parts?"""
    return "GSP, ZSR" if "GSP" in name or "ZSR" in name else "others"


def comparison(small: bool) -> Comparison:
    """Return every pooling with C2; small takes few steps, to see that all of it runs."""
    return Comparison(
        [Method(name, POOLINGS[name], _group(name)) for name in ORDER],
        seeds=(0,),
        words=[*C2, *(["train.max_steps=20"] if small else [])],
        file=CONFIG,
    )


@with_data(small=True, full=True)
@with_runs
def study(task: Task) -> Findings:
    """Every pooling on one fold of CUB-200-2011, fine-tuned with C2 (Fig. 5.12b; needs the images, and a GPU).

    Cost: CUB-200-2011 and a GPU; in full 23 runs of half a minute on an H200.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    config = load_config(compared.file, [*compared.words, *task.words])
    frozen = config.backbone.train == "frozen"
    assert config.train.lr is not None, "the file has one"
    rate = np.format_float_scientific(config.train.lr, trim="-", exp_digits=1)
    made = (
        f"{SHORT if task.small else ''}First fold of the fair protocol: classes 1-75 train, 76-100 choose the weights, "
        f"101-200 test; ResNet-50 v1{', which is not trained,' if frozen else ' fine-tuned'} with C2, 128 numbers for "
        f"an image where the name says no other, Adam {rate}, batches of 32. Every pooling has the parameters of its "
        "own paper and GSP those of the documents (mu = 0.3, eps = 5, 64 prototypes); none was tuned here. The thesis "
        "has BN-Inception and the mean of four folds."
    )
    once = (
        "One run each, so that how far runs deviate is not known here."
        if frozen
        else f"One run each: three runs of average pooling deviate by {FINE_TUNED} points of MAP@R (cub-losses), so "
        "that nearer poolings are not told apart."
    )
    claims = "" if task.small else "\n".join(standing(scores(found), 0.0 if frozen else FINE_TUNED))
    text = paragraphs(claims, made, once)
    rows, figure = compared.rows(found), compared.figure(found, f"{TITLE}, C2")
    return findings(task, "cub-poolings", "Poolings on CUB-200-2011, one fold", text, compared, found, figure, rows)


def standing(reached: Mapping[str, float], deviation: float) -> list[str]:
    """Return a line for each thing that the thesis says of this figure, where its GSP is ours with ZSR.

    Args:
        reached: MAP@R in percent by pooling.
        deviation: Points by which runs deviate; 0 where that is not known.
    """
    if not {"GAP", THEIR_GSP} <= set(reached):
        return []
    order = sorted(reached, key=reached.__getitem__, reverse=True)
    rivals = [name for name in order if _group(name) == "others" and name != "GAP"]
    others = [name for name in rivals if name not in ON_PAR]
    ahead = [name for name in others if reached[name] > reached["GAP"] + 1]

    def beside(name: str) -> float:
        return reached[THEIR_GSP] - reached[name]

    gain = verdict(beside("GAP"), deviation, of="run")
    lines = [f"- {THEIR_GSP} is ahead of average pooling: {beside('GAP'):+.2f} points of MAP@R; {gain}."]
    if rivals:
        lines.append(
            f"- It is first: from the best other, {rivals[0]}, {beside(rivals[0]):+.2f}; "
            f"{verdict(beside(rivals[0]), deviation, of='run')}. It is number {order.index(THEIR_GSP) + 1} of the "
            f"{len(order)} that are in, and first is {order[0]}."
        )
    for name in (name for name in ON_PAR if name in reached):
        apart = abs(beside(name)) > deviation
        par = "cannot be told (one run)" if not deviation else "does not agree" if apart else "agrees"
        lines.append(f"- {name} is on a par with it: {-beside(name):+.2f}; {par}.")
    if others:
        lines.append(
            f"- No other is more than a point ahead of average pooling: of {len(others)} "
            f"{', '.join(ahead) or 'none'}; {'does not agree' if ahead else 'agrees'}."
        )
    return lines
