"""`winnow protocol`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from winnow.errors import ConfigError, DataError, TrainingError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from winnow.protocols.plan import Executor, ProtocolRequest, ProtocolRun
    from winnow.training import RunOutcome

_output = partial(typer.Option, rich_help_panel="Output")
_selection = partial(typer.Option, rich_help_panel="Runs")
_executors = partial(typer.Option, rich_help_panel="Executors")

CHAPTERS = {"gsp": 5, "ccp": 3, "5": 5, "3": 3}
"""Chapters of [Thesis] by `--paper`; version 0.1.0 named their numbers."""
EXECUTORS = {"local": ("--jobs",), "ray": ("--gpus-per-run", "--ray-address")}
"""Executors and the options that only they have."""


def protocol(
    name: str = typer.Argument(None, metavar="[PROTOCOL]", help="fair, conventional, tuning, or ablation"),
    dataset: str = typer.Argument(None, metavar="[DATASET]", help="cub200, cars196, sop, inshop, or a folder"),
    words: list[str] = typer.Argument(
        None, metavar="[METHOD]... [KEY=VALUE]...", help="Methods, and settings of all runs"
    ),
    backbone: str = typer.Option("resnet50", "--backbone", metavar="NAME", help="resnet50 or bn_inception"),
    paper: str = typer.Option(
        "gsp", "--paper", "--chapter", metavar="NAME", help="Paper whose protocol it is: gsp or ccp"
    ),
    data: str = typer.Option(None, "--data", metavar="DIR", help="Folder of a benchmark dataset"),
    listed: bool = typer.Option(False, "--list", help="List protocols, datasets, and methods"),
    budget: str = _selection(
        "early-stop", "--budget", metavar="NAME", help="early-stop, or fixed: a cosine to its end, the last weights"
    ),
    folds: str = _selection(None, "--folds", metavar="1,2", help="Train only these folds now"),
    runs: str = _selection(None, "--runs", metavar="1,2", help="Train only these runs of each fold now"),
    imports: list[Path] = _selection(
        None, "--import-results", "--from", metavar="FILE", help="Import finished runs from an earlier table.json"
    ),
    no_train: bool = _selection(False, "--no-train", "--only-finished", help="Train nothing; write the table"),
    out_folder: Path = _output(
        None, "-o", "--out", metavar="DIR", help="Folder of runs and tables [default: runs/PROTOCOL-DATASET-BACKBONE]"
    ),
    note: str = _output("", "--note", metavar="TEXT", help="Sentence for the table, such as what images were used"),
    executor: str = _executors("local", "--executor", "--engine", metavar="NAME", help="local, or ray for a cluster"),
    jobs: int = _executors(
        None, "-j", "--jobs", "--at-once", min=1, metavar="N", help="local: concurrent runs [default: 4 on a GPU]"
    ),
    gpus_per_run: float = _executors(
        None, "--gpus-per-run", "--gpus", min=0, metavar="X", help="ray: GPUs of each run [default: 0.25 if any]"
    ),
    ray_address: str = _executors(
        None, "--ray-address", "--address", metavar="HOST:PORT", help="ray: running cluster [default: a local one]"
    ),
) -> None:
    """Compare methods under a published evaluation protocol.

    Trains all runs of the protocol and writes its table with 95% intervals and paired differences. A rerun reads
    finished runs, resumes started ones, and rejects runs with other settings.

    Methods:
        c2                         loss alone; the pooling is average pooling
        c1+xbm+gsp-zsr             loss and additions; --list prints their names
        c2+gsp-zsr,pooling.eps=20  settings that only this method has
        recipe=common,loss=ms      a recipe; `winnow recipes` lists them

    Examples:
        winnow protocol fair cub200 c2 c2+gsp-zsr
        winnow protocol conventional photos c1+xbm ms --runs 1
        winnow protocol fair cub200 c2 c2+ccp --budget fixed
        winnow protocol fair cub200 c2 c2+gsp-zsr --no-train
    """
    from winnow.cli.console import echo, out
    from winnow.protocols import ProtocolRequest, find_backbone, find_dataset, find_protocol, make_table, write_table
    from winnow.protocols.methods import is_method
    from winnow.protocols.render import render_markdown
    from winnow.protocols.spec import backbone_of, find_budget, has_second_version
    from winnow.protocols.table import TABLE_FILE

    if listed:
        echo(list_names())
        return
    if name is None or dataset is None:
        missing = "PROTOCOL" if name is None else "DATASET"
        raise ConfigError(f"{missing}: missing. Name a protocol, a dataset, and methods; --list prints their names.")
    executor = {"packed": "local"}.get(executor, executor)
    check_executor(executor, {"--jobs": jobs, "--gpus-per-run": gpus_per_run, "--ray-address": ray_address})
    spec, on, network = find_protocol(name, chapter_of(paper)), find_dataset(dataset), find_backbone(backbone)
    if data is not None and on.path is not None:
        raise ConfigError(f"--data {data}: only for a benchmark dataset; the folder {on.path} is the dataset.")
    overrides = [word for word in words or () if not is_method(word)]
    kind = f"{spec.name}{spec.chapter if has_second_version(spec) else ''}"
    length = find_budget(budget)
    kind += "" if length == "early-stop" else f"-{length}"
    default_folder = f"{kind}-{on.name}-{backbone_of(overrides) or network.name}".replace("/", "-")
    request = ProtocolRequest(
        protocol=spec, dataset=on, methods=[word for word in words or () if is_method(word)],
        folder=out_folder or Path("runs") / default_folder, backbone=network, root=data, overrides=overrides,
        folds=numbers("--folds", folds), runs=numbers("--runs", runs), note=note, budget=length,
        results=imports or (),
    )  # fmt: skip
    planned = request.plan()
    for file in imports or ():
        echo(f"{file}: contains {request.import_results(planned, file)} of {len(planned)} runs")
    failed = [] if no_train else train_runs(request, planned, executor, jobs, gpus_per_run, ray_address)
    table = make_table(request, planned)
    if not table.runs and no_train and (request.folder / TABLE_FILE).is_file():
        raise DataError(
            f"{request.folder}: the folder has a table but no finished run, so the table was not replaced. Pass "
            "--import-results with that table, or train by omitting --no-train."
        )
    out.print(render_markdown(table), markup=False, highlight=False, soft_wrap=True)
    for path in write_table(table, request.folder):
        echo(f"wrote {path}")
    if table.left_out:
        raise DataError("; ".join(table.left_out.values()))
    if failed:
        count = "1 run" if len(failed) == 1 else f"{len(failed)} runs"
        raise TrainingError(f"{count} failed ({'; '.join(failed)}). Fix the causes above, then rerun the command.")


def chapter_of(paper: str) -> int:
    """Return the chapter of [Thesis] that has the protocol of a paper.

    Raises:
        ConfigError: If the paper is unknown.
    """
    if paper not in CHAPTERS:
        raise ConfigError(f"--paper {paper}: expected gsp or ccp{did_you_mean(paper, ('gsp', 'ccp'))}")
    return CHAPTERS[paper]


def check_executor(executor: str, options: Mapping[str, object]) -> None:
    """Check the name of the executor, and that no option of another one is set.

    Raises:
        ConfigError: If one of them is wrong.
    """
    if executor not in EXECUTORS:
        raise ConfigError(
            f"--executor {executor}: expected {' or '.join(EXECUTORS)}{did_you_mean(executor, EXECUTORS)}"
        )
    for other, names in EXECUTORS.items():
        wrong = next((name for name in names if other != executor and options[name] is not None), None)
        if wrong is not None:
            raise ConfigError(
                f"{wrong}: only for --executor {other}, got {executor}. Remove it, or name that executor."
            )


def train_runs(
    request: ProtocolRequest,
    runs: Sequence[ProtocolRun],
    executor: str,
    jobs: int | None,
    gpus_per_run: float | None,
    ray_address: str | None,
) -> list[str]:
    """Train the requested runs; return the names of those that failed."""
    from winnow.cli.console import err
    from winnow.cli.progress import ConsoleCallback, bars
    from winnow.protocols import local_executor, ray_executor
    from winnow.protocols.plan import check_inputs_exist

    shared = bars()
    callbacks = {id(run.planned): ConsoleCallback(run.planned.name, shared) for run in runs}
    reasons: set[str] = set()

    def on_end(outcome: RunOutcome) -> None:
        callbacks[id(outcome.run)].close()
        err.print(describe_outcome(outcome, reasons), markup=False, highlight=False, soft_wrap=True)

    execute: Executor
    if executor == "local":
        # Before CUDA starts: by default streams beyond the eighth wait for the others.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        execute = local_executor(jobs=jobs, callback=lambda run: callbacks[id(run)])
    else:
        gpus = _default_gpus() if gpus_per_run is None else gpus_per_run
        execute = ray_executor(gpus_per_run=gpus, address=ray_address)
    if ray_address is None:  # the nodes of a cluster may have another disk
        check_inputs_exist(request, runs)
    with shared:
        outcomes = request.train(runs, execute, on_end)
    return [outcome.run.name for outcome in outcomes if outcome.error is not None]


def _default_gpus() -> float:
    import torch

    return 0.25 if torch.cuda.is_available() else 0.0


def describe_outcome(outcome: RunOutcome, reasons: set[str]) -> str:
    """Return the outcome of a run in one line.

    A reason in `reasons`, for which earlier runs failed, is not repeated.
    """
    if outcome.result is None:
        reason = " ".join(str(outcome.error).split()) or type(outcome.error).__name__
        if reason in reasons:
            return f"failed: {outcome.run.name}: for the same reason"
        reasons.add(reason)
        return f"{outcome.traceback}failed: {outcome.run.name}: {reason}"
    metrics = outcome.result.metrics
    split = "test" if "test" in metrics else "val"
    best = f"best at step {outcome.result.best_step} of {outcome.result.steps}"
    if not outcome.result.prototypes_ready:
        best += ", before the prototypes were initialized, so the model uses average pooling"
    return f"{outcome.run.name}: {split} MAP@R {100 * metrics[split]['MAP@R']:.2f}, {best}"


def numbers(option: str, text: str | None) -> list[int] | None:
    """Read an option that lists numbers; None where it was not given.

    Raises:
        ConfigError: If it lists something else.
    """
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: expected numbers separated by commas. Write them as 1,2.") from None


def list_names() -> str:
    """Return all protocols, datasets, backbones, and methods as text."""
    from winnow.cli.help import Entry, render_group, screen_width
    from winnow.pooling import POOLINGS
    from winnow.protocols import ADDITIONS, BACKBONES, DATASETS, PROTOCOLS, PUBLISHED_METHODS, losses
    from winnow.protocols.spec import CHAPTER_3, has_second_version
    from winnow.training.recipes import RECIPES

    second = [Entry(f"{one.name} --paper ccp", one.about) for one in CHAPTER_3.values() if has_second_version(one)]
    poolings = [name for name in ADDITIONS if name in POOLINGS]
    additions = [Entry(name, f"{one.about} ({one.kind})") for name, one in ADDITIONS.items() if name not in POOLINGS]
    additions.append(Entry("POOLING", f"{', '.join(poolings)} (pooling)"))
    groups = {
        "Protocols": [*(Entry(one.name, one.about) for one in PROTOCOLS.values()), *second],
        "Datasets": [*(Entry(one.name, one.title) for one in DATASETS.values()), Entry("FOLDER", "class folders")],
        "Backbones": [Entry(one.name, one.title) for one in BACKBONES.values()],
        "Methods": [
            Entry("LOSS", ", ".join(losses())),
            Entry("LOSS+ADDITION...", "one addition of each kind, in parentheses below"),
            Entry("METHOD,KEY=VALUE", "settings that only this method has, as in c2+gsp-zsr,pooling.eps=20"),
            Entry("published", ", ".join(PUBLISHED_METHODS)),
            Entry("recipe=NAME", f"a recipe with its own budget: {', '.join(RECIPES)}"),
        ],
        "Additions": additions,
    }  # fmt: skip
    return "\n\n".join(render_group(title, entries, screen_width()) for title, entries in groups.items())
