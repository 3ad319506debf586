"""Time of index searches: by images, and by vectors, exact and approximate."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.record import Benchmark, Measurement
from winnow.errors import DataError, MissingExtraError
from winnow.index import Index
from winnow.index.finders import KINDS, Finder, Positions, build_finder, check_kind, open_finder, rank_exactly
from winnow.profiling import Work, measure_all

_EXACT = "exact"
_JITTER = 0.3


def run_index(
    path: str | Path,
    *,
    count: int = 100_000,
    queries: int = 200,
    images: int = 64,
    k: int = 10,
    repeats: int = 3,
    note: Callable[[str], None] = lambda text: None,
) -> Benchmark:
    """Time searches in an index, and in many vectors jittered from its own.

    Args:
        path: Folder of the index.
        count: Number of jittered vectors.
        queries: Number of searches by vectors that are timed together.
        images: Number of searches by images that are timed together.
        k: Number of neighbors.
        repeats: Runs of every method.
        note: Called with progress messages.

    Raises:
        DataError: for an index without images.
    """
    index = Index.open(path)
    if len(index) == 0:
        raise DataError(f"{path}: the index is empty. Add images first.")
    note("searching by images")
    rows = _search_images(index, min(images, len(index)), k, repeats)
    notes: list[str] = []
    vectors = jitter(index.vectors(index.ids), count, seed=0)
    queried = jitter(index.vectors(index.ids), queries, seed=1)
    finders: dict[str, Finder] = {}
    build_seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            try:
                check_kind(kind, count)
            except MissingExtraError as error:
                notes.append(str(error))
                continue
            note(f"building {kind} of {count:,} vectors")
            started = time.perf_counter()
            build_finder(kind, vectors, Path(folder))
            build_seconds[kind] = time.perf_counter() - started
            finders[kind] = open_finder(kind, vectors, Path(folder))
            _find(finders[kind], vectors, queried[:1], k)
    note("searching by vectors")
    rows += _search_vectors(finders, build_seconds, vectors, queried, k, repeats)
    return Benchmark(
        name=f"index-{Path(path).stem}-{count}-cpu",  # one file per dataset and count
        title="Searches in an index (cpu)",
        reference=_EXACT,
        settings={"device": "cpu", "count": count, "queries": queries, "images": images, "k": k, "repeats": repeats},
        rows=rows,
        notes=notes,
    )


def jitter(vectors: NDArray[np.float32], count: int, *, seed: int) -> NDArray[np.float32]:
    """Return given unit vectors, each moved by about 0.3 in a random direction."""
    rng = np.random.default_rng(seed)
    chosen = vectors[rng.integers(0, len(vectors), count)]
    chosen = chosen + _JITTER / vectors.shape[1] ** 0.5 * rng.standard_normal(chosen.shape, dtype=np.float32)
    result: NDArray[np.float32] = chosen / np.linalg.norm(chosen, axis=1, keepdims=True)
    return result


def _search_images(index: Index, count: int, k: int, repeats: int) -> list[Measurement]:
    """Time one search of all decoded images, and a plain loop over the images."""
    ids = index.ids[np.linspace(0, len(index) - 1, count).astype(np.int64)]
    images = [Image.open(io.BytesIO(index.entry(int(number)).thumbnail)).convert("RGB") for number in ids]
    stored = torch.from_numpy(index.vectors(index.ids))

    def loop() -> None:
        for image in images:
            torch.cdist(torch.from_numpy(index.model.encode(image)), stored).topk(min(k, len(index)), largest=False)

    works: dict[str, Work] = {_EXACT: partial(index.search, images, k), "loop of model calls": loop}
    timings = measure_all(works, device=torch.device("cpu"), repeats=repeats, warmup=1)
    case = f"{count} images in {len(index):,}"
    return [
        Measurement(case, name, timing, facts={"queries/s": count / timing.median}) for name, timing in timings.items()
    ]


def _find(finder: Finder, vectors: NDArray[np.float32], queries: NDArray[np.float32], k: int) -> Positions:
    return rank_exactly(vectors, queries, finder.candidates(queries, k), k)[1]


def _search_vectors(
    finders: dict[str, Finder],
    build_seconds: dict[str, float],
    vectors: NDArray[np.float32],
    queries: NDArray[np.float32],
    k: int,
    repeats: int,
) -> list[Measurement]:
    works = {kind: partial(_find, finder, vectors, queries, k) for kind, finder in finders.items()}
    timings = measure_all(works, device=torch.device("cpu"), repeats=repeats, warmup=0)
    found = {kind: work().tolist() for kind, work in works.items()}
    case = f"{len(queries)} vectors in {len(vectors):,} x {vectors.shape[1]}"
    rows = []
    for kind, timing in timings.items():
        hits = [len(set(ours) & set(exact)) for ours, exact in zip(found[kind], found[_EXACT], strict=True)]
        facts = {"queries/s": len(queries) / timing.median, f"recall@{k}": sum(hits) / (k * len(queries))}
        rows.append(Measurement(case, kind, timing, facts={**facts, "build s": build_seconds[kind]}))
    return rows
