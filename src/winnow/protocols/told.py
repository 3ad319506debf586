"""What a protocol's table is and what its numbers are, in words."""

from __future__ import annotations

from winnow.protocols.kinds import BACKBONES
from winnow.protocols.runs import Task
from winnow.protocols.statistics import LEVEL
from winnow.protocols.table import Table


def title(task: Task) -> str:
    """Return what the table is."""
    chapter = " of chapter 3" if task.protocol.chapter == 3 else ""
    return f"{task.target.title}, {task.protocol.name} protocol{chapter}, {task.network}"


def about(task: Task, table: Table) -> str:
    """Return what the numbers are, in a paragraph."""
    networks = {c.document.backbone for row in table.rows for c in row.cells if c.document is not None}
    theirs = " and ".join(sorted(BACKBONES[name].title for name in networks))
    waiting = any(row.finished and not row.cells and row.method not in table.faults for row in table.rows)
    sentences = [
        f"In percent. {_numbers(task, table)}",
        f"Beside them the documents' numbers, made with {theirs}." if theirs else "",
        "Steps are those to the best weights, the mean over runs.",
        "A method has numbers once every fold has a run." if waiting else "",
        *table.notes,
        *(f"{method} is left out: {reason}." for method, reason in table.faults.items()),
        f"Settings other than the protocol's: {', '.join(f'`{word}`' for word in task.words)}." if task.words else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _numbers(task: Task, table: Table) -> str:
    """Say what stands in a cell; nothing of deviations, intervals and runs that are not there."""
    protocol = task.protocol
    spreads = [cell.spread for row in table.rows for cell in row.cells]
    runs = max((row.planned // protocol.models for row in table.rows), default=protocol.runs)
    whole = all(row.finished == row.planned for row in table.rows)
    some = f"{runs} runs" if whole else "the finished runs"
    mean = "mean ± deviation" if any(over.std is not None for over in spreads) else "mean"
    told, over = {
        "ensembles": (
            f"{protocol.models} folds x {runs} runs{'' if whole else ', of which those that are finished'}. The first "
            "size is that of models alone (the mean of an ensemble's members), the last that of the members' "
            f"embeddings joined. The {mean} over all ensembles of one run of each fold, as the documents report them",
            "the runs of each fold: it goes by the models, not by the ensembles",
        ),
        "best": (f"The best of {some} by P@1; in parentheses the {mean} of all", "runs"),
        "mean": (f"The {mean} of {some}, on validation classes", "runs"),
    }[protocol.report]
    brackets = f"; in brackets a {LEVEL:.0%} interval of the mean (bootstrap over {over})"
    needed = (
        " An interval needs three runs." if protocol.models == 1
        else " Deviations and intervals need two runs of every fold."
    )  # fmt: skip
    has, lacks = (any((over.low is None) == none for over in spreads) for none in (False, True))
    ranks = " R@k is that of the best run, and R@1 is P@1." if protocol.report == "best" and spreads else ""
    return f"{told}{brackets if has else ''}.{needed if lacks else ''}{ranks}"
