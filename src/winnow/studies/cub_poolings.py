"""Every pooling on one fold of CUB-200-2011, fine-tuned (Fig. 5.12b)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from winnow.studies.base import Findings, Task, with_data, with_runs
from winnow.studies.cub_losses import C2, CONFIG, SHORT, TITLE
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, scores, verdict
from winnow.studies.poolings import LARGE, every_pooling
from winnow.training import load_config

# The documents' settings of GSP: what is dropped as background is what mu does not keep.
POOLINGS = every_pooling(background=["pooling.mu=0.7"]) | LARGE

# What a short sitting should have trained first.
FIRST = ("GAP", "GSP + ZSR", "GSP", "ZSR alone (mu = 1)", "GeMean", "NetVLAD 8x16", "OTP 8x16", "DeLF", "CBAM")
ON_PAR = ("DeLF", "GeMean")  # with GSP, in the thesis
DEVIATION = 0.8  # of C2's three runs in the study of losses
ORDER = [*FIRST, *(name for name in POOLINGS if name not in FIRST)]


def _group(name: str) -> str:
    """Return the colour of a method: does it build on GSP's parts?"""
    return "GSP, ZSR" if "GSP" in name or "ZSR" in name else "others"


def comparison(small: bool) -> Comparison:
    """Return every pooling with C2; small takes few steps, to see that all of it runs."""
    return Comparison(
        [Method(name, POOLINGS[name], _group(name)) for name in ORDER],
        seeds=(0,),
        words=[*C2, *(["train.steps=20"] if small else [])],
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
    standing = "" if task.small else _standing(scores(found))
    config = load_config(compared.file, [*compared.words, *task.words])
    frozen = config.backbone.train == "frozen"
    assert config.train.lr is not None, "the file has one"
    rate = np.format_float_scientific(config.train.lr, trim="-", exp_digits=1)
    text = (
        f"{SHORT if task.small else ''}First fold of the fair protocol: classes 1-75 train, 76-100 choose the weights, "
        f"101-200 test; ResNet-50 v1{', which is not trained,' if frozen else ' fine-tuned'} with C2, 128 numbers for "
        f"an image where the name says no other, Adam {rate}, batches of 32. Every "
        "pooling has the parameters of its own paper and GSP those of "
        "the documents (mu = 0.3, eps = 5, 64 prototypes); none was tuned here. One run each: three runs of average "
        f"pooling{' with a fine-tuned network' if frozen else ''} differ by {DEVIATION} points of MAP@R (standard "
        f"deviation, table of losses), so nearer poolings are not told apart.{standing}"
    )
    rows, figure = compared.rows(found), compared.figure(found, f"{TITLE}, C2")
    return findings(task, "cub-poolings", "Poolings on CUB-200-2011, one fold", text, compared, found, figure, rows)


def _standing(reached: Mapping[str, float]) -> str:
    """Set where GSP with ZSR came out beside what the thesis says of this figure."""
    if not {"GAP", "GSP + ZSR"} <= set(reached):
        return ""
    order = sorted(reached, key=reached.__getitem__, reverse=True)
    rivals = [name for name in order if _group(name) == "others" and name != "GAP"]
    ahead = [name for name in rivals if reached[name] > reached["GAP"] + 1 and name not in ON_PAR]
    others = [name for name in rivals if name not in ON_PAR]
    gain = reached["GSP + ZSR"] - reached["GAP"]
    told = (
        f" GSP + ZSR is number {order.index('GSP + ZSR') + 1} of the {len(order)} that are in; first is {order[0]}. "
        "The thesis has GSP first, DeLF and GeMean on a par with it, and no other more than a point ahead of average "
        f"pooling. That GSP + ZSR is ahead of average pooling {verdict(gain, DEVIATION, of='run')} ({gain:+.2f} points "
        "of MAP@R)"
    )
    if not rivals:
        return f"{told}."
    lead = reached["GSP + ZSR"] - reached[rivals[0]]
    near = [f"{name} ({reached[name] - reached['GSP + ZSR']:+.2f})" for name in ON_PAR if name in reached]
    told += (
        f", that it is of the best other, {rivals[0]}, {verdict(lead, DEVIATION, of='run')} ({lead:+.2f}). "
        f"Beside it: {' and '.join(near) or 'neither of the two'}."
    )
    if not others:
        return told
    return (
        f"{told} Of the others ({len(others)}) {', '.join(ahead) or 'none'} {'are' if len(ahead) > 1 else 'is'} more "
        f"than a point ahead of average pooling, which {'does not agree' if ahead else 'agrees'}."
    )
