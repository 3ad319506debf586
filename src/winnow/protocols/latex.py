"""The table of a protocol for a paper."""

from __future__ import annotations

import textwrap

from winnow.protocols.columns import find_cell, has_documents, heads, is_rank
from winnow.protocols.runs import Task
from winnow.protocols.table import Cell, Table
from winnow.protocols.told import about, title

_ESCAPED = str.maketrans(
    {sign: rf"\{sign}" for sign in "_&%#${}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def latex(task: Task, table: Table) -> str:
    """Return a table for a paper, which needs no package; comments say what it is."""
    shown = [(head, has_documents(table, head)) for head in heads(task, table)]
    best = task.protocol.report == "best"
    told = [title(task), about(task, table)]
    if any(documents for _, documents in shown):
        told.append("d: what the documents report.")
    told += [
        f"Doubtful, {row.method}, {cell.size}-D {cell.metric}: {cell.document.doubt}."
        for row in table.rows for cell in row.cells if cell.document is not None and cell.document.doubt
    ]  # fmt: skip
    names, sides = ["method", "runs"], "lr"
    for (size, metric), documents in shown:
        names += [f"{size}-D {metric}", *(["d"] if documents else [])]
        sides += "rr" if documents else "r"
    lines = [f"% {line}" for text in told for line in textwrap.wrap(text, 110, break_on_hyphens=False)]
    lines += [rf"\begin{{tabular}}{{{sides}}}", r"\hline", " & ".join(names) + r" \\", r"\hline"]
    for row in table.rows:
        cells = [row.method.translate(_ESCAPED), f"{row.finished} of {row.planned}"]
        for head, documents in shown:
            cell = find_cell(row, head)
            cells.append("--" if cell is None else f"${cell.value:.2f}$" if is_rank(head) else _text(cell, best))
            if documents:
                cells.append("--" if cell is None or cell.document is None else f"{cell.document.value:.2f}")
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _text(cell: Cell, best: bool) -> str:
    over = cell.spread
    mean = f"{over.mean:.2f}" + ("" if over.std is None else rf" \pm {over.std:.2f}")
    ends = "" if over.low is None or over.high is None else f" $[{over.low:.2f}, {over.high:.2f}]$"
    return (f"${cell.value:.2f}$ (${mean}$)" if best else f"${mean}$") + ends
