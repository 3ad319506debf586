"""`winnow bench`: one command for each benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from winnow.bench import Bench

HELP = "Time winnow against rivals in the same run, and keep the figures as JSON."

_OUT = typer.Option(Path("results/bench"), "-o", "--out", help="Folder for the JSON file.")
_DEVICE = typer.Option("auto", "--device", help="auto, cpu or cuda.")


def evaluate(
    out_folder: Path = _OUT,
    device: str = _DEVICE,
    repeats: int = typer.Option(3, "--repeats", min=1, help="Runs of every rival; the table shows the median."),
    count: int = typer.Option(60502, "--count", min=10, help="Embeddings, in classes of about 5."),
    dim: list[int] = typer.Option([128, 512], "--dim", min=1, help="Dimensions; may be given several times."),
    gallery: int = typer.Option(0, "--gallery", min=0, help="Also search --count queries in so many references."),
    deep: int = typer.Option(20000, "--deep", min=0, help="Also evaluate so many embeddings in 20 large classes."),
) -> None:
    """Evaluation of a retrieval, against pytorch-metric-learning with faiss and plain torch."""
    from winnow.bench.evaluate import run_evaluate

    _finish(
        run_evaluate(device=device, count=count, widths=dim, gallery=gallery, deep=deep, repeats=repeats, note=_tell),
        out_folder,
    )


def train(
    out_folder: Path = _OUT,
    device: str = _DEVICE,
    repeats: int = typer.Option(5, "--repeats", min=1, help="Runs of every rival; the table shows the median."),
    steps: int = typer.Option(20, "--steps", min=1, help="Training steps in one run."),
    batch: list[int] = typer.Option([32, 112], "--batch", min=8, max=112, help="Batch sizes, multiples of 4."),
    pack: list[int] = typer.Option([1, 2, 4, 8], "--pack", min=1, help="Runs side by side, at the first batch size."),
    precision: str = typer.Option("32-true", "--precision", help="As train.precision."),
    compiled: bool = typer.Option(False, "--compile", help="Also with a compiled backbone; takes minutes."),
    backbone: str = typer.Option("resnet50", "--backbone", help="The network, with random weights."),
    crop: int = typer.Option(227, "--crop", min=16, help="Pixels of the crops."),
) -> None:
    """Training steps of a whole network, against the bare backbone's and the eager loop's, alone and side by side."""
    from winnow.bench.train import run_train

    _finish(
        run_train(
            device=device, batches=batch, packs=pack, compiled=compiled, precision=precision, backbone=backbone,
            crop=crop, steps=steps, repeats=repeats, note=_tell,
        ),
        out_folder,
    )  # fmt: skip


def pooling(
    out_folder: Path = _OUT,
    device: str = _DEVICE,
    repeats: int = typer.Option(15, "--repeats", min=1, help="Runs of every rival; the table shows the median."),
    batch: list[int] = typer.Option([], "--batch", min=1, help="Images at once; default 32, and 128, 512 on a GPU."),
    size: list[str] = typer.Option([], "--size", help="Features, width, prototypes, such as 49x128x64; several times."),
) -> None:
    """Pooling forward and backward, against average pooling, the documents' 100-step iteration and POT."""
    from winnow.bench.pooling import run_pooling
    from winnow.bench.pooling_task import parse_size

    sizes = [parse_size(one) for one in size]
    _finish(run_pooling(device=device, batches=batch, sizes=sizes, repeats=repeats, note=_tell), out_folder)


def losses(
    out_folder: Path = _OUT,
    device: str = _DEVICE,
    repeats: int = typer.Option(10, "--repeats", min=1, help="Runs of every rival; the table shows the median."),
    classes: int = typer.Option(11318, "--classes", min=2, help="Classes, each with a proxy."),
    dim: int = typer.Option(128, "--dim", min=1, help="Dimensions of an embedding."),
    batch: int = typer.Option(128, "--batch", min=1, help="Queries."),
) -> None:
    """Losses and centre regularisers forward and backward with very many classes, against pytorch-metric-learning."""
    from winnow.bench.losses import run_losses

    found = run_losses(
        device=device, classes=classes, width=dim, batch=min(batch, classes), repeats=repeats, note=_tell
    )
    _finish(found, out_folder)


def serve(
    index: Path = typer.Argument(..., metavar="INDEX", help="An index made by `winnow index`."),
    out_folder: Path = _OUT,
    clients: list[int] = typer.Option(
        [1, 16], "--clients", min=1, help="Clients at a time; may be given several times."
    ),
    seconds: float = typer.Option(60, "--seconds", min=0.5, help="How long each number of clients searches."),
    k: int = typer.Option(10, "--k", min=1, max=100, help="Neighbours asked for."),
    other: Path = typer.Option(None, "--other", help="Also by another version of winnow: its source folder."),
) -> None:
    """Searches over HTTP by many clients, against a plain loop of model calls; any failed request ends it."""
    from winnow.bench.serve import run_serve

    _finish(run_serve(index, clients=clients, seconds=seconds, k=k, other=other, note=_tell), out_folder)


def index(
    folder: Path = typer.Argument(..., metavar="INDEX", help="An index made by `winnow index`."),
    out_folder: Path = _OUT,
    repeats: int = typer.Option(3, "--repeats", min=1, help="Runs of every rival; the table shows the median."),
    count: int = typer.Option(100_000, "--count", min=10_000, help="Vectors, made by jittering the index's own."),
    queries: int = typer.Option(200, "--queries", min=1, help="Searches timed together, by vectors."),
    images: int = typer.Option(64, "--images", min=1, help="Searches timed together, by images."),
) -> None:
    """Searches by images, against a loop of model calls; and by vectors, exact against HNSW and IVF-PQ."""
    from winnow.bench.index import run_index

    _finish(run_index(folder, count=count, queries=queries, images=images, repeats=repeats, note=_tell), out_folder)


COMMANDS = (evaluate, index, losses, pooling, serve, train)


def _tell(text: str) -> None:
    from winnow.cli.console import err

    err.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def _finish(bench: Bench, folder: Path) -> None:
    """Print the table and keep the file."""
    from winnow.bench import bench_table, save_bench
    from winnow.cli.console import echo, show

    show(bench_table(bench))
    for text in bench.notes:
        echo(f"note: {text}")
    echo(f"figures: {save_bench(bench, folder)}")
