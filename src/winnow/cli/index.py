"""`winnow index` and `winnow search`."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from winnow.cli.models import BATCH_SIZE, DATA, DEVICE, RUN
from winnow.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

    from winnow.index import Hits, Index
    from winnow.models import Embedder

_storage = partial(typer.Option, rich_help_panel="Storage")
_update = partial(typer.Option, rich_help_panel="Update")
_output = partial(typer.Option, rich_help_panel="Output")


def index(
    run: Path = RUN,
    data: str = DATA,
    out_folder: Path = _output(..., "-o", "--out", metavar="DIR", help="Index folder; an existing one is updated"),
    kind: str | None = _storage(
        None, "--index-type", "--kind", metavar="TYPE",
        help="exact, or hnsw or ivfpq for millions of images [default: exact]",
    ),
    fp16: bool = _storage(False, "--fp16", "--half", help="Store vectors in float16"),
    prune: bool = _update(False, "--prune", help="Also remove entries that DATA no longer contains"),
    remove: bool = _update(False, "--remove", help="Remove the images of DATA instead of adding them"),
    batch_size: int = BATCH_SIZE,
    device: str = DEVICE,
) -> None:  # fmt: skip
    """Build or update a search index.

    Reads RUN and DATA. Writes vectors, thumbnails, and the model to --out. A rerun embeds only new and changed files.
    Images need no classes. RUN may be `pretrained`: the network without training.

    Examples:
        winnow index runs/first photos -o photos.index
        winnow index pretrained photos -o photos.index
        winnow index runs/first photos -o photos.index --prune
        winnow index runs/first photos -o photos.index --index-type hnsw --fp16
    """
    from winnow.cli.console import WorkBars, echo
    from winnow.cli.models import load_model, print_notes
    from winnow.data import read_collection
    from winnow.index import Changes, Index
    from winnow.index.embedding import full_name
    from winnow.index.storage import MANIFEST

    exists = (out_folder / MANIFEST).is_file()
    if remove and (prune or not exists):
        reason = "cannot be combined with --prune" if prune else f"{out_folder} is not an index"
        raise ConfigError(f"--remove: {reason}. Name an existing index, and pass one of both options.")
    images = read_collection(data)
    print_notes(images)
    model = load_model(run, device)
    with WorkBars() as work:
        if exists:
            found = open_index(out_folder, model, kind, fp16)
            if remove:
                changes = found.remove([full_name(images, number) for number in range(len(images))])
            else:
                changes = found.add(images, prune=prune, batch_size=batch_size, progress=work.progress)
            if kind is not None and kind != found.kind:
                found.convert(kind)
        else:
            found = Index.build(
                model, images, out_folder, kind=kind or "exact", dtype="float16" if fp16 else "float32",
                batch_size=batch_size, progress=work.progress,
            )  # fmt: skip
            changes = found.built or Changes()
    for path, reason in changes.skipped:
        echo(f"skipped {path}: {reason}")
    echo(f"{out_folder}: {len(found)} images; {changes.added} added, {changes.updated} changed, {changes.removed} "
         f"removed, {changes.unchanged} unchanged ({changes.embedded} embedded)")  # fmt: skip
    if found.manifest.recall is not None:
        echo(f"{found.kind}: recall {100 * found.manifest.recall:.1f}% of the 10 exact nearest neighbors")
    echo(f"next: winnow serve {quote(str(out_folder))}")


def open_index(folder: Path, model: Embedder, kind: str | None, fp16: bool) -> Index:
    """Open an index for an update, and check that model and options fit it."""
    from winnow.index import Index
    from winnow.index.finders import check_kind

    found = Index.open(folder, device=model.device)
    found.check_model(model)
    if kind is not None:
        check_kind(kind)
    if fp16 and found.manifest.dtype != "float16":
        raise ConfigError(f"--fp16: {folder} stores float32. Remove the option, or build a new index.")
    return found


def search(
    folder: Path = typer.Argument(..., metavar="INDEX", help="Index folder, written by `winnow index`"),
    images: list[str] = typer.Argument(..., metavar="IMAGE...", help="Image files, or names of images in the index"),
    k: int = typer.Option(10, "-k", min=1, help="Neighbors of each image"),
    rerank: str | None = typer.Option(
        None, "--rerank", metavar="NAME", help="Re-rank: aqe (query expansion) or reciprocal (k-reciprocal)"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON"),
    page: Path | None = typer.Option(None, "--html", metavar="FILE", help="Write a page with thumbnails"),
) -> None:
    """Find the nearest images in an index.

    An image of the index is not its own neighbor.

    Examples:
        winnow search photos.index new.jpg
        winnow search photos.index new.jpg -k 50 --rerank reciprocal --html found.html
    """
    from winnow.cli.console import echo, show
    from winnow.index import Index

    if as_json and page is not None:
        raise ConfigError("--json: cannot be combined with --html. Pass one of both.")
    index = Index.open(folder)
    queries, own = embed_queries(index, images)
    hits = find_neighbors(index, queries, own, k, rerank)
    if as_json:
        found = [{"query": name, "neighbours": neighbor_entries(index, hits, row)} for row, name in enumerate(images)]
        print(json.dumps(found))  # the key has this spelling since version 0.1.0, as in the HTTP API
    elif page is not None:
        from winnow.report.pages import write_search_page

        write_search_page(page, index, images, own, hits, note=f"re-ranked: {rerank}" if rerank else "")
        echo(f"page: {page}")
    else:
        for row, name in enumerate(images):
            show(neighbor_table(name, neighbor_entries(index, hits, row)))


def embed_queries(index: Index, images: list[str]) -> tuple[NDArray[np.float32], list[int | None]]:
    """Return the vector of each query, and its index entry or None.

    Files take precedence over names of entries.

    Raises:
        DataError: If a query is neither a file nor in the index.
    """
    import numpy as np

    own = [None if os.path.isfile(name) and index.find(name) is None else index.find(name) for name in images]
    for name, number in zip(images, own, strict=True):
        if number is None and not os.path.isfile(name):
            raise DataError(f"{name}: neither an image file nor in the index {index.path}. Name one of these.")
    vectors = np.empty((len(images), index.manifest.dim), dtype=np.float32)
    files = [row for row, number in enumerate(own) if number is None]
    if files:
        vectors[files] = index.model.encode([images[row] for row in files])
    known = [row for row, number in enumerate(own) if number is not None]
    if known:
        vectors[known] = index.vectors([number for number in own if number is not None])
    return vectors, own


def find_neighbors(
    index: Index, queries: NDArray[np.float32], own: list[int | None], k: int, rerank: str | None
) -> Hits:
    """Return the k nearest entries of each query, without the query's own entry."""
    import numpy as np

    from winnow.index import Hits, reranked_search

    extra = any(number is not None for number in own)
    found = index.search(queries, k + extra) if rerank is None else reranked_search(index, queries, k + extra, rerank)
    if not extra:
        return found
    width = min(k, len(index) - 1)
    ids = np.full((len(own), width), -1, dtype=np.int64)
    distances = np.full((len(own), width), np.inf, dtype=np.float32)
    for row, number in enumerate(own):
        keep = np.flatnonzero(found.ids[row] != (-1 if number is None else number))[:width]
        ids[row, : len(keep)], distances[row, : len(keep)] = found.ids[row, keep], found.distances[row, keep]
    return Hits(ids, distances)


def neighbor_entries(index: Index, hits: Hits, row: int) -> list[dict[str, object]]:
    """Return the neighbors of a query as plain values, nearest first."""
    found: list[dict[str, object]] = []
    for number, distance in zip(hits.ids[row].tolist(), hits.distances[row].tolist(), strict=True):
        if number >= 0:
            entry = index.entry(number)
            found.append({"id": entry.id, "path": entry.path, "label": entry.label, "distance": distance})
    return found


def neighbor_table(title: str, found: list[dict[str, object]]) -> Table:
    """Return a table of neighbors, nearest first."""
    from rich.markup import escape
    from rich.table import Table

    has_labels = any(one["label"] is not None for one in found)
    table = Table(title=escape(title), title_justify="left")
    table.add_column("rank", justify="right")
    table.add_column("distance", justify="right")
    if has_labels:
        table.add_column("label")
    table.add_column("image", overflow="fold")
    for rank, one in enumerate(found, 1):
        label = [escape(str(one["label"] or ""))] if has_labels else []
        table.add_row(str(rank), f"{one['distance']:.4f}", *label, escape(str(one["path"])))
    return table
