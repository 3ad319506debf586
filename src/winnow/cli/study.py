"""`winnow study`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from winnow.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from winnow.studies import Study, StudyRequest

ALL, OUT = "all", Path("studies")
RENAMED = {"centres": "centers"}
"""Studies by the names of version 0.1.0."""
FOLDERS = {new: old for old, new in RENAMED.items()}
"""Renamed studies keep the folders of their runs."""


def study(
    name: str = typer.Argument(None, metavar="[NAME]", help="Study, or all; --list prints their names"),
    settings: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Settings of all runs of the study"),
    out_folder: Path = typer.Option(OUT, "-o", "--out", metavar="DIR", help="Folder of the results"),
    quick: bool = typer.Option(
        True,
        "--quick/--full",
        "--small/ ",
        help="Minutes on 2 CPU cores (default), or as published",
        show_default=False,
    ),
    data: Path = typer.Option(None, "--data", metavar="DIR", help="Folder of the study's data"),
    variants: list[str] = typer.Option(
        None,
        "--variants",
        "--methods",
        metavar="PATTERN",
        help="Train only these variants now, report others as missing",
    ),
    seeds: str = typer.Option(None, "--seeds", metavar="0,1", help="Train only these seeds now"),
    imports: list[Path] = typer.Option(
        None, "--import-results", "--from", metavar="FILE", help="Import finished runs from a JSON file of the study"
    ),
    no_train: bool = typer.Option(False, "--no-train", "--only-finished", help="Train nothing; report finished runs"),
    note: str = typer.Option(None, "--note", metavar="TEXT", help="Sentence for the report"),
    listed: bool = typer.Option(False, "--list", help="List the studies with their sources and costs"),
) -> None:
    """Reproduce a figure or table of a paper.

    Writes a table, a figure, and a comparison with the published claims. A rerun reads finished runs, resumes started
    ones, and rejects runs with other settings.

    Examples:
        winnow study mu
        winnow study mu --full train.precision=bf16-mixed
        winnow study all
    """
    from winnow.cli.console import echo
    from winnow.cli.protocol import numbers

    if listed:
        echo(list_studies())
        return
    given = {"--data": data, "--variants": variants, "--seeds": seeds, "--import-results": imports, "--note": note}
    chosen = find_studies(name, [*(option for option, value in given.items() if value), *(settings or ())])
    common = make_request("quick" if quick else "full", out_folder, data, settings or [])
    common = replace(common, variants=variants or (), imports=imports or (), train=not no_train)
    common = replace(common, seeds=numbers("--seeds", seeds))
    if name == ALL:
        run_all(chosen, common, out_folder)
    else:
        run_one(chosen[0], common, out_folder, note or "")


def find_studies(name: str | None, options: list[str]) -> list[Study]:
    """Return the named study, or all.

    Raises:
        ConfigError: If there is none of this name, or options for one study are given for all.
    """
    from winnow.errors import did_you_mean
    from winnow.studies import STUDIES

    if name == ALL and options:
        raise ConfigError(f"{options[0]}: only for a single study. Name one, or leave it out.")
    if name == ALL:
        return list(STUDIES.values())
    found = [STUDIES[one] for one in (name, RENAMED.get(name or "")) if one is not None and one in STUDIES]
    if found:
        return found[:1]
    unknown = "NAME: expected a study." if name is None else f"{name}: unknown study{did_you_mean(name, STUDIES)}"
    raise ConfigError(f"{unknown} Available: {', '.join([*STUDIES, ALL])}.")


def make_request(
    size: Literal["quick", "full"], out_folder: Path, data: Path | None, settings: list[str]
) -> StudyRequest:
    """Return the common request of all studies.

    Studies share cached features.
    """
    from winnow.cli.console import note
    from winnow.studies import Scale, StudyRequest
    from winnow.training.overrides import Overrides

    shown = [*(["-o", str(out_folder)] if out_folder != OUT else []), *(["--data", str(data)] if data else [])]
    return StudyRequest(
        Scale(size), out_folder / "runs", data, Overrides.parse(*settings), options=shown,
        note=lambda text: note(text, dim=True),
    )  # fmt: skip


def request_for(study: Study, common: StudyRequest) -> StudyRequest:
    """Return the request of a study: its scale and the folder of its runs."""
    size = common.scale.name
    folder = f"{FOLDERS.get(study.name, study.name)}-{'small' if size == 'quick' else 'full'}"
    return replace(common, scale=study.scales[size], runs=common.runs / folder)


def run_one(study: Study, common: StudyRequest, out_folder: Path, note: str) -> None:
    """Run one study, print its report, and write its files.

    Raises:
        TrainingError: If a run failed.
    """
    from winnow.cli.console import echo
    from winnow.studies.render import to_text, write_report
    from winnow.studies.runner import run_study

    request = request_for(study, common)
    report = run_study(study, request, note=note)
    echo(to_text(report))
    for path in write_report(report, out_folder):
        echo(f"wrote {path}")
    if request.failed:
        raise TrainingError(f"{len(request.failed)} runs failed: {'; '.join(request.failed)}. Their errors are above.")


def run_all(studies: list[Study], common: StudyRequest, out_folder: Path) -> None:
    """Run all studies, print how each ended, and exit with 1 if one failed."""
    from winnow.cli.console import echo
    from winnow.studies.runner import run_studies, summarize

    named, ended = {study.name: study for study in studies}, []
    for one in run_studies(named, lambda study: request_for(study, common), out_folder):
        echo(f"{one.name} ({one.outcome}, {one.seconds:.0f} s): {one.text}")
        ended.append(one)
    echo(summarize(ended))
    raise typer.Exit(int(any(one.outcome == "failed" for one in ended)))


def list_studies() -> str:
    """Return the table of all studies with sources and costs."""
    from winnow.studies import GROUPS, STUDIES

    lines = [f"{'STUDY':<17} {'MEASURES':<33} {'SOURCE':<8} {'QUICK':>8} {'FULL':>9}"]
    for group in GROUPS:
        lines.append(group)
        for one in (one for one in STUDIES.values() if one.group == group):
            costs = (short_cost(one.scales["quick"].cost), short_cost(one.scales["full"].cost))
            source = short_source(one.source)
            lines.append(f"  {one.name:<15} {one.measures:<33} {source:<8} {costs[0]:>8} {costs[1]:>9}".rstrip())
    return "\n".join([*lines, "", LEGEND])


LEGEND = (
    "SOURCE: F figure, T table, S section of [Thesis]. QUICK: time on 2 CPU cores.\n"
    "FULL: time on 2 CPU cores, or number of runs on a GPU. CUB: needs CUB-200-2011."
)


def short_source(source: str) -> str:
    """Return a source in at most 8 characters: F 5.8 for [Thesis], Fig. 5.8."""
    words = {"[Thesis], ": "", "Fig. ": "F ", "Table ": "T ", "section ": "S ", "[": "", "]": ""}
    for long, short in words.items():
        source = source.replace(long, short)
    return source or "new"


def short_cost(cost: str) -> str:
    """Return a cost in at most 10 characters.

    "30 runs" are runs on a GPU, and CUB is data that must be supplied.
    """
    first = cost.partition(",")[0]
    if "GPU" in cost or "CUB" in cost:
        runs = first.split(" ")[0]
        return f"{runs} runs" if runs.isdigit() else "CUB"
    for long, short in TIMES.items():
        first = first.replace(long, short)
    return "< 1 min" if first == "s" else first


TIMES = {"half an hour": "30 min", "minutes": "min", "minute": "min", "seconds": "s", "second": "s", "hour": "h"}
