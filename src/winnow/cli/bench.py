"""`winnow bench`: one command for each benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from winnow.bench import Bench

HELP = "Time winnow against rivals in the same run, and keep the figures as JSON."

_OUT = typer.Option(Path("results/bench"), "--out", help="Folder for the JSON file.")
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


COMMANDS = (evaluate,)


def _tell(text: str) -> None:
    from winnow.cli.console import err

    err.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def _finish(bench: Bench, folder: Path) -> None:
    """Print the table and keep the file."""
    from winnow.bench import bench_table, save_bench
    from winnow.cli.console import out, say

    out.print(bench_table(bench))
    for text in bench.notes:
        say(f"note: {text}")
    say(f"figures: {save_bench(bench, folder)}")
