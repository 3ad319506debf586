"""Every pooling on the embedded set, with a pair loss and a proxy loss (Fig. 5.12 in small)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from winnow.studies.base import Findings, Task, paragraphs, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, verdict

# The demo's map, batches and learning rate, and its C2.
WORDS = ["data=emoji", "backbone.train=frozen", "train.classes_per_batch=16", "train.lr=1e-3"]
LOSSES = {
    "C2": ["loss=c2", "loss.pos_margin=0.2", "loss.neg_margin=0.9"],
    "PNCA": ["loss=proxy_nca"],
}
# As the documents train proxies: one image of each class in a batch, and steps a hundred times as long. Without these
# a short training does not begin to learn.
PNCA = ["loss=proxy_nca", "train.classes_per_batch=32", "train.samples_per_class=1",
        "train.lr_multipliers={'references.proxies': 100}"]  # fmt: skip
EMBEDDED = LOSSES | {"PNCA": PNCA}
"""Both losses as studies on the embedded set train them."""
MADE = (
    "Every pooling on the embedded emoji set, whose pictures hold three of clutter for one that counts: a frozen "
    "backbone's map, 128 numbers for an image where the name says no other, the same steps, batches, learning rate and "
    "seeds for all, the best weights by validation. Poolings are as in their own papers. mu and eps of GSP were chosen "
    "on the validation classes with C2, and kept with Proxy-NCA++ (PNCA); no other pooling was tuned. What the "
    "documents say is of their Cifar Collage, which is made alike; of CUB they say that GSP is ahead by a little (Fig. "
    "5.12)."
)
MISSING = "Runs of average pooling and GSP are missing, so that no claim can be checked yet."
FASTER = "Proxies learn a hundred times as fast as the rest, from batches of one image of each of 32 classes."


THEIR_GSP = "GSP + ZSR"
"""What the documents call GSP, so that this one of ours stands beside it: theirs has zero-shot regularisation, and C2 +
GSP of Table 5.1 is the row of Table 5.3 with both."""


def every_pooling(selection: Sequence[str] = (), background: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the words of every pooling by its name in the tables.

    Args:
        selection: Settings of GSP where its prototypes are what is kept.
        background: Settings of GSP where they are what is dropped.
    """
    return {
        "GAP": ["pooling=gap"],
        "GMP": ["pooling=gmp"],
        "GMP, projected": ["pooling=gmp_projected"],
        "GAP+GMP": ["pooling=gap_gmp"],
        "CBAM": ["pooling=cbam"],
        "CroW": ["pooling=crow"],
        "DeLF": ["pooling=delf"],
        "GeMax": ["pooling=gemax"],
        "GeMean": ["pooling=gemean"],
        "GSoP": ["pooling=gsop"],
        "OTP 8x16": ["pooling=otp", "pooling.num_prototypes=8"],
        "SOLAR": ["pooling=solar"],
        "T-SMK": ["pooling=tsmk"],
        "NetVLAD 8x16": ["pooling=netvlad", "pooling.clusters=8"],
        "WELDON": ["pooling=weldon"],
        "GSP": ["pooling=gsp", *selection],
        "GMP+GSP": ["pooling=gmp_gsp", *selection],
        "GeMean+GSP": ["pooling=gemean_gsp", *selection],
        "GSP, background": ["pooling=gsp", "pooling.role=background", *background],
        "ZSR alone (mu = 1)": ["pooling=gsp", *selection, "pooling.mu=1", "zsr=0.1"],
        THEIR_GSP: ["pooling=gsp", *selection, "zsr=0.1"],
    }


# mu and eps were chosen on the validation classes, for the demo.
METHODS = every_pooling(["pooling.mu=0.05", "pooling.eps=20"], background=["pooling.mu=0.95", "pooling.eps=20"])
METHODS |= {"RK-FBP": ["pooling=rk_fbp"], "RK-FBP, rank 1": ["pooling=rk_fbp", "pooling.rank=1"]}
LARGE: dict[str, list[str]] = {
    "OTP 64x128": ["pooling=otp", "pooling.num_prototypes=64", "dim=8192"],
    "NetVLAD 64x128": ["pooling=netvlad", "pooling.clusters=64", "dim=8192"],
}
"""8192 numbers for an image, which takes its time to search."""


def comparison(small: bool) -> Comparison:
    """Return every pooling with both losses; the large ones only in full."""
    methods = METHODS if small else METHODS | LARGE
    steps = (
        ["train.max_steps=200", "train.eval_steps=50"] if small else ["train.max_steps=1000", "train.eval_steps=100"]
    )
    return Comparison(
        [Method(f"{name}, {loss}", [*words, *extra], group=loss)
         for name, words in methods.items() for loss, extra in EMBEDDED.items()],
        seeds=(0,) if small else (0, 1, 2),
        words=[*WORDS, "dim=128", *steps],
    )  # fmt: skip


@with_runs
def study(task: Task) -> Findings:
    """Every pooling on the embedded set, with C2 and Proxy-NCA++: same budget, same seeds (Fig. 5.12 in small).

    Cost: 3 minutes (42 runs); in full 1 hour.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    rows = compared.rows(found)
    text = paragraphs("\n".join(ranking(rows)) or MISSING, MADE, FASTER)
    figure = compared.figure(found, "Every pooling, the same budget")
    return findings(task, "poolings", "Poolings on the embedded set", text, compared, found, figure, rows)


def ranking(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each loss and claim: the documents' GSP is ahead of average pooling, and of all others."""
    lines = []
    for loss in LOSSES:
        by_name = {row["method"].removesuffix(f", {loss}"): row for row in rows
                   if row["method"].endswith(f", {loss}") and row["MAP@R"] is not None}  # fmt: skip
        scores = {name: float(row["MAP@R"]) for name, row in by_name.items()}
        if not {"GAP", THEIR_GSP} <= set(scores):
            continue
        order = sorted(scores, key=scores.__getitem__, reverse=True)
        others = [name for name in order if "GSP" not in name and "ZSR" not in name
                  and not (loss == "C2" and name.startswith("NetVLAD"))]  # fmt: skip

        def lead(other: str, by_name: dict[str, dict[str, Any]] = by_name) -> str:
            ours, theirs = by_name[THEIR_GSP], by_name[other]
            points = ours["MAP@R"] - theirs["MAP@R"]
            return f"{points:+.1f}; {verdict(points, max(row.get('MAP@R sd') or 0.0 for row in (ours, theirs)))}"

        but = " but NetVLAD" if loss == "C2" else ""
        lines += [
            f"- With {loss} {THEIR_GSP} is ahead of average pooling: {lead('GAP')}.",
            f"- With {loss} it is far ahead of all others{but}: from the best, {others[0]}, {lead(others[0])}. It is "
            f"number {order.index(THEIR_GSP) + 1} of {len(order)}, and first is {order[0]}.",
        ]
    return lines
