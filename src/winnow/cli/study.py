"""`winnow study`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from winnow.errors import ConfigError, DataError, nearest

ALL, OUT = "all", Path("studies")


def study(
    name: str = typer.Argument(None, metavar="[NAME]", help="Which study, or all of them; --list names them."),
    words: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Settings of all its runs, in place of the study's own."
    ),
    out_folder: Path = typer.Option(OUT, "-o", "--out", help="Folder for the table, figure and settings."),
    small: bool = typer.Option(True, "--small/--full", help="Minutes on two CPU cores, or the documents' sizes."),
    data: Path = typer.Option(None, "--data", help="Folder of the study's data; default where it usually is."),
    methods: list[str] = typer.Option(
        None, "--methods", metavar="PATTERN", help="Train only methods of this name now; may be given again."
    ),
    seeds: str = typer.Option(None, "--seeds", metavar="0,1", help="Train only these seeds now."),
    recorded: list[Path] = typer.Option(
        None, "--from", metavar="FILE", help="Take in finished runs that an earlier JSON file of the study tells of."
    ),
    only_finished: bool = typer.Option(False, "--only-finished", help="Train nothing more; show what there is."),
    remark: str = typer.Option(None, "--note", help="A sentence for the paragraph: what is special about your images."),
    listed: bool = typer.Option(False, "--list", help="Name the studies, what they are and what they cost."),
) -> None:
    """Run one of the documents' studies: it writes a table, a figure, its settings and a paragraph.

    Runs that are finished are kept, and those of other settings are refused: give these another folder (-o).
    """
    from winnow.cli.console import echo, err, out
    from winnow.cli.protocol import numbers
    from winnow.studies import STUDIES, Task, write_findings
    from winnow.studies.base import cost, paragraphs, takes_data, takes_settings
    from winnow.studies.together import run_studies, summary
    from winnow.training.cache import RunCache
    from winnow.training.results import collect_provenance

    if listed:
        for each, function in STUDIES.items():
            echo(f"{each}: {(function.__doc__ or '').splitlines()[0]} Cost: {cost(function) or 'not known.'}")
        return
    if name not in STUDIES and name != ALL:
        known = ", ".join([*STUDIES, ALL])
        wrong = "name a study" if name is None else f"there is no study '{name}'{nearest(name, STUDIES)}"
        raise ConfigError(f"{wrong}; known: {known}")
    given = {"--methods": methods, "--seeds": seeds, "--from": recorded}
    asked = [*(words or []), *(option for option, value in given.items() if value)]
    if name == ALL and (data is not None or remark is not None or asked):
        raise ConfigError(
            "--data, --note, --methods, --seeds, --from and settings are for one study: name it, or leave them out"
        )
    if asked and not takes_settings(STUDIES[name]):
        able = ", ".join(each for each, function in STUDIES.items() if takes_settings(function))
        raise ConfigError(f"the study {name} has no runs that take {asked[0]}; these have: {able}")

    if data is not None and not takes_data(STUDIES[name], small):
        size = "small" if small else "full"
        able = ", ".join(each for each, function in STUDIES.items() if takes_data(function, small))
        raise ConfigError(f"--data {data}: the study {name} reads none in its {size} size; these do: {able}")

    def note(text: str) -> None:
        err.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    size = "small" if small else "full"
    options = ["-o", str(out_folder)] if out_folder != OUT else []
    options += [] if data is None else ["--data", str(data)]
    shared = RunCache()
    collect_provenance().to_dict()  # asks for the commit now: another may be made before a long study has ended

    def task(each: str) -> Task:
        return Task(
            small, data, out_folder / "runs" / f"{each}-{size}", only_finished, note, shared,
            words or (), methods or (), numbers("--seeds", seeds), options, recorded or (),
        )  # fmt: skip

    if name == ALL:
        ended = []
        for one in run_studies(STUDIES, task, out_folder):
            echo(f"{one.name} ({one.outcome}, {one.seconds:.0f} s): {one.text}")
            ended.append(one)
        echo(summary(ended))
        raise typer.Exit(int(any(one.outcome == "failed" for one in ended)))
    findings = STUDIES[name](task(name))
    if only_finished and not findings.details.get("runs", True):  # an empty table would replace one that is not
        raise DataError(f"no run of {name} is finished in {task(name).runs}: leave out --only-finished to train them")
    if remark is not None:
        findings = replace(
            findings, text=paragraphs(findings.text, remark), details={**findings.details, "note": remark}
        )
    out.print(findings.text, markup=False, highlight=False, soft_wrap=True)
    for path in write_findings(name.replace("-", "_"), findings, out_folder):
        echo(f"wrote {path}")
