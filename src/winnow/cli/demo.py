"""`winnow demo`."""

from __future__ import annotations

from pathlib import Path

import typer

from winnow.errors import ConfigError


def demo(
    out_folder: Path = typer.Option(Path("winnow-demo"), "--out", help="Folder for the report and the model."),
    seeds: int = typer.Option(3, "--seeds", min=1, help="Runs of each method."),
    steps: int = typer.Option(600, "--steps", min=1, help="Training steps of each run."),
) -> None:
    """Train GSP against average and max pooling on the embedded pictures, and write a report to look at.

    Takes about three minutes on two CPU cores and needs no network.
    """
    if out_folder.exists() and not out_folder.is_dir():
        raise ConfigError(f"--out {out_folder} is a file; name a folder")
    from winnow.cli.console import ConsoleMonitor, out
    from winnow.demo import run_demo

    monitor = ConsoleMonitor()
    try:
        made = run_demo(out_folder, seeds=seeds, steps=steps, monitor=monitor)
    finally:
        monitor.close()
    out.print(made.table)
    out.print(f"report: {made.report}", highlight=False, soft_wrap=True)
    out.print(f"model:  {made.model}   (try: winnow explain {made.model} IMAGE)", highlight=False, soft_wrap=True)
