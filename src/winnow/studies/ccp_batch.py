"""How much CCP and the plain loss depend on the batch size (Fig. 3.8)."""

from __future__ import annotations

from collections.abc import Mapping

from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.ccp_sweeps import LOSSES, ccp, compare, train, where
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import deviation, findings, scores, verdict
from winnow.studies.sweeps import curves

BATCHES = (16, 32, 64, 128)  # of four images of a class
MATTERS = 0.5  # points of MAP@R, where seeds differ by less


def comparison(task: Task) -> Comparison:
    """Return C2 alone and with CCP, with batches of each size."""
    own = LOSSES[task.small]["C2"]
    return compare([
        Method(f"{name}, batch {batch}", [*own, *extra, f"train.classes_per_batch={batch // 4}"], name,
               {"batch": batch})
        for name, extra in (("C2", []), ("C2 + CCP", ccp())) for batch in BATCHES
    ], task)  # fmt: skip


@with_data(small=False, full=True)
@with_runs
def study(task: Task) -> Findings:
    """C2 alone and with CCP in batches of 16 to 128 images (Fig. 3.8).

    Cost: 1 minute (16 runs); in full 24 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task)
    found = train(compared, task)
    reached = scores(found)
    lines: dict[str, dict[float, str]] = {"C2": {}, "C2 + CCP": {}}
    for method in compared.methods:
        lines[method.group][float(method.facts["batch"])] = method.name
    by_batch = {name: {batch: reached[one] for batch, one in line.items() if one in reached}
                for name, line in lines.items()}  # fmt: skip
    figure = curves(found, lines, {}, label="images in a batch", title="C2 and C2 + CCP", log=True)
    verdicts = told(by_batch["C2"], by_batch["C2 + CCP"], deviation(found))
    text = paragraphs(verdicts, f"{where(task.small, fair=True)} Batches have four images of a class.")
    rows = compared.rows(found)
    return findings(task, "ccp-batch", "Batch size", text, compared, found, figure, rows)


def told(plain: Mapping[float, float], ccp: Mapping[float, float], deviation: float = 0.0) -> str:
    """Check: the plain loss gains from larger batches, CCP does as well with small ones."""
    if not set(BATCHES) <= set(plain) & set(ccp):
        return "Runs are missing, so that the claim cannot be checked yet."
    small, large = min(BATCHES), max(BATCHES)
    grows, left = plain[large] - plain[small], ccp[large] - ccp[small]
    slack, ahead = max(MATTERS, deviation), sum(ccp[batch] > plain[batch] for batch in BATCHES)
    return paragraphs(
        "The documents make two claims of the batch; in MAP@R:",
        "\n".join([
            f"- the plain loss gains from larger batches: from {small} to {large} images C2 goes from "
            f"{plain[small]:.2f} to {plain[large]:.2f} ({grows:+.2f}), {verdict(grows, deviation)}",
            f"- CCP does as well with small ones: {ccp[small]:.2f} and {ccp[large]:.2f} ({left:+.2f}), "
            f"{'agrees' if left <= slack else 'does not agree'} (as well: no more than {slack:.2f} points less); it is "
            f"ahead of C2 alone with {ahead} of {len(BATCHES)} sizes",
        ]),
    )  # fmt: skip
