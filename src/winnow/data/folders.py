"""Image files below a folder: links are followed, each file counts once, and only regular files are listed."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from winnow.data.decoding import IMAGE_SUFFIXES
from winnow.data.image_set import first_few, natural_key
from winnow.errors import DataError


class FolderScan:
    """Scan of the folders of one image set."""

    def __init__(self) -> None:
        self._special: dict[str, None] = {}  # in the order of the scan
        self._has_links = False

    def entries(self, folder: Path) -> tuple[list[str], list[str]]:
        """Return the names of visible subfolders and image files, in natural order.

        FIFOs, devices, and sockets are not listed, because reading one may never end. Neither are links that lead back
        to themselves, which are neither files nor folders.

        Raises:
            DataError: If the folder cannot be listed.
        """
        folders: list[str] = []
        images: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    self._has_links |= entry.is_symlink()
                    if _is_endless(entry):
                        self._special[entry.path] = None
                    elif entry.is_dir():
                        folders.append(entry.name)
                    elif os.path.splitext(entry.name)[1].lower() not in IMAGE_SUFFIXES:
                        continue
                    elif entry.is_file() or not os.path.exists(entry.path):
                        images.append(entry.name)  # a dangling link is listed, and reported as unreadable later
                    else:
                        self._special[entry.path] = None
        except OSError as error:
            raise _cannot_be_listed(folder, error) from None
        return sorted(folders, key=natural_key), sorted(images, key=natural_key)

    def images_below(self, folder: Path) -> list[Path]:
        """Return the images at any depth, in natural order; a folder reached by two links is scanned once.

        Raises:
            DataError: If a folder cannot be listed.
        """
        found: list[Path] = []
        scanned: set[tuple[int, int]] = set()
        waiting = [folder]
        while waiting:
            current = waiting.pop()
            try:
                state = os.stat(current)
            except OSError as error:
                raise _cannot_be_listed(current, error) from None
            if (state.st_dev, state.st_ino) in scanned:
                continue
            scanned.add((state.st_dev, state.st_ino))
            folders, images = self.entries(current)
            found += [current / name for name in images]
            waiting += [current / name for name in reversed(folders)]
        return found

    def select_unique(self, root: Path, paths: Sequence[str], labels: Sequence[str]) -> tuple[list[bool], list[str]]:
        """Return whether each file is the first occurrence, and notes about what is skipped.

        Raises:
            DataError: If links give a file two labels.
        """
        notes = []
        if self._special:
            notes.append(
                f"{root}: FIFOs, devices, sockets, and endless links are skipped: {first_few(list(self._special))}"
            )
        if not self._has_links:
            return [True] * len(paths), notes
        is_first, repeated = select_unique(root, root, paths, labels)
        return is_first, notes + repeated


def select_unique(
    source: Path, root: Path, paths: Sequence[str], labels: Sequence[str]
) -> tuple[list[bool], list[str]]:
    """Return whether each file is the first occurrence, and notes about the others.

    Args:
        source: Folder or table that lists the files, for messages.
        root: Folder that the paths are relative to.
        paths: One path per image; several may name one file through links or `..`.
        labels: One class name per image.

    Raises:
        DataError: If a file has two labels.
    """
    real_folders: dict[str, str] = {}
    first: dict[str, int] = {}
    repeated: list[str] = []
    is_first = []
    for index, listed in enumerate(paths):
        earlier = first.setdefault(_real_path(os.path.join(root, listed), real_folders), index)
        if labels[earlier] != labels[index]:
            raise DataError(
                f"{source}: {paths[earlier]} (label {labels[earlier]}) and {listed} (label {labels[index]}) are one "
                "file, so it would have two labels. Remove one of them."
            )
        is_first.append(earlier == index)
        if earlier != index:
            repeated.append(listed)
    notes = [f"{source}: other paths of files already listed are skipped: {first_few(repeated)}"] if repeated else []
    return is_first, notes


def _real_path(path: str, real_folders: dict[str, str]) -> str:
    """Return a path without links; `real_folders` caches the folders, so each is resolved once."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    if folder not in real_folders:
        real_folders[folder] = os.path.realpath(folder)
    return os.path.join(real_folders[folder], name)


def _is_endless(entry: os.DirEntry[str]) -> bool:
    """Return whether a link leads back to itself."""
    try:
        entry.is_dir()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _cannot_be_listed(folder: Path, error: OSError) -> DataError:
    return DataError(f"{folder}: folder cannot be listed ({error.strerror}). Check its permissions.")
