"""The commands that train what a table lacks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from winnow.protocols.kinds import is_other_chapter
from winnow.protocols.runs import Task, Trial, named_backbone


def commands(task: Task, missing: Sequence[Trial]) -> list[str]:
    """Return what trains some runs and makes the table anew: runs of the same folds together.

    Each names all methods, those that lack nothing too, or they would not be in the table it makes.
    """
    lacking = {(trial.model, trial.run) for trial in missing}
    folds: dict[int, tuple[int, ...]] = {}
    for model, run in sorted(lacking):
        folds[run] = (*folds.get(run, ()), model)
    return [
        _command(task, models, [run for run in sorted(folds) if folds[run] == models])
        for models in dict.fromkeys(folds[run] for run in sorted(folds))
    ]


def _command(task: Task, models: Sequence[int], runs: Sequence[int]) -> str:
    protocol = task.protocol
    options = {
        "--chapter": str(protocol.chapter) if is_other_chapter(protocol) else None,
        "--folds": ",".join(map(str, models)) if len(models) < protocol.models else None,
        "--runs": ",".join(map(str, runs)) if list(runs) != [*range(1, protocol.runs + 1)] else None,
        "--data": task.root,
        "--backbone": None if named_backbone(task.words) else task.backbone.name,
        "-o": str(task.folder),
        "--note": task.note or None,
    }
    words = [word for option, value in options.items() if value is not None for word in (option, value)]
    target = task.target.path or task.target.name
    return shlex.join(["winnow", "protocol", protocol.name, target, *task.methods, *words, *task.words])
