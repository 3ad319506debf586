"""A CSV file that lists images as a set of images."""

from __future__ import annotations

import csv
from pathlib import Path

from winnow.data.fileset import SPLIT_NAMES, FileSet, first_few
from winnow.data.folder import check_exists
from winnow.errors import DataError, nearest


def read_table(path: str | Path) -> FileSet:
    """Read a CSV file with the header `path,label` or `path,label,split`; further columns are passed over.

    Paths are relative to the CSV's folder, or absolute. Splits are train, val or test (or training, valid, validation,
    dev, testing).

    Raises:
        DataError: naming the row (the header is row 1) and the column that is wrong, or the files that are missing.
    """
    path = Path(path)
    check_exists(path)
    rows = _rows(path)
    columns = _columns(path, rows)
    cells: dict[str, list[str]] = {name: [] for name in columns}
    seen: dict[str, int] = {}
    for number, row in enumerate(rows[1:], start=2):
        if not any(cell.strip() for cell in row):
            continue
        for name, column in columns.items():
            cells[name].append(_cell(path, number, row, name, column))
        listed = cells["path"][-1]
        if listed in seen:
            raise DataError(
                f"{path} row {number}, column 'path': {listed} is already in row {seen[listed]}; list it once"
            )
        seen[listed] = number
    if not seen:
        raise DataError(f"{path} has a header but lists no images")
    missing = [name for name in cells["path"] if not (path.parent / name).is_file()]
    if missing:
        raise DataError(
            f"{path} lists files that do not exist: {first_few(missing)}; paths are taken relative to {path.parent}"
        )
    return FileSet.of_names(path.parent, cells["path"], cells["label"], given=cells.get("split"))


def _rows(path: Path) -> list[list[str]]:
    try:
        # utf-8-sig, because spreadsheets put a byte order mark in front.
        with open(path, encoding="utf-8-sig", newline="") as file:
            return list(csv.reader(file, strict=True))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text: save it as CSV with UTF-8 encoding") from None
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({error})") from None


def _columns(path: Path, rows: list[list[str]]) -> dict[str, int]:
    """Return the position of each column that matters."""
    if not rows:
        raise DataError(f"{path} is empty: its first row must be path,label or path,label,split")
    header = [cell.strip().casefold() for cell in rows[0]]
    for name in ("path", "label"):
        if name not in header:
            raise DataError(
                f"{path} row 1: there is no column '{name}'{nearest(name, header)}; "
                "the first row must be path,label or path,label,split"
            )
    return {name: header.index(name) for name in ("path", "label", "split") if name in header}


def _cell(path: Path, number: int, row: list[str], name: str, column: int) -> str:
    value = row[column].strip() if column < len(row) else ""
    if not value:
        raise DataError(f"{path} row {number}, column '{name}': is empty")
    if name != "split":
        return value
    if value.casefold() not in SPLIT_NAMES:
        raise DataError(
            f"{path} row {number}, column 'split': '{value}' is not train, val or test{nearest(value, SPLIT_NAMES)}"
        )
    return SPLIT_NAMES[value.casefold()]
