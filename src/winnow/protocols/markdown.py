"""The table of a protocol as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from winnow.protocols.columns import Head, find_cell, has_documents, heads, is_rank
from winnow.protocols.runs import Task
from winnow.protocols.statistics import Spread
from winnow.protocols.table import Cell, Row, Table
from winnow.protocols.told import about, title
from winnow.protocols.values import HEADLINE

NOTHING = "–"


def markdown(task: Task, table: Table) -> str:
    """Return the whole page."""
    shown = heads(task, table)
    columns = ["method", "runs", "steps"]
    for head in shown:
        columns += [f"{head[0]}-D {head[1]}", *(["doc."] if has_documents(table, head) else [])]
    rows = [
        [row.method, f"{row.finished} of {row.planned}", NOTHING if row.steps is None else str(row.steps)]
        + [text for head in shown for text in _texts(task, table, row, head)]
        for row in table.rows
    ]
    parts = [f"# {title(task)}", about(task, table), _rows(columns, rows)]
    pairs = [pair for pair in table.pairs if pair.metric in HEADLINE]
    if pairs:
        columns = ["method", "against", "runs of each", "size", "metric", "difference"]
        rows = [
            [p.method, p.against, str(p.models), f"{p.size}-D", p.metric,
             f"{p.difference.mean:+.2f}{_ends(p.difference)}"] for p in pairs
        ]  # fmt: skip
        same = "folds and seeds" if task.protocol.models > 1 else "seeds"
        told = f"Points by which a method is ahead, over the same {same}."
        if any(pair.difference.low is not None for pair in pairs):
            told += " An interval that holds 0 leaves it open which is better."
        parts += ["## In pairs", told, _rows(columns, rows)]
    if table.missing:
        parts += ["## Missing", "\n".join(f"- `{command}`" for command in table.missing)]
    return "\n\n".join(parts) + "\n"


def _texts(task: Task, table: Table, row: Row, head: Head) -> list[str]:
    """Return what stands in the column of a number, and in the documents' beside it, where there is one."""
    cell = find_cell(row, head)
    ours = NOTHING if cell is None else f"{cell.value:.2f}" if is_rank(head) else _ours(task, cell)
    return [ours, *([_theirs(cell)] if has_documents(table, head) else [])]


def _ours(task: Task, cell: Cell) -> str:
    over = cell.spread
    deviation = "" if over.std is None else f" ± {over.std:.2f}"
    if task.protocol.report == "best":
        return f"{cell.value:.2f} ({over.mean:.2f}{deviation}){_ends(over)}"
    return f"{cell.value:.2f}{deviation}{_ends(over)}"


def _theirs(cell: Cell | None) -> str:
    if cell is None or cell.document is None:
        return NOTHING
    theirs = cell.document
    std = "" if theirs.std is None else f" ± {theirs.std:.2f}"
    doubt = f"; {theirs.doubt}" if theirs.doubt else ""
    return f"{theirs.value:.2f}{std} (Table {theirs.table}{doubt})"


def _ends(over: Spread) -> str:
    return "" if over.low is None or over.high is None else f" [{over.low:.2f}, {over.high:.2f}]"


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows)])
