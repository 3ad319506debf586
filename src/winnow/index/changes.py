"""What an index comes to hold, given what it holds and what it is shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from winnow.index.generation import Row


@dataclass
class Changes:
    """What became of an index: numbers of entries, and (path, reason) of the images that could not be read."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    unchanged: int = 0
    embedded: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Shown:
    """An image an index is shown: its path, the hash of its content and its class, if known."""

    path: str
    hash: str
    label: str | None


def plan(
    known: Mapping[str, Row], shown: Sequence[Shown], unreadable: Collection[str], *, prune: bool, next_id: int
) -> tuple[list[Row], Changes, int]:
    """Decide which entries there will be.

    A path keeps its id, also when its content changes. Content that is known, under whatever path, keeps its vector.
    Of a path that is shown twice the first counts. An image that was readable once and is not now stays as it was.

    Args:
        known: The entries by path.
        shown: The images, in order.
        unreadable: Hashes of those that cannot be read.
        prune: Drop the entries that are not shown.
        next_id: The first id that was never used.

    Returns:
        The rows to write, what has changed, and the first id that is then unused.
    """
    by_hash = {row.hash: row for row in known.values()}
    rows: dict[str, Row] = {} if prune else dict(known)
    changes, seen = Changes(), set[str]()
    for image in shown:
        if image.path in seen:
            continue
        seen.add(image.path)
        old = known.get(image.path)
        if image.hash in unreadable:
            if old is not None:
                rows[image.path] = old
            continue
        same = by_hash.get(image.hash)
        number = next_id if old is None else old.id
        rows[image.path] = Row(number, image.path, image.label, image.hash, None if same is None else same.id)
        if old is None:
            next_id += 1
            changes.added += 1
        elif (old.hash, old.label) == (image.hash, image.label):
            changes.unchanged += 1
        else:
            changes.updated += 1
    changes.removed = len(known.keys() - rows.keys())
    return list(rows.values()), changes, next_id
