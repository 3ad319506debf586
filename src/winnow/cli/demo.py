"""`winnow demo`."""

from __future__ import annotations

from pathlib import Path

import typer


def demo(
    out_folder: Path = typer.Option(Path("winnow-demo"), "-o", "--out", help="Folder of the report and the model."),
    seeds: int = typer.Option(3, "--seeds", min=1, help="Runs of each method."),
    steps: int = typer.Option(600, "--steps", min=1, help="Training steps of each run."),
) -> None:
    """Compare four methods on bundled images (2 min on a CPU).

    Trains GAP, GMP, GSP, and GSP+ZSR, and writes report.html, results.json, results.md, and a model. Needs no network.
    """
    from winnow.cli.console import comparison_rows, echo, out
    from winnow.cli.progress import ConsoleCallback
    from winnow.demo import run_demo

    with ConsoleCallback() as callback:
        result = run_demo(out_folder, seeds=seeds, steps=steps, callback=callback)
    out.print(comparison_rows(result.table))
    echo(f"report: {result.report}")
    echo(f"model:  {result.model}   (try: winnow explain {result.model} IMAGE)")
