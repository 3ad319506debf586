"""What runs need and is not there: told once, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from winnow.data.datasets import DATASETS
from winnow.errors import ModelError
from winnow.protocols.runs import Task, Trial


def check_there(task: Task, trials: Sequence[Trial]) -> None:
    """Refuse, once for all runs that are to be trained, a set or a file of weights that is not there.

    Raises:
        DataError: naming the folder.
        ModelError: naming the file.
    """
    configs = [trial.planned.config for trial in trials if task.wants(trial) and trial.result() is None]
    if configs and task.target.path is None:
        published, root = DATASETS[task.target.name], configs[0].data.root  # that of all runs
        place = published.default_root if root is None else Path(root)
        if not place.is_dir():
            published.check(place)  # says where it can be had
    for weights in dict.fromkeys(config.backbone.weights for config in configs):
        if "/" in weights and not Path(weights).is_file():
            raise ModelError(f"there is no file {weights}: put the network's weights there, or name them "
                             "(backbone.weights=FILE)")  # fmt: skip
