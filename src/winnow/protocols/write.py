"""The table of a protocol as Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from winnow.files import write_text
from winnow.protocols.kinds import BACKBONES, Protocol
from winnow.protocols.runs import Task
from winnow.protocols.statistics import LEVEL, Spread
from winnow.protocols.table import Cell, Row, Table
from winnow.training.provenance import provenance

NOTHING = "–"
_IN_LATEX = str.maketrans(
    {sign: rf"\{sign}" for sign in "_&%#${}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def write_table(task: Task, table: Table) -> list[Path]:
    """Write `table.md`, `.csv`, `.tex` and `.json` into the task's folder; return their paths.

    Raises:
        OutputError: when one cannot be written.
    """
    texts = {
        "md": markdown(task, table), "csv": comma_separated(table), "tex": latex(task, table),
        "json": json.dumps(content(task, table), indent=2) + "\n",
    }  # fmt: skip
    paths = [task.folder / f"table.{end}" for end in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths


def title(task: Task) -> str:
    """Return what the table is."""
    chapter = " of chapter 3" if task.protocol.chapter == 3 else ""
    return f"{task.target.title}, {task.protocol.name} protocol{chapter}, {task.network}"


def about(task: Task, table: Table) -> str:
    """Return what the numbers are, in a paragraph."""
    protocol = task.protocol
    cells = [cell for row in table.rows for cell in row.cells]
    told = _numbers(protocol, once=bool(cells) and all(_has_single(cell.spread) for cell in cells))
    networks = {c.document.backbone for row in table.rows for c in row.cells if c.document is not None}
    theirs = " and ".join(sorted(BACKBONES[name].title for name in networks))
    documents = f" Beside them the documents' numbers, made with {theirs}." if theirs else ""
    settings = [f"Settings other than the protocol's: {', '.join(f'`{word}`' for word in task.words)}."]
    steps = "Steps are those to the best weights, the mean over runs."
    waiting = any(row.finished and not row.cells for row in table.rows)
    folds = ["A method has numbers once every fold has a run."] if waiting else []
    return " ".join([f"In percent. {told}{documents} {steps}", *folds, *table.notes, *(settings if task.words else [])])


def _numbers(protocol: Protocol, *, once: bool) -> str:
    """Say what stands in a cell; there are no deviations and intervals where everything was done once."""
    mean = "mean" if once else "mean ± deviation"
    told, over = {
        "ensembles": (
            f"{protocol.models} folds x {protocol.runs} runs. The first size is that of models alone (the mean of an "
            f"ensemble's members), the last that of the members' embeddings joined. The {mean} over all ensembles of "
            "one run of each fold, as the documents report them",
            "the runs of each fold: it goes by the models, not by the ensembles",
        ),
        "best": (f"The best of {protocol.runs} runs by P@1; in parentheses the {mean} of all", "runs"),
        "mean": (f"The {mean} of {protocol.runs} runs, on validation classes", "runs"),
    }[protocol.report]
    if once:
        return f"{told} (deviations and intervals need a second run)."
    return f"{told}; in brackets a {LEVEL:.0%} interval of the mean (bootstrap over {over})."


def markdown(task: Task, table: Table) -> str:
    """Return the whole page."""
    heads = _heads(table)
    columns = ["method", "runs", "steps", *(text for size, metric in heads for text in (f"{size}-D {metric}", "doc."))]
    rows = [
        [row.method, f"{row.finished} of {row.planned}", NOTHING if row.steps is None else str(row.steps)]
        + [text for head in heads for text in _markdown_cells(task, _cell(row, head))]
        for row in table.rows
    ]
    parts = [f"# {title(task)}", about(task, table), _markdown_rows(columns, rows)]
    if table.pairs:
        columns = ["method", "against", "runs of each", "size", "metric", "difference"]
        rows = [
            [p.method, p.against, str(p.models), f"{p.size}-D", p.metric,
             f"{p.difference.mean:+.2f}{_ends(p.difference)}"] for p in table.pairs
        ]  # fmt: skip
        told = "Points by which a method is ahead, over the same folds and seeds."
        if not all(_has_single(pair.difference) for pair in table.pairs):
            told += " An interval that holds 0 leaves it open which is better."
        parts += ["## In pairs", told, _markdown_rows(columns, rows)]
    if table.missing:
        parts += ["## Missing", "\n".join(f"- `{command}`" for command in table.missing)]
    return "\n\n".join(parts) + "\n"


def comma_separated(table: Table) -> str:
    """Return the rows with a number in each column."""
    rows: list[dict[str, Any]] = []
    for row in table.rows:
        flat: dict[str, Any] = {
            "method": row.method, "finished": row.finished, "planned": row.planned, "steps": row.steps,
        }  # fmt: skip
        for cell in row.cells:
            name = f"{cell.size}-D {cell.metric}"
            over, document = cell.spread, cell.document
            numbers = {
                "": cell.value, " mean": over.mean, " std": None if _has_single(over) else over.std,
                " low": over.low, " high": over.high,
                " documents": None if document is None else document.value,
                " documents std": None if document is None else document.std,
                " documents table": None if document is None else document.table,
            }  # fmt: skip
            flat |= {
                f"{name}{end}": round(number, 4) if isinstance(number, float) else number
                for end, number in numbers.items()
            }
        rows.append(flat)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def latex(task: Task, table: Table) -> str:
    """Return a table for a paper; it needs no package."""
    heads = _heads(table)
    best = task.protocol.report == "best"
    numbers = f"the best of {task.protocol.runs} runs (mean and deviation of all)" if best else "mean and deviation"
    lines = [
        f"% {title(task)}: {numbers}; d: what the documents report",
        rf"\begin{{tabular}}{{l{'rr' * len(heads)}}}",
        r"\hline",
        " & ".join(["method", *(t for size, metric in heads for t in (f"{size}-D {metric}", "d"))]) + r" \\",
        r"\hline",
    ]
    for row in table.rows:
        cells = []
        for head in heads:
            cell = _cell(row, head)
            cells.append("--" if cell is None else _latex_cell(cell, best))
            cells.append("--" if cell is None or cell.document is None else f"{cell.document.value:.2f}")
        lines.append(" & ".join([row.method.translate(_IN_LATEX), *cells]) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def content(task: Task, table: Table) -> dict[str, Any]:
    """Return everything, with where it comes from."""
    return {
        "title": title(task),
        **provenance(),
        "protocol": asdict(task.protocol),
        "set": task.target.name,
        "backbone": task.network,
        "settings": list(task.words),
        "about": about(task, table),
        "rows": [asdict(row) for row in table.rows],
        "pairs": [asdict(pair) for pair in table.pairs],
        "missing": list(table.missing),
        "runs": [dict(record) for record in table.records],
    }


Head = tuple[int, str]


def _heads(table: Table) -> list[Head]:
    return list(dict.fromkeys((cell.size, cell.metric) for row in table.rows for cell in row.cells))


def _cell(row: Row, head: Head) -> Cell | None:
    return next((cell for cell in row.cells if (cell.size, cell.metric) == head), None)


def _ends(over: Spread) -> str:
    return "" if over.low is None or over.high is None else f" [{over.low:.2f}, {over.high:.2f}]"


def _has_single(over: Spread) -> bool:
    """Whether a fold has a single run, which all ensembles share: their deviation, if any, would pass for certainty."""
    return over.low is None


def _latex_cell(cell: Cell, best: bool) -> str:
    mean = f"{cell.spread.mean:.2f}" + ("" if _has_single(cell.spread) else rf" \pm {cell.spread.std:.2f}")
    return f"${cell.value:.2f}$ (${mean}$)" if best else f"${mean}$"


def _markdown_cells(task: Task, cell: Cell | None) -> list[str]:
    if cell is None:
        return [NOTHING, NOTHING]
    over, theirs = cell.spread, cell.document
    best = task.protocol.report == "best"
    deviation = "" if _has_single(over) else f" ± {over.std:.2f}"
    text = f"{cell.value:.2f} ({over.mean:.2f}{deviation})" if best else f"{cell.value:.2f}{deviation}"
    if theirs is None:
        return [text + _ends(over), NOTHING]
    std = "" if theirs.std is None else f" ± {theirs.std:.2f}"
    doubt = f"; {theirs.doubt}" if theirs.doubt else ""
    return [text + _ends(over), f"{theirs.value:.2f}{std} (Table {theirs.table}{doubt})"]


def _markdown_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows)])
