"""Which numbers a table shows side by side."""

from __future__ import annotations

from winnow.protocols.runs import Task
from winnow.protocols.table import Cell, Row, Table
from winnow.protocols.values import HEADLINE

Head = tuple[int, str]
"""Size of the embedding, and metric."""


def heads(task: Task, table: Table) -> list[Head]:
    """Return what is shown: MAP@R and P@1, and in the conventional protocol the other R@k, as papers print them."""
    there = list(dict.fromkeys((cell.size, cell.metric) for row in table.rows for cell in row.cells))
    return [head for head in there if head[1] in HEADLINE or (task.protocol.report == "best" and is_rank(head))]


def is_rank(head: Head) -> bool:
    """Whether it is an R@k that is not P@1: of the best run alone, as papers print it."""
    return head[1].startswith("R@") and head[1] != "R@1"


def find_cell(row: Row, head: Head) -> Cell | None:
    """Return the number of a method, if there is one."""
    return next((cell for cell in row.cells if (cell.size, cell.metric) == head), None)


def has_documents(table: Table, head: Head) -> bool:
    """Whether the documents have this number for any method."""
    cells = (find_cell(row, head) for row in table.rows)
    return any(cell is not None and cell.document is not None for cell in cells)
