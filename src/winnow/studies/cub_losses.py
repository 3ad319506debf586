"""Losses, references and centre regularisation on one fold of CUB-200-2011."""

from __future__ import annotations

from importlib.resources import files

from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import Found, deviation, findings, scores, verdict

CONFIG = str(files("winnow.studies") / "cub_fair_fold1.yaml")
TITLE = "CUB-200-2011, fold 1, ResNet-50"
SHORT = "A few steps, to see that all of it runs: the numbers mean nothing. "
"""Said of a small study here."""
CCP = ["references=ccp", "references.preset=cub", "train.eval_steps=25", "train.patience=60"]
# Batches of 32 classes, faster proxies, and an epoch (100 steps) in which the backbone waits: the fair protocol's way.
PROXY_ANCHOR = ["loss=proxy_anchor", "loss.preset=cub", "train.classes_per_batch=32", "train.samples_per_class=1",
                "train.lr_multipliers={'references.proxies': 100}", "train.freeze_backbone_steps=100"]  # fmt: skip
# Toward the farthest, in a training as long as this: the best of 0.3 to 100 beside Proxy-Anchor on the embedded set's
# validation classes after 800 steps. The default, 0.3, is for short ones too.
FARTHEST = 10.0
C2, MS = ["loss=c2", "loss.preset=cub"], ["loss=ms", "loss.preset=cub"]

START, BATCHES = 1000, 25
XBM = ["references=memory", f"references.num_batches={BATCHES}", f"references.start_step={START}"]


def _thesis(value: float) -> dict[str, float]:
    """Return MAP@R of Table 3.1: BN-Inception, 128 numbers, the mean of four folds."""
    return {"thesis": value}


METHODS = [
    Method("C2", C2, "pairs", _thesis(21.01)),
    Method("C2 + CCP", [*C2, *CCP], "CCP", _thesis(22.67)),
    Method("C2 + XBM", [*C2, *XBM], "memory", _thesis(21.41)),
    Method("Proxy-Anchor", PROXY_ANCHOR, "proxies", _thesis(21.48)),
    Method(
        "Proxy-Anchor + R1, farthest",
        [*PROXY_ANCHOR, "regularizer=r1", "regularizer.toward=farthest", f"regularizer.weight={FARTHEST:g}"],
        "centres",
    ),
    Method("Proxy-Anchor + R1, nearest", [*PROXY_ANCHOR, "regularizer=r1", "regularizer.toward=nearest"], "centres"),
    Method("Proxy-Anchor + R2", [*PROXY_ANCHOR, "regularizer=r2", f"regularizer.weight={FARTHEST:g}"], "centres"),
    Method("MS", MS, "pairs", _thesis(19.64)),
    Method("MS + CCP", [*MS, *CCP], "CCP", _thesis(22.40)),
    Method("Proxy-Anchor + UniformFace", [*PROXY_ANCHOR, "regularizer=uniformface"], "centres"),
    Method("Proxy-Anchor + MHE", [*PROXY_ANCHOR, "regularizer=mhe"], "centres"),
]


def comparison(small: bool) -> Comparison:
    """Return the methods; small takes one seed and few steps, to see that all of it runs."""
    words = ["train.max_steps=200"] if small else []
    return Comparison(METHODS, seeds=(0,) if small else (0, 1, 2), words=["pooling=gap", *words], file=CONFIG)


def idle(found: Found) -> str:
    """Name the runs whose best weights are from before the memory began: they are those of the loss without it."""
    runs = found["C2 + XBM"]
    early = [str(run["config"]["seed"]) for run in runs if run["best_step"] <= START + BATCHES]
    told = (
        f"With seed {', '.join(early)} C2 + XBM was at its best before its memory began (step {START + BATCHES}), so "
    )
    return told + "that run is C2's." if early else ""


CLAIMS = {
    "CCP improves the loss it is added to": [("C2 + CCP", "C2"), ("MS + CCP", "MS")],
    "Memory (XBM) improves the loss": [("C2 + XBM", "C2")],
    "Centre regularisers improve Proxy-Anchor (document 004, whose numbers are lost)":
        [(method.name, "Proxy-Anchor") for method in METHODS if method.group == "centres"],
}  # fmt: skip
"""What the documents say, and the methods that tell, each with what it is added to."""


def standing(found: Found) -> str:
    """Set what CCP, memory and centre regularisers add beside what the documents say of them, claim by claim."""
    reached = scores(found)
    thesis = {method.name: method.facts["thesis"] for method in METHODS if "thesis" in method.facts}

    def gain(name: str, base: str) -> str:
        points = reached[name] - reached[base]
        there = f" (there {thesis[name] - thesis[base]:+.2f})" if name in thesis else ""
        spread = deviation({each: found[each] for each in (name, base)})
        return f"{name.removeprefix('Proxy-Anchor + ')} {points:+.2f}{there}, {verdict(points, spread)}"

    lines = []
    for claim, pairs in CLAIMS.items():
        told = [gain(*pair) for pair in pairs if set(pair) <= set(reached)]
        lines += [f"- {claim}: {'; '.join(told)}."] if told else []
    return "\n".join(["Points of MAP@R from the loss alone:", "", *lines]) if lines else ""


@with_data(small=True, full=True)
@with_runs
def study(task: Task) -> Findings:
    """Losses, CCP, memory and centre regularisation on one fold of CUB-200-2011 (Tables 3.1 and 5.1 in part).

    Cost: CUB-200-2011 and a GPU; in full 33 runs of 1 to 4 minutes on an H200.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    made = (
        f"{SHORT if task.small else ''}First fold of the fair protocol: classes 1-75 train, 76-100 choose the weights, "
        "101-200 test; ResNet-50 v1, average pooling, 128 numbers, Adam 1e-5, batches of 32, images with a short side "
        "of at most 256 pixels. The thesis (Table 3.1) has BN-Inception and the mean of four folds, so that its "
        "numbers stand beside these only roughly. All rows compare unit vectors, where its chapter 3 only shortens "
        "long ones. CCP is validated every 25 steps, as there, and so chooses among four times as many weights as the "
        "others, validated every 100."
    )
    centres = (
        "The settings of centre regularisers are winnow's defaults, chosen on the embedded set's validation classes, "
        f"not on CUB; toward the farthest (R1, R2) the weight is {FARTHEST:g}, the best there of 0.3 to 100 after 800 "
        "steps."
    )
    text = paragraphs("" if task.small else standing(found), made, centres, idle(found))
    rows, figure = compared.rows(found), compared.figure(found, TITLE)
    title = "Losses and references on CUB-200-2011, one fold"
    return findings(task, "cub-losses", title, text, compared, found, figure, rows)
