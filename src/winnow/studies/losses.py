"""Every loss on the embedded set, with average pooling and with GSP + ZSR."""

from __future__ import annotations

from collections.abc import Sequence

from winnow.studies.base import Findings, Row, Task, paragraphs, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, verdict
from winnow.studies.poolings import THEIR_GSP

POOLINGS = {
    "GAP": ["pooling=gap"],
    THEIR_GSP: ["pooling=gsp", "pooling.mu=0.05", "pooling.eps=20", "zsr=0.1"],
}
# Those of the published run; the others have no runs yet.
LOSSES = (
    "c1", "c2", "triplet", "ms", "margin", "npair", "lifted", "proxy_anchor", "proxy_nca", "soft_triple",
)  # fmt: skip
# The demo's map and batches. One learning rate for all, also for proxies: it is the one they have in the documents.
WORDS = ["data=emoji", "dim=128", "backbone.train=frozen", "train.classes_per_batch=16", "train.lr=1e-3"]


def steps(small: bool) -> int:
    """Return the budget of every run."""
    return 200 if small else 1000


def comparison(small: bool) -> Comparison:
    """Return every loss at its own defaults, with each pooling."""
    methods = []
    for name in LOSSES:
        methods += [Method(f"{name}, {pooling}", [f"loss={name}", *words], group=pooling)
                    for pooling, words in POOLINGS.items()]  # fmt: skip
    words = [*WORDS, f"train.max_steps={steps(small)}", "train.eval_steps=50"]
    return Comparison(methods, seeds=(0,) if small else (0, 1, 2), words=words)


@with_runs
def study(task: Task) -> Findings:
    """Every loss on the embedded set, with average pooling and with GSP + ZSR: same budget (Table 5.1 in small).

    Cost: 2 minutes; in full half an hour.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    rows = compared.rows(found)
    made = (
        "Each registered loss at its own defaults on the embedded emoji set: a frozen backbone, the same number of "
        "steps, batches, learning rate and seeds for all, the best weights by validation. Nothing was tuned for a "
        "single loss, so this shows that each of them learns, not which is best."
    )
    text = paragraphs(compared_poolings(rows), made, not_done(rows, steps(task.small)))
    figure = compared.figure(found, "Every loss, the same budget")
    return findings(task, "losses", "Losses on the embedded set", text, compared, found, figure, rows)


def compared_poolings(rows: Sequence[Row]) -> str:
    """Check, over the losses that have runs of both poolings, that GSP improves every one."""
    by_name = {row["method"]: row for row in rows if row["MAP@R"] is not None}
    names = {loss: [f"{loss}, {pooling}" for pooling in POOLINGS] for loss in LOSSES}
    pairs = {loss: [by_name[name] for name in both] for loss, both in names.items() if set(both) <= set(by_name)}
    if not pairs:
        return "No loss has runs of both poolings yet, so that they cannot be compared."
    gains = {loss: after["MAP@R"] - before["MAP@R"] for loss, (before, after) in pairs.items()}
    least = min(gains, key=gains.__getitem__)
    spread = max(row.get("MAP@R sd") or 0.0 for row in pairs[least])
    ahead = sum(gain > 0 for gain in gains.values())
    return (
        f"- GSP improves every loss (Table 5.1): ahead of average pooling with {ahead} of {len(gains)}, and by "
        f"{gains[least]:+.2f} points of MAP@R with {least}, which gains least; {verdict(gains[least], spread)}."
    )


def not_done(rows: Sequence[Row], steps: int) -> str:
    """Name the losses that were best at the very end with either pooling."""
    late = {row["method"] for row in rows if row["steps"] is not None and row["steps"] >= 0.95 * steps}
    said = []
    for loss in LOSSES:
        with_it = [pooling for pooling in POOLINGS if f"{loss}, {pooling}" in late]
        said += [loss if len(with_it) == len(POOLINGS) else f"{loss} with {with_it[0]}"] if with_it else []
    return f"Best at the very end, and so not done learning: {', '.join(said)}." if said else ""
