"""`winnow protocol`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from winnow.errors import ConfigError, DataError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from winnow.protocols.runs import Engine, Task, Trial
    from winnow.training import RunOutcome


def protocol(
    name: str = typer.Argument(None, metavar="[PROTOCOL]", help="fair, conventional, tuning or ablation."),
    target: str = typer.Argument(None, metavar="[DATASET]", help="cub200, cars196, sop, inshop, or a folder."),
    words: list[str] = typer.Argument(
        None,
        metavar="[METHOD]... [KEY=VALUE]...",
        help="Methods such as c2 c2+gsp c2+gsp,pooling.eps=20, and settings of all runs.",
    ),
    out_folder: Path = typer.Option(
        None, "-o", "--out", help="Folder for runs and tables; default runs/PROTOCOL-DATASET-BACKBONE."
    ),
    data: str = typer.Option(None, "--data", help="Folder of the set; default where it usually is."),
    folds: str = typer.Option(None, "--folds", metavar="1,2", help="Train only these folds."),
    runs: str = typer.Option(None, "--runs", metavar="1,2", help="Train only these runs of each."),
    backbone: str = typer.Option("resnet50", "--backbone", help="resnet50 or bn_inception."),
    chapter: int = typer.Option(5, "--chapter", help="Of the thesis, whose protocol it is: 5 (GSP) or 3 (CCP)."),
    engine: str = typer.Option("packed", "--engine", help="packed on this machine, or ray (needs the ray extra)."),
    at_once: int = typer.Option(None, "--at-once", min=1, help="packed: runs side by side; default 4 on a GPU."),
    gpus: float = typer.Option(None, "--gpus", min=0, help="ray: share of a GPU for each run; default 0.25 if any."),
    address: str = typer.Option(None, "--address", help="ray: of a running cluster; default a local one."),
    recorded: list[Path] = typer.Option(
        None, "--from", metavar="FILE", help="Take in finished runs that an earlier table.json tells of."
    ),
    only_finished: bool = typer.Option(False, "--only-finished", help="Train nothing more; make the table."),
    note: str = typer.Option("", "--note", help="A sentence for the table: what is special about your images."),
    listed: bool = typer.Option(False, "--list", help="Show protocols, sets and methods."),
) -> None:
    """Run one of the documents' protocols: all its runs, its table, its statistics.

    [dim]winnow protocol fair cub200 c2 c2+gsp[/] trains 24 models and compares the two methods. Finished runs are
    kept, those that were broken off go on where they were.
    """
    from winnow.cli.console import echo, out
    from winnow.protocols import Task, find_backbone, find_protocol, find_set, make_table, write_table
    from winnow.protocols.kinds import is_other_chapter
    from winnow.protocols.runs import named_backbone
    from winnow.protocols.variants import Variant, is_method
    from winnow.protocols.write import markdown

    if listed:
        _list(echo)
        return
    if name is None or target is None:
        raise ConfigError("name a protocol, a set and methods, as in `winnow protocol fair cub200 c2 c2+gsp`")
    check_engine(engine, {"--at-once": at_once, "--gpus": gpus, "--address": address})
    kind, on, network = find_protocol(name, chapter), find_set(target), find_backbone(backbone)
    if data is not None and on.path is not None:
        raise ConfigError(f"--data {data}: the folder {on.path} is named already")
    asked = words or []
    name = f"{kind.name}{kind.chapter if is_other_chapter(kind) else ''}"
    where = f"{name}-{on.name}-{named_backbone(asked) or network.name}".replace("/", "-")
    task = Task(
        protocol=kind, target=on, methods=[str(Variant.read(word)) for word in asked if is_method(word)],
        folder=out_folder or Path("runs") / where, backbone=network, root=data,
        words=[word for word in asked if not is_method(word)], models=numbers("--folds", folds),
        runs=numbers("--runs", runs), note=note,
    )  # fmt: skip
    trials = task.trials()
    for file in recorded or ():
        echo(f"{file} tells of {task.take_in(trials, file)} of the {len(trials)} runs")
    failed = [] if only_finished else _train(task, trials, engine, at_once, gpus, address)
    table = make_table(task, trials)
    if not table.records and only_finished and (task.folder / "table.json").is_file():
        raise DataError(
            f"{task.folder} has a table, but no finished run: the table is left as it is; take its runs in by --from, "
            "or leave out --only-finished to train them"
        )
    out.print(markdown(task, table), markup=False, highlight=False, soft_wrap=True)
    for path in write_table(task, table):
        echo(f"wrote {path}")
    if table.faults:
        raise DataError("; ".join(table.faults.values()))
    if failed:
        count = "1 run" if len(failed) == 1 else f"{len(failed)} runs"
        raise TrainingError(
            f"{count} failed ({'; '.join(failed)}): put right what is told above and give the command again"
        )


_OPTIONS = {"packed": ("--at-once",), "ray": ("--gpus", "--address")}
"""The engines, each with the options of its own."""


def check_engine(engine: str, options: Mapping[str, object]) -> None:
    """Refuse an engine that there is not, and options of another."""
    if engine not in _OPTIONS:
        raise ConfigError(f"--engine {engine}: it is {' or '.join(_OPTIONS)}")
    for other, names in _OPTIONS.items():
        wrong = next((name for name in names if other != engine and options[name] is not None), None)
        if wrong is not None:
            raise ConfigError(f"{wrong} is for --engine {other}, but {engine} trains: name that one, or leave it out")


def _train(
    task: Task, trials: Sequence[Trial], engine: str, at_once: int | None, gpus: float | None, address: str | None
) -> list[str]:
    """Train what is wanted; return the names of runs that failed."""
    from winnow.cli.console import err
    from winnow.cli.progress import ConsoleCallback, bars
    from winnow.protocols import on_ray, packed
    from winnow.protocols.there import check_there

    shown = bars()
    monitors = {id(trial.planned): ConsoleCallback(trial.planned.name, shown) for trial in trials}

    reasons: set[str] = set()

    def ended(outcome: RunOutcome) -> None:
        monitors[id(outcome.run)].close()
        err.print(_told(outcome, reasons), markup=False, highlight=False, soft_wrap=True)

    train: Engine
    if engine == "packed":
        # Before CUDA starts: by default streams beyond the eighth wait for others.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        train = packed(at_once=at_once, monitor=lambda run: monitors[id(run)])
    else:
        train = on_ray(gpus=_default_share() if gpus is None else gpus, address=address)
    if address is None:  # the disk of a cluster need not be here
        check_there(task, trials)
    with shown:
        outcomes = task.train(trials, train, ended)
    return [outcome.run.name for outcome in outcomes if outcome.error is not None]


def _default_share() -> float:
    import torch

    return 0.25 if torch.cuda.is_available() else 0.0


def _told(outcome: RunOutcome, reasons: set[str]) -> str:
    """Say how a run ended; a reason that others failed for is told once, such as weights that are not there."""
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
        best += ", before the prototypes were set from data: this is average pooling"
    return f"{outcome.run.name}: {split} MAP@R {100 * metrics[split]['MAP@R']:.2f}, {best}"


def numbers(option: str, text: str | None) -> list[int] | None:
    """Read an option that lists numbers; None where it was not given."""
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: write numbers such as 1,2") from None


def _list(echo: Callable[[str], None]) -> None:
    from winnow.protocols import ADDITIONS, BACKBONES, PROTOCOLS, ROWS, SETS, losses
    from winnow.protocols.kinds import CHAPTER_3

    for kind in PROTOCOLS.values():
        echo(f"{kind.name}: {kind.about}")
    for kind in CHAPTER_3.values():
        if kind not in PROTOCOLS.values():
            echo(f"{kind.name} --chapter 3: {kind.about}")
    echo(f"sets: {', '.join(SETS)}, or a folder of class folders")
    echo(f"backbones: {', '.join(BACKBONES)}")
    echo(f"methods of the documents' tables: {', '.join(ROWS)}")
    echo(f"others: a loss ({', '.join(losses())}), and with + one of each kind:")
    for word, addition in ADDITIONS.items():
        echo(f"  {word}: {addition.about} ({addition.kind})")
    echo("with settings of its own after commas: c2+gsp,pooling.eps=20")
