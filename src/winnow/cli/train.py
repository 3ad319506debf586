"""`winnow train`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from winnow.cli.errors import rank
from winnow.errors import ConfigError

if TYPE_CHECKING:
    from winnow.training import RunConfig


def train(
    words: list[str] = typer.Argument(
        None, metavar="[CONFIG.yaml] [KEY=VALUE]...", help="A config file and settings, e.g. data=FOLDER pooling=gsp."
    ),
    out_folder: Path = typer.Option(
        None, "-o", "--out", help="Run folder to write; default the next free one in runs/."
    ),
    resume: Path = typer.Option(None, "--resume", help="Go on with this run, or with these runs, from where it broke."),
    each: list[str] = typer.Option(
        None, "--each", metavar="KEY=A,B,...", help="Train a run for each value; several lists are combined."
    ),
    at_once: int = typer.Option(
        None, "--at-once", min=1, help="Runs side by side; default 4 on a GPU, 1 on a CPU, where more gain nothing."
    ),
) -> None:
    """Train a model; with only [bold]data=FOLDER[/] a good one for a folder of class folders.

    [dim]winnow train data=photos[/] splits the classes, trains on some, picks the best weights on others and tests on
    the rest. Every setting is listed by [dim]winnow config[/].

    [dim]--each seed=0,1,2 --each pooling=gap,gsp[/] trains six runs, several side by side, and compares them.

    [dim]torchrun --nproc-per-node 4 -m winnow train data=photos[/] trains one run on four GPUs.
    """
    from winnow.cli.console import echo, metrics_table, out
    from winnow.cli.pack import draw_run, train_pack
    from winnow.cli.progress import ConsoleCallback
    from winnow.training import RunDir, train
    from winnow.training.sweep import is_plan, plan_runs, read_plan, write_plan

    if resume is not None and (words or out_folder is not None or each):
        raise ConfigError("--resume goes on with the run's own settings: give no others beside it")
    if each or (resume is not None and is_plan(resume)):
        place = resume or out_folder or next_free(read_words(words or []), "each")
        first, settings = split_words(words or [])
        runs = read_plan(place) if resume is not None else plan_runs(place, first, settings, each)
        if resume is None:
            write_plan(place, runs)
        with resumable(place):
            train_pack(place, runs, at_once)
        return
    if at_once is not None:
        raise ConfigError("--at-once is for several runs: name them with --each")
    if resume is not None:
        folder = RunDir(resume)
        config = folder.read_config()
        if folder.is_finished:
            raise ConfigError(f"the run {resume} is finished; see it with `winnow evaluate {quote(str(resume))}`")
    else:
        config = read_words(words or [])
        folder = RunDir(out_folder or next_free(config))
        if told := embedded(config, words or []):
            echo(told)
    with resumable(folder.path), ConsoleCallback() as monitor:
        result = train(config, folder, resume=resume is not None, callback=monitor).to_dict()
    if rank() > 0:
        return
    draw_run(folder, result)
    split = "test" if "test" in result["metrics"] else "val"
    rows = {
        "backbone, average pooling, untrained": result["untrained"][split],
        f"trained ({result['config']['pooling']['name']}, {result['config']['dim']}-D)": result["metrics"][split],
    }
    long_name = {
        "test": "test classes, never seen in training",
        "val": "validation classes (there are no test classes)",
    }
    out.print(metrics_table(rows, f"{long_name[split]} (%)"))
    if advice := advise(result["metrics"]["val"]["MAP@R"], result["untrained"]["val"]["MAP@R"]):
        echo(advice)
    if not result["prototypes_ready"]:
        echo(
            f"The best weights are those of step {result['best_step']}, before the prototypes were set from data: "
            "this is average pooling. Train longer (train.max_steps), or set them sooner (pooling.memory_size)."
        )
    echo(f"run: {folder.path}  (best at step {result['best_step']} of {result['steps']})")
    echo(f"next: winnow explain {quote(str(folder.path))} IMAGE...")


def embedded(config: RunConfig, words: Sequence[str]) -> str | None:
    """Return that the embedded set is trained on, where nobody named it."""
    if config.data.path != "emoji" or any(word.startswith("data") for word in words):
        return None
    return "Training on the embedded set of emoji; data=FOLDER trains on your own images."


def advise(trained: float, untrained: float) -> str | None:
    """Return what to do where training gained nothing, by MAP@R of the validation classes."""
    if trained > untrained:
        return None
    if untrained == 1:
        return (
            "The untrained backbone finds every image of the validation classes already: they are too few or too "
            "easy to choose weights by. Set aside more of them (data.val_fraction)."
        )
    return (
        "On the validation classes training did not beat the untrained backbone: the data may be too few or too "
        "unlike for it. Try train.lr=3e-5, another loss, or more classes."
    )


@contextmanager
def resumable(place: Path) -> Iterator[None]:
    """Let an interrupt say how to go on, by name: that of a default folder has not been told yet."""
    try:
        yield
    except KeyboardInterrupt:
        begun = any((place / name).is_file() for name in ("config.yaml", "plan.yaml"))
        raise KeyboardInterrupt(
            f"the run goes on with `winnow train --resume {quote(str(place))}`" if begun else "nothing was trained yet"
        ) from None


def read_words(words: list[str]) -> RunConfig:
    """Read an optional config file and key=value words."""
    from winnow.training import load_config

    return load_config(*split_words(words))


def split_words(words: list[str]) -> tuple[str | None, list[str]]:
    """Part an optional config file from key=value words."""
    first = words[0] if words and "=" not in words[0] else None
    return first, words[1:] if first else words


def next_free(config: RunConfig, kind: str | None = None) -> Path:
    """Return runs/DATA-POOLING-N, or DATA-KIND-N, for the first N that is free."""
    stem = f"{Path(config.data.path).stem or 'data'}-{kind or config.pooling.name}"
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder
