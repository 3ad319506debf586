"""A set put into a folder: downloaded, or taken from an archive or a folder that is already there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from winnow.data.sets.archive import copy_files, is_archive, unpack
from winnow.data.sets.base import Dataset, Shortfall
from winnow.data.sets.download import Progress, download
from winnow.errors import ConfigError, DataError
from winnow.files import make_folder


def get(
    dataset: Dataset,
    target: Path,
    *,
    source: Path | None = None,
    task: Callable[[str], Progress] = lambda title: lambda done, total: None,
) -> list[Shortfall]:
    """Put a set into a folder, which is either as it was or complete.

    Args:
        dataset: Which one.
        target: The folder; it must be empty or not exist.
        source: An archive, a folder of archives, or a folder with the set's files; None downloads it.
        task: Called with a title, returns what is told how it goes.

    Returns:
        What is missing; nothing for a whole set.

    Raises:
        DataError: when the set cannot be had or is another.
        OutputError: when it cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(
            f"{target} already holds something: `winnow datasets verify {dataset.name} {target}` looks at it; choose "
            "another folder with --to"
        )
    downloads = target.with_name(f"{target.name}.download")
    files = _downloaded(dataset, downloads, task) if source is None else _given(source)
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)
    try:
        for file in files:
            if file.is_dir():
                copy_files(file, partial, progress=task(f"copying {file.name}"))
            elif is_archive(file):
                unpack(file, partial, progress=task(f"unpacking {file.name}"))
            else:
                shutil.copyfile(file, partial / file.name)
        try:
            _, short = dataset.check(partial)  # refuses another set before anything is in place
        except DataError as error:  # about a folder that is gone when it is read
            raise DataError(str(error).replace(str(partial), str(source or target))) from None
        if target.exists():
            target.rmdir()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(downloads, ignore_errors=True)
    return short


def _downloaded(dataset: Dataset, folder: Path, task: Callable[[str], Progress]) -> list[Path]:
    if not dataset.sources:
        raise DataError(
            f"{dataset.title} has no public address: ask for it at {dataset.home}, then name the archive or folder "
            "with --from"
        )
    make_folder(folder)
    return [download(source, folder, task(source.file)) for source in dataset.sources]


def _given(source: Path) -> list[Path]:
    """Return what to unpack or copy: the archives of a folder that holds some, else the folder or file itself."""
    if not source.exists():
        raise DataError(f"there is no file or folder {source}")
    if source.is_file() and not is_archive(source):
        raise DataError(f"{source} is no archive (.zip, .tar, .tgz, ...): name one, or a folder")
    archives = sorted(child for child in source.iterdir() if is_archive(child)) if source.is_dir() else []
    if not archives:
        return [source]
    loose = [child for child in source.iterdir() if child.suffix in (".mat", ".txt") and child.is_file()]
    return [*archives, *sorted(loose)]
