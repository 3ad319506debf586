"""`winnow demo`."""

from __future__ import annotations

from pathlib import Path

import typer


def demo(
    out_folder: Path = typer.Option(Path("winnow-demo"), "-o", "--out", help="Folder for the report and the model."),
    seeds: int = typer.Option(3, "--seeds", min=1, help="Runs of each method."),
    steps: int = typer.Option(600, "--steps", min=1, help="Training steps of each run."),
) -> None:
    """Train GSP against average and max pooling on the embedded pictures, and write a report to look at.

    Takes about two minutes on two CPU cores and needs no network.
    """
    from winnow.cli.console import comparison_rows, echo, out
    from winnow.cli.progress import ConsoleCallback
    from winnow.demo import run_demo

    with ConsoleCallback() as monitor:
        made = run_demo(out_folder, seeds=seeds, steps=steps, monitor=monitor)
    out.print(comparison_rows(made.table))
    echo(f"report: {made.report}")
    echo(f"model:  {made.model}   (try: winnow explain {made.model} IMAGE)")
