"""Studies of the documents, each a function that makes a table, a figure and a paragraph.

Each study is one file and one line in `STUDIES`; `winnow study NAME` runs it and writes what it found.
"""

from collections.abc import Mapping

from winnow.studies import (
    average_pooling,
    ccp_mnist,
    cub_losses,
    iterations,
    losses,
    poolings,
    summary,
    tokens,
    toy_map,
)
from winnow.studies.base import Findings, Study, Task, write_findings

STUDIES: Mapping[str, Study] = {
    "summary": summary.study,
    "toy-map": toy_map.study,
    "tokens": tokens.study,
    "iterations": iterations.study,
    "average-pooling": average_pooling.study,
    "losses": losses.study,
    "poolings": poolings.study,
    "ccp-mnist": ccp_mnist.study,
    "cub-losses": cub_losses.study,
}

__all__ = ["STUDIES", "Findings", "Study", "Task", "write_findings"]
