"""Changing an index: a new generation is written beside the old one, then the manifest is switched to it.

All of it happens under the lock of the index, which the caller holds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from winnow.data import UNLABELLED, FileSet, ImageSet, read_collection
from winnow.errors import DataError
from winnow.index.approximate import build_finder, check_kind, measure_recall, open_finder
from winnow.index.changes import Changes, Shown, plan
from winnow.index.embedding import embed_new
from winnow.index.generation import Generation, Row, write_generation
from winnow.index.hashing import Task, content_hashes, full_name, label
from winnow.index.journal import Journal
from winnow.index.manifest import Manifest
from winnow.index.opened import Opened
from winnow.models import Embedder

Images = ImageSet | str | PathLike[str] | Sequence[str | PathLike[str]]
_GENERATION = "generation-"


def bring_in(
    path: Path, manifest: Manifest, before: Opened | None, model: Embedder, images: ImageSet, *,
    prune: bool, batch_size: int, task: Task,
) -> tuple[Opened | None, Changes]:  # fmt: skip
    """Embed what is new among images, and write an index with them where anything changed.

    Args:
        path: Folder of the index.
        manifest: What it holds, but for what changes here.
        before: Its state so far; None for a new index.
        model: What makes vectors of images.
        images: What is to be in it.
        prune: Also take out what is not among them.
        batch_size: Images embedded at a time.
        task: Shows progress.

    Returns:
        The new state, or the one before, and what was done.
    """
    hashes = content_hashes(images, task("reading"))
    shown = [Shown(full_name(images, i), key, label(images, i)) for i, key in enumerate(hashes)]
    known = {} if before is None else before.rows()
    have = {row.hash for row in known.values()}
    journal = Journal(path / ".journal.sqlite", manifest.model)
    try:
        made = embed_new(model, images, hashes, have, journal, batch_size, thumbnails=True, show=task("embedding"))
        rows, changes, next_id = plan(known, shown, made.failed, prune=prune, next_id=manifest.next_id)
        changes.embedded = made.count
        changes.skipped = [(shown[index].path, reason) for index, reason in made.reasons]
        if not rows and not known:
            first = f"; the first is {changes.skipped[0][0]} ({changes.skipped[0][1]})" * bool(made.reasons)
            raise DataError(f"none of the {len(images)} images can be read{first}")
        after = before
        if before is None or changes.added or changes.updated or changes.removed:
            after = write(path, replace(manifest, next_id=next_id), before, rows, journal, task)
    except BaseException:
        journal.close()
        raise
    journal.delete()
    return after, changes


def write(
    path: Path, manifest: Manifest, before: Opened | None, rows: Sequence[Row], journal: Journal | None, task: Task
) -> Opened:
    """Write a new generation, switch to it and remove the others."""
    check_kind(manifest.kind, len(rows))
    numbers = [int(folder.name.removeprefix(_GENERATION)) for folder in generations(path)]
    name = f"{_GENERATION}{max(numbers, default=0) + 1:06d}"
    folder = path / name
    old = None if before is None else before.generation
    write_generation(folder, rows, old, journal, manifest.dim, manifest.dtype, task("writing"))
    generation = Generation(folder)
    build_finder(manifest.kind, generation.vectors, folder)
    finder = open_finder(manifest.kind, generation.vectors, folder)
    recall = None if manifest.kind == "exact" else measure_recall(finder, generation.vectors)
    manifest = replace(manifest, generation=name, count=len(rows), recall=recall)
    manifest.write(path)
    for other in generations(path):
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)  # a reader keeps what it has open
    return Opened(manifest, generation, finder)


def generations(path: Path) -> list[Path]:
    """Return the folders of all generations, of which one is current and others are left of broken changes."""
    return [one for one in path.glob(f"{_GENERATION}*") if one.name.removeprefix(_GENERATION).isdigit()]


def as_image_set(images: Images) -> ImageSet:
    """Return images given as a set, as a folder or CSV file, or as paths of image files."""
    if isinstance(images, ImageSet):
        return images
    if isinstance(images, str | PathLike):
        return read_collection(Path(images))
    paths = [os.fspath(path) for path in images]
    return FileSet.of_names(Path(), paths, [UNLABELLED] * len(paths))
