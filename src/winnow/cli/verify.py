"""`winnow verify`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import typer

from winnow.errors import DataError, ModelError, WinnowError


def verify(
    paths: list[Path] = typer.Argument(
        ..., metavar="PATH...", help="Run, sweep, protocol, or index folder, saved model, or table"
    ),
) -> None:
    """Verify saved files against their checksums.

    Checks every folder below PATH that has a file SHA256SUMS. Opening a file checks it as well; this command checks all
    of them at once. Exits with 4 if a file is damaged or missing.

    Examples:
        winnow verify runs/first
        winnow verify photos.index runs/first/model
        winnow verify out/table.json
    """
    from winnow.cli.console import echo

    problems = 0
    for path in paths:
        for file, problem in check_path(path):
            problems += bool(problem)
            echo(f"damaged: {problem}" if problem else f"ok: {file}")
    if problems:
        raise ModelError(f"{problems} damaged {'file' if problems == 1 else 'files'}. Restore them or make them again.")


def check_path(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield every checked file below a path and its problem, "" if it is whole.

    Raises:
        DataError: If the path does not exist, or nothing below it has a checksum.
    """
    from winnow.integrity import SUMS, check_file, check_folder

    if not path.exists():
        raise DataError(f"{path}: does not exist. Check the path.")
    if path.is_file():
        yield path, _problem(partial(check_file, path))
        return
    folders = sorted(file.parent for file in path.rglob(SUMS))
    indexes = sorted(file.parent for file in path.rglob("index.json"))
    if not folders and not indexes:
        raise DataError(f"{path}: no file below it has a checksum; version 0.1.0 wrote none. Nothing was verified.")
    for folder in folders:
        yield from ((one.path, one.problem) for one in check_folder(folder))
    for folder in indexes:  # also finds what checksums cannot: counts and types that do not fit the manifest
        yield folder / "index.json", _problem(partial(_verify_index, folder))


def _verify_index(folder: Path) -> None:
    from winnow.index import Index

    Index.open(folder).verify()


def _problem(check: Callable[[], object]) -> str:
    """Return the message of the error that a check raises; "" without one."""
    try:
        check()
    except WinnowError as error:
        return str(error)
    return ""
