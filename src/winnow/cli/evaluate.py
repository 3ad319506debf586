"""`winnow evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import typer


def evaluate(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder of `winnow train`."),
    data: str = typer.Option(
        None, "--data", help="Other images: a folder of class folders or a CSV; all are searched."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Measure a trained run on its test classes, or on other data."""
    from winnow.cli.console import ConsoleMonitor, metrics_table, out, say
    from winnow.training import RunFolder
    from winnow.training.run import evaluate_run

    with ConsoleMonitor() as monitor:
        result = evaluate_run(RunFolder(run), data, monitor)
    queries = len(result.relevant) - result.left_out
    if as_json:
        print(json.dumps({"metrics": result.metrics(), "queries": queries, "left_out": result.left_out}))
        return
    out.print(metrics_table({str(data or "test classes"): result.metrics()}, f"{run} (%)"))
    note = f"; {result.left_out} left out, whose class has no other image" if result.left_out else ""
    say(f"{queries} queries{note}")
