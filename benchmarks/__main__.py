"""`python -m benchmarks NAME`: one command for each benchmark."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from winnow.cli.help import Command, Group
from winnow.errors import ConfigError, WinnowError

if TYPE_CHECKING:
    from benchmarks.record import Benchmark

app = typer.Typer(
    name="python -m benchmarks",
    help="Time winnow against baselines in the same process, and save the measurements as JSON.",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

QUICK: Mapping[str, Mapping[str, Any]] = {
    "evaluate": {"count": 5000, "dim": [128], "deep": 2000, "repeats": 1},
    "index": {"count": 10_000, "queries": 20, "images": 4, "repeats": 1},
    "losses": {"classes": 2000, "repeats": 2},
    "pooling": {"repeats": 3},
    "serve": {"clients": [1, 4], "seconds": 3},
    "train": {"batch": [8], "jobs": [1, 2], "steps": 2, "repeats": 2, "backbone": "resnet20", "crop": 32},
}
"""Defaults of each benchmark with `--quick`."""
EMOJI = 64
"""Images of the index that `--quick` makes."""
QUICK_OUT = "runs/bench"
"""Folder of quick results, which replace no published ones."""


def _use_quick_defaults(context: typer.Context, _: typer.CallbackParam, quick: bool) -> bool:
    """Replace the defaults of a benchmark; options that are given stay."""
    if quick:
        assert context.info_name is not None, "a command has a name"
        context.default_map = {"out_folder": QUICK_OUT, **QUICK[context.info_name]}
    return quick


_OUT = typer.Option(Path("results/bench"), "-o", "--out", metavar="DIR", help="Folder of the JSON file")
_DEVICE = typer.Option("auto", "--device", help="auto, cpu, or cuda")
_INDEX = typer.Argument(None, metavar="INDEX", help="Index written by `winnow index`; --quick makes one of emoji")
_QUICK = typer.Option(
    False, "--quick", is_eager=True, callback=_use_quick_defaults,
    help="Small sizes: under a minute on two CPU cores; saved in runs/bench",
)  # fmt: skip


def _repeats(default: int) -> int:
    option: int = typer.Option(default, "--repeats", min=1, help="Runs of every method; the table shows the median")
    return option


@app.command(cls=Command)
def evaluate(
    out_folder: Path = _OUT,
    quick: bool = _QUICK,
    device: str = _DEVICE,
    repeats: int = _repeats(3),
    count: int = typer.Option(60502, "--count", min=10, help="Number of embeddings, in classes of about 5"),
    dim: list[int] = typer.Option([128, 512], "--dim", min=1, help="Dimension; repeat for several"),
    gallery: int = typer.Option(0, "--gallery", min=0, help="Adds --count queries in this many references"),
    deep: int = typer.Option(20000, "--deep", min=0, help="Adds this many embeddings in 20 large classes"),
) -> None:
    """Retrieval evaluation, against pytorch-metric-learning and plain torch."""
    from benchmarks.evaluate import run_evaluate

    _finish(
        run_evaluate(device=device, count=count, dims=dim, gallery=gallery, deep=deep, repeats=repeats, note=_note),
        out_folder,
    )


@app.command(cls=Command)
def index(
    folder: Path = _INDEX,
    out_folder: Path = _OUT,
    quick: bool = _QUICK,
    repeats: int = _repeats(3),
    count: int = typer.Option(100_000, "--count", min=10_000, help="Vectors, jittered from vectors of the index"),
    queries: int = typer.Option(200, "--queries", min=1, help="Searches by vectors that are timed together"),
    images: int = typer.Option(64, "--images", min=1, help="Searches by images that are timed together"),
) -> None:
    """Index search, exact against HNSW, IVF-PQ, and a loop of model calls."""
    from benchmarks.index import run_index

    with _index_or_emoji(folder, quick) as path:
        found = run_index(path, count=count, queries=queries, images=images, repeats=repeats, note=_note)
    _finish(found, out_folder)


@app.command(cls=Command)
def losses(
    out_folder: Path = _OUT,
    quick: bool = _QUICK,
    device: str = _DEVICE,
    repeats: int = _repeats(10),
    classes: int = typer.Option(11318, "--classes", min=2, help="Number of classes, each with a proxy"),
    dim: int = typer.Option(128, "--dim", min=1, help="Dimension of an embedding"),
    batch: int = typer.Option(128, "--batch", min=1, help="Number of queries"),
) -> None:
    """Losses with very many classes, against pytorch-metric-learning."""
    from benchmarks.losses import run_losses

    batch = min(batch, classes)
    _finish(
        run_losses(device=device, classes=classes, dim=dim, batch=batch, repeats=repeats, note=_note), out_folder
    )  # fmt: skip


@app.command(cls=Command)
def pooling(
    out_folder: Path = _OUT,
    quick: bool = _QUICK,
    device: str = _DEVICE,
    repeats: int = _repeats(15),
    batch: list[int] = typer.Option([], "--batch", min=1, help="Images per batch [default: 32; on a GPU 32, 128, 512]"),
    size: list[str] = typer.Option([], "--size", help="Features x dim x prototypes, as 49x128x64; repeatable"),
) -> None:
    """GSP against average pooling, the 100-step iteration of [GSP], and POT."""
    from benchmarks.pooling import parse_size, run_pooling

    sizes = [parse_size(one) for one in size]
    _finish(run_pooling(device=device, batches=batch, sizes=sizes, repeats=repeats, note=_note), out_folder)


@app.command(cls=Command)
def serve(
    folder: Path = _INDEX,
    out_folder: Path = _OUT,
    quick: bool = _QUICK,
    clients: list[int] = typer.Option([1, 16], "--clients", min=1, help="Concurrent clients; repeat for several"),
    seconds: float = typer.Option(60, "--seconds", min=0.5, help="Duration for each number of clients"),
    k: int = typer.Option(10, "--k", min=1, max=100, help="Number of neighbors"),
    other: Path = typer.Option(None, "--other", help="Source folder of another version of winnow to compare"),
) -> None:
    """Search service under load, against a plain loop of model calls."""
    from benchmarks.serve import run_serve

    with _index_or_emoji(folder, quick) as path:
        found = run_serve(path, clients=clients, seconds=seconds, k=k, other=other, note=_note)
    _finish(found, out_folder)


@app.command(cls=Command)
def train(
    out_folder: Path = _OUT,
    quick: bool = _QUICK,
    device: str = _DEVICE,
    repeats: int = _repeats(5),
    steps: int = typer.Option(20, "--steps", min=1, help="Training steps in one run"),
    batch: list[int] = typer.Option([32, 112], "--batch", min=8, max=112, help="Multiple of 4 [default: 32, 112]"),
    jobs: list[int] = typer.Option(
        [1, 2, 4, 8], "-j", "--jobs", "--pack", min=1, help="Runs at a time [default: 1, 2, 4, 8]"
    ),
    precision: str = typer.Option("32-true", "--precision", help="As train.precision"),
    compiled: bool = typer.Option(False, "--compile", help="Adds a compiled backbone; takes minutes"),
    backbone: str = typer.Option("resnet50", "--backbone", help="Network, with random weights"),
    crop: int = typer.Option(227, "--crop", min=16, help="Pixels of the crops"),
) -> None:
    """Training steps, against the bare backbone and the eager loop."""
    from benchmarks.train import run_train

    _finish(
        run_train(
            device=device, batches=batch, jobs=jobs, compiled=compiled, precision=precision, backbone=backbone,
            crop=crop, steps=steps, repeats=repeats, note=_note,
        ),
        out_folder,
    )  # fmt: skip


@app.callback(invoke_without_command=True)
def _main(listed: bool = typer.Option(False, "--list", help="List the benchmarks")) -> None:
    if listed:
        for command in app.registered_commands:
            assert command.callback is not None, "each command is a function"
            print(f"{command.callback.__name__:<9} {command.callback.__doc__}")
        raise typer.Exit


@contextmanager
def _index_or_emoji(folder: Path | None, quick: bool) -> Iterator[Path]:
    """Yield the folder of an index: the named one, or with `--quick` a temporary one of bundled emoji.

    Raises:
        ConfigError: If neither is given.
    """
    if folder is not None:
        yield folder
        return
    if not quick:
        raise ConfigError("INDEX: not set. Name an index written by `winnow index`, or use --quick.")
    from winnow.data.emoji import load_emoji
    from winnow.index import Index
    from winnow.models import Embedder

    _note("indexing bundled emoji")
    images = load_emoji(images_per_class=1).train
    model = Embedder.create({"pooling": "gap", "dim": 32, "image": {"resize": 128, "crop": 128}}).eval()
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "emoji.index"
        Index.build(model, images.select(range(min(len(images), EMOJI))), path)
        yield path


def main() -> None:
    """Run a benchmark; an expected error ends in one line and its exit code."""
    try:
        app()
    except WinnowError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _finish(benchmark: Benchmark, folder: Path) -> None:
    """Print the table and save the measurements."""
    from rich.console import Console

    from benchmarks.record import save, to_table

    console = Console()
    (console if console.is_terminal else Console(width=1000)).print(to_table(benchmark))
    for text in benchmark.notes:
        print(f"note: {text}")
    print(f"saved: {save(benchmark, folder)}")


if __name__ == "__main__":
    main()
