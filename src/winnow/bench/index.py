"""How fast an index is searched: by images against a loop of model calls, and by vectors, exactly against nearly so."""

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

from winnow.bench.record import Bench, Row
from winnow.bench.timing import measure_all
from winnow.errors import DataError, MissingExtraError
from winnow.index import Index
from winnow.index.finders import KINDS, Finder, Positions, build_finder, check_kind, open_finder, rank_exactly

_AGAINST = "exact"
_JITTER = 0.3


def run_index(
    path: str | Path, *, count: int = 100_000, queries: int = 200, images: int = 64, k: int = 10, repeats: int = 3,
    note: Callable[[str], None] = lambda text: None,
) -> Bench:  # fmt: skip
    """Time searches in an index, and in many vectors made of its own by jittering them.

    Args:
        path: The index.
        count: How many vectors to make.
        queries: Searches timed together, by vectors.
        images: Searches timed together, by images.
        k: Neighbours asked for.
        repeats: Runs of every rival.
        note: Is told what is being done.

    Raises:
        DataError: for an index without images.
    """
    index = Index.open(path)
    if len(index) == 0:
        raise DataError(f"{path} is empty: add images first")
    note("searching by images")
    rows = _by_images(index, min(images, len(index)), k, repeats)
    notes: list[str] = []
    vectors = jittered(index.vectors(index.ids), count, seed=0)
    asked = jittered(index.vectors(index.ids), queries, seed=1)
    finders: dict[str, Finder] = {}
    seconds: dict[str, float] = {}
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
            seconds[kind] = time.perf_counter() - started
            finders[kind] = open_finder(kind, vectors, Path(folder))
            _nearest(finders[kind], vectors, asked[:1], k)
    note("searching by vectors")
    rows += _by_vectors(finders, seconds, vectors, asked, k, repeats)
    return Bench(
        name=f"index-{Path(path).stem}-{count}-cpu",  # a file for each set and number
        title="Searches in an index (cpu)",
        against=_AGAINST,
        settings={"device": "cpu", "count": count, "queries": queries, "images": images, "k": k, "repeats": repeats},
        rows=rows,
        notes=notes,
    )


def jittered(vectors: NDArray[np.float32], count: int, *, seed: int) -> NDArray[np.float32]:
    """Return unit vectors (count, D), each one of the given moved by about 0.3 in a random direction."""
    rng = np.random.default_rng(seed)
    chosen = vectors[rng.integers(0, len(vectors), count)]
    chosen = chosen + _JITTER / vectors.shape[1] ** 0.5 * rng.standard_normal(chosen.shape, dtype=np.float32)
    result: NDArray[np.float32] = chosen / np.linalg.norm(chosen, axis=1, keepdims=True)
    return result


def _by_images(index: Index, images: int, k: int, repeats: int) -> list[Row]:
    """Search by decoded images: all at once, and by a plain loop that calls the model and sorts for each."""
    numbers = index.ids[np.linspace(0, len(index) - 1, images).astype(np.int64)]
    pictures = [Image.open(io.BytesIO(index.entry(int(number)).thumbnail)).convert("RGB") for number in numbers]
    stored = torch.from_numpy(index.vectors(index.ids))

    def loop() -> None:
        for picture in pictures:
            torch.cdist(torch.from_numpy(index.model.encode(picture)), stored).topk(min(k, len(index)), largest=False)

    timings = measure_all(
        {_AGAINST: partial(index.search, pictures, k), "loop of model calls": loop},
        device=torch.device("cpu"), repeats=repeats, warmup=1,
    )  # fmt: skip
    case = f"{images} images in {len(index):,}"
    return [Row(case, name, timing, facts={"queries/s": images / timing.median}) for name, timing in timings.items()]


def _nearest(finder: Finder, vectors: NDArray[np.float32], asked: NDArray[np.float32], k: int) -> Positions:
    return rank_exactly(vectors, asked, finder.candidates(asked, k), k)[1]


def _by_vectors(
    finders: dict[str, Finder], seconds: dict[str, float], vectors: NDArray[np.float32], asked: NDArray[np.float32],
    k: int, repeats: int,
) -> list[Row]:  # fmt: skip
    timings = measure_all(
        {kind: partial(_nearest, finder, vectors, asked, k) for kind, finder in finders.items()},
        device=torch.device("cpu"), repeats=repeats, warmup=0,
    )  # fmt: skip
    found = {kind: _nearest(finder, vectors, asked, k) for kind, finder in finders.items()}
    rows = []
    for kind, timing in timings.items():
        same = [
            len(set(mine) & set(true))
            for mine, true in zip(found[kind].tolist(), found[_AGAINST].tolist(), strict=True)
        ]
        facts = {"queries/s": len(asked) / timing.median, f"recall@{k}": sum(same) / (k * len(asked))}
        facts["build s"] = seconds[kind]
        rows.append(Row(f"{len(asked)} vectors in {len(vectors):,} x {vectors.shape[1]}", kind, timing, facts=facts))
    return rows
