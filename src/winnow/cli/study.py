"""`winnow study`."""

from __future__ import annotations

from pathlib import Path

import typer

from winnow.errors import ConfigError, nearest


def study(
    name: str = typer.Argument(None, metavar="[NAME]", help="Which study; --list names them."),
    out_folder: Path = typer.Option(Path("studies"), "-o", "--out", help="Folder for the table, figure and settings."),
    small: bool = typer.Option(True, "--small/--full", help="Minutes on two CPU cores, or the documents' sizes."),
    data: Path = typer.Option(None, "--data", help="Folder of the study's data; default where it usually is."),
    only_finished: bool = typer.Option(False, "--only-finished", help="Train nothing more; show what there is."),
    listed: bool = typer.Option(False, "--list", help="Name the studies and what they are."),
) -> None:
    """Run one of the documents' studies: it writes a table, a figure, its settings and a paragraph."""
    from winnow.cli.console import err, out, say
    from winnow.studies import STUDIES, Task, write_findings

    if listed:
        for each, function in STUDIES.items():
            say(f"{each}: {(function.__doc__ or '').splitlines()[0]}")
        return
    if name not in STUDIES:
        known = ", ".join(STUDIES)
        asked = "name a study" if name is None else f"there is no study '{name}'{nearest(name, STUDIES)}"
        raise ConfigError(f"{asked}; known: {known}")

    def note(text: str) -> None:
        err.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    size = "small" if small else "full"
    runs = out_folder / "runs" / f"{name}-{size}"
    findings = STUDIES[name](Task(small, data, runs, only_finished, note))
    out.print(findings.text, markup=False, highlight=False, soft_wrap=True)
    for path in write_findings(name.replace("-", "_"), findings, out_folder):
        say(f"wrote {path}")
