"""`winnow search`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from winnow.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from winnow.index import Hits, Index


def search(
    folder: Path = typer.Argument(..., metavar="INDEX", help="A folder made by `winnow index`."),
    images: list[str] = typer.Argument(..., metavar="IMAGE...", help="Image files, or paths or names in the index."),
    k: int = typer.Option(10, "-k", min=1, help="How many neighbours of each."),
    rerank: str = typer.Option(None, "--rerank", help="A second look: aqe (query expansion) or reciprocal."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
    page: Path = typer.Option(None, "--html", help="Write a page with pictures to this file instead."),
) -> None:
    """Find the images of an index that are nearest to others."""
    from winnow.cli.console import echo, show
    from winnow.index import Index

    if as_json and page is not None:
        raise ConfigError("--json and --html exclude each other")
    index = Index.open(folder)
    queries, own = embed_queries(index, images)
    hits = find(index, queries, own, k, rerank)
    if as_json:
        print(json.dumps([{"query": name, "neighbours": listed(index, hits, row)} for row, name in enumerate(images)]))
    elif page is not None:
        from winnow.report.pages import write_search_page

        write_search_page(page, index, images, own, hits, note=f"re-ranked: {rerank}" if rerank else "")
        echo(f"page: {page}")
    else:
        for row, name in enumerate(images):
            show(table(name, listed(index, hits, row)))


def embed_queries(index: Index, images: list[str]) -> tuple[NDArray[np.float32], list[int | None]]:
    """Return the vectors of queries, and the entry that each query is itself, if any; files come before names."""
    import numpy as np

    own = [None if os.path.isfile(name) and index.find(name) is None else index.find(name) for name in images]
    for name, number in zip(images, own, strict=True):
        if number is None and not os.path.isfile(name):
            raise DataError(f"{name} is neither an image file nor in the index {index.path}")
    vectors = np.empty((len(images), index.manifest.dim), dtype=np.float32)
    files = [row for row, number in enumerate(own) if number is None]
    if files:
        vectors[files] = index.model.encode([images[row] for row in files])
    known = [row for row, number in enumerate(own) if number is not None]
    if known:
        vectors[known] = index.vectors([number for number in own if number is not None])
    return vectors, own


def find(index: Index, queries: NDArray[np.float32], own: list[int | None], k: int, rerank: str | None) -> Hits:
    """Search; a query that is in the index is not its own neighbour."""
    import numpy as np

    from winnow.index import Hits, reranked_search

    among = any(number is not None for number in own)
    found = index.search(queries, k + among) if rerank is None else reranked_search(index, queries, k + among, rerank)
    if not among:
        return found
    width = min(k, len(index) - 1)
    ids = np.full((len(own), width), -1, dtype=np.int64)
    distances = np.full((len(own), width), np.inf, dtype=np.float32)
    for row, number in enumerate(own):
        keep = np.flatnonzero(found.ids[row] != (-1 if number is None else number))[:width]
        ids[row, : len(keep)], distances[row, : len(keep)] = found.ids[row, keep], found.distances[row, keep]
    return Hits(ids, distances)


def listed(index: Index, hits: Hits, row: int) -> list[dict[str, object]]:
    """Return the neighbours of a query as plain values."""
    found: list[dict[str, object]] = []
    for number, distance in zip(hits.ids[row].tolist(), hits.distances[row].tolist(), strict=True):
        if number >= 0:
            entry = index.entry(number)
            found.append({"id": entry.id, "path": entry.path, "label": entry.label, "distance": distance})
    return found


def table(title: str, found: list[dict[str, object]]) -> object:
    """Return a table of neighbours, nearest first."""
    from rich.markup import escape
    from rich.table import Table

    labels = any(one["label"] is not None for one in found)
    shown = Table(title=escape(title), title_justify="left")
    shown.add_column("", justify="right")
    shown.add_column("distance", justify="right")
    if labels:
        shown.add_column("label")
    shown.add_column("image", overflow="fold")
    for rank, one in enumerate(found, 1):
        cells = [str(rank), f"{one['distance']:.4f}", *([escape(str(one["label"] or ""))] if labels else [])]
        shown.add_row(*cells, escape(str(one["path"])))
    return shown
