"""Tables as Markdown, CSV, and LaTeX: the one place where rows become text."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class Styled:
    """Cell with a separate text, such as "19.58 ± 0.21" for the number 19.58."""

    value: float | str | None  # in CSV
    text: str  # in Markdown and LaTeX
    bold: bool = False


Cell: TypeAlias = Styled | float | str | None
Row: TypeAlias = Mapping[str, Cell]


@dataclass(frozen=True)
class Column:
    """Column of a table: which value of a row it shows, and how."""

    key: str
    title: str = ""  # the key by default
    digits: int | None = None  # decimals of floats; None shows four significant digits, aligned within the column
    align: Literal["left", "right"] = "right"

    @property
    def heading(self) -> str:
        """Text of the head."""
        return self.title or self.key


MISSING = "–"
"""What stands in a cell without a value."""

_LATEX = str.maketrans(
    {sign: rf"\{sign}" for sign in "_&%#${}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "−": "$-$",
       "μ": r"$\mu$", "ε": r"$\varepsilon$", "λ": r"$\lambda$", "≤": r"$\le$", "≥": r"$\ge$"}
)  # fmt: skip


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """Return a column for each key in order of first occurrence.

    Text columns are aligned to the left.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    return [Column(key, align="left" if _is_text(rows, key) else "right") for key in keys]


def to_markdown(rows: Sequence[Row], columns: Sequence[Column] | None = None) -> str:
    """Return a Markdown table.

    Without columns all keys are shown. Without rows and columns the text is empty.
    """
    columns = columns_of(rows) if columns is None else columns
    if not columns:
        return ""
    bodies = [_texts(rows, column) for column in columns]
    cells = [[f"**{text}**" if bold else text for text, bold in body] for body in bodies]
    lines = [[column.heading for column in columns], *(list(line) for line in zip(*cells, strict=True))]
    text = ["| " + " | ".join(_one_line(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]
    text.insert(1, "|" + "|".join("---:" if column.align == "right" else "---" for column in columns) + "|")
    return "\n".join(text) + "\n"


def to_csv(rows: Sequence[Row], columns: Sequence[Column] | None = None) -> str:
    """Return comma-separated values at full precision.

    A cell without a value is empty.
    """
    columns = columns_of(rows) if columns is None else columns
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.heading for column in columns])
    for row in rows:
        cells = [row.get(column.key) for column in columns]
        writer.writerow([cell.value if isinstance(cell, Styled) else cell for cell in cells])
    return text.getvalue()


def to_latex(rows: Sequence[Row], columns: Sequence[Column] | None = None, *, comment: str = "") -> str:
    """Return a `tabular` that needs no package. Lines of the comment precede it."""
    columns = columns_of(rows) if columns is None else columns
    bodies = [_texts(rows, column) for column in columns]
    cells = [[rf"\textbf{{{_escape(text)}}}" if bold else _escape(text) for text, bold in body] for body in bodies]
    lines = [f"% {line}" for line in comment.splitlines()]
    lines += [rf"\begin{{tabular}}{{{''.join(column.align[0] for column in columns)}}}", r"\hline"]
    lines += [" & ".join(_escape(column.heading) for column in columns) + r" \\", r"\hline"]
    lines += [" & ".join(line) + r" \\" for line in zip(*cells, strict=True)]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _texts(rows: Sequence[Row], column: Column) -> list[tuple[str, bool]]:
    """Return the text of each cell of a column, and whether it is bold."""
    cells = [row.get(column.key) for row in rows]
    digits = _common_digits(cells) if column.digits is None else column.digits
    return [(_text(cell, digits), isinstance(cell, Styled) and cell.bold) for cell in cells]


def _text(cell: Cell, digits: int | None) -> str:
    if isinstance(cell, Styled):
        return cell.text or MISSING
    if cell is None or cell == "":
        return MISSING
    if isinstance(cell, float):
        return f"{cell:.4g}" if digits is None else f"{cell:.{digits}f}"
    return str(cell)


def _common_digits(cells: Sequence[Cell]) -> int | None:
    """Return the decimals that all floats of a column share, at most two.

    None if they need more decimals or an exponent.
    """
    texts = [f"{cell:.4g}" for cell in cells if isinstance(cell, float)]
    most = max((len(text.partition(".")[2]) for text in texts), default=0)
    return None if most > 2 or any("e" in text for text in texts) else most


def _is_text(rows: Sequence[Row], key: str) -> bool:
    cells = [row.get(key) for row in rows]
    values = [cell.value if isinstance(cell, Styled) else cell for cell in cells]
    return any(isinstance(value, str) and value != "" for value in values)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escape(text: str) -> str:
    return _one_line(text).replace(MISSING, "--").translate(_LATEX)
