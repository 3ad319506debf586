"""Every loss on the embedded set, with average pooling and with GSP + ZSR."""

from __future__ import annotations

from winnow.losses import LOSSES
from winnow.studies.base import Findings, Task, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings

POOLINGS = {
    "GAP": ["pooling=gap"],
    "GSP + ZSR": ["pooling=gsp", "pooling.mu=0.05", "pooling.eps=20", "zsr=0.1"],
}
# The demo's map and batches. One learning rate for all, also for proxies: it is the one they have in the documents.
WORDS = ["data=emoji", "dim=128", "backbone.train=frozen", "train.classes_per_batch=16", "train.lr=1e-3"]


def steps(small: bool) -> int:
    """Return the budget of every run."""
    return 200 if small else 1000


def comparison(small: bool) -> Comparison:
    """Return every registered loss at its own defaults, with each pooling."""
    methods = []
    for name in LOSSES:
        methods += [Method(f"{name}, {pooling}", [f"loss={name}", *words], group=pooling)
                    for pooling, words in POOLINGS.items()]  # fmt: skip
    words = [*WORDS, f"train.steps={steps(small)}", "train.eval_every=50"]
    return Comparison(methods, seeds=(0,) if small else (0, 1, 2), words=words)


@with_runs
def study(task: Task) -> Findings:
    """Every loss on the embedded set, with average pooling and with GSP + ZSR: same budget, same seeds.

    Cost: 2 minutes; in full half an hour.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    rows = compared.rows(found)
    better = [
        name for name in LOSSES
        if (pair := [next(r["MAP@R"] for r in rows if r["method"] == f"{name}, {p}") for p in POOLINGS])
        and None not in pair and pair[1] > pair[0]
    ]  # fmt: skip
    late = [row["method"] for row in rows if row["steps"] is not None and row["steps"] >= 0.95 * steps(task.small)]
    text = (
        "Each registered loss at its own defaults on the embedded emoji set: a frozen backbone, the same number of "
        "steps, batches, learning rate and seeds for all, the best weights by validation. "
        "Nothing was tuned for a single loss, so this shows that each of them learns, not "
        f"which is best. GSP + ZSR is ahead of average pooling with {len(better)} of {len(list(LOSSES))} losses."
        + (f" Best at the very end, and so not done learning: {'; '.join(late)}." if late else "")
    )
    figure = compared.figure(found, "Every loss, the same budget")
    return findings(task, "losses", "Losses on the embedded set", text, compared, found, figure, rows)
