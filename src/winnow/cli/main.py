"""The entry point: commands put together, errors told in one line."""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

import winnow
from winnow.cli import bench, datasets
from winnow.cli.config import config
from winnow.cli.demo import demo
from winnow.cli.embed import embed
from winnow.cli.evaluate import evaluate
from winnow.cli.explain import explain
from winnow.cli.export import export
from winnow.cli.index import index
from winnow.cli.protocol import protocol
from winnow.cli.search import search
from winnow.cli.serve import serve
from winnow.cli.study import study
from winnow.cli.train import train
from winnow.cli.tune import tune
from winnow.cli.voice import is_alone, rank, telling
from winnow.errors import ConfigError, OutputError, UnknownComponentError, WinnowError

app = typer.Typer(
    name="winnow",
    help="Learn image embeddings for retrieval on classes never seen in training.",
    epilog="Exit codes: 0 done, 1 general, 2 bad setting or usage, 3 bad data, 4 bad model or checkpoint, "
    "5 training failed, 6 a package is missing, 7 a file could not be written, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Let Ctrl-C end a command with a word on how to go on; typer alone would only say that it was aborted."""

    @functools.wraps(command)
    def told(*args: Any, **settings: Any) -> None:
        try:
            command(*args, **settings)
        except KeyboardInterrupt as stop:
            more = f"; {stop}" if stop.args else ""
            if command in (protocol, tune, embed, index):
                more = "; given again, the same command goes on"
            if rank() == 0:
                Console(stderr=True).print(f"interrupted{more}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None

    return told


for command in (demo, train, evaluate, explain, embed, index, search, serve, export, study, protocol, tune, config):
    app.command()(interruptible(command))

benches = typer.Typer(name="bench", help=bench.HELP, no_args_is_help=True)
for timed in bench.COMMANDS:
    benches.command()(interruptible(timed))
app.add_typer(benches)

sets = typer.Typer(name="datasets", help=datasets.HELP, no_args_is_help=True)
for named, about_sets in datasets.COMMANDS.items():
    sets.command(named)(interruptible(about_sets))
app.add_typer(sets)


def _version(value: bool) -> None:
    if value:
        print(f"winnow {winnow.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    if not is_alone() and context.invoked_subcommand != "train":
        raise ConfigError(f"torchrun is for `winnow train`: start `winnow {context.invoked_subcommand}` without it")


def run() -> None:
    """Run the command line; what the user can put right ends in one line and an exit code, never a traceback."""
    err = Console(stderr=True)
    _quieten(err)
    try:
        app()
    except WinnowError as error:
        with telling() as mine:
            if mine:
                said = escape(" ".join(str(error).split()) + _advice(error))
                err.print(f"[bold red]error:[/] {said}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except OSError as error:  # the last resort; where it can be foreseen the message says more
        if not isinstance(error, BrokenPipeError):
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            sys.exit(OutputError.exit_code)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    finally:
        _report_renames(err)


def _report_renames(err: Console) -> None:
    """Print one notice of all old names of config keys that this process read."""
    registry = sys.modules.get("winnow.registry")  # a command that reads no config has not loaded it
    if registry is not None and registry.RENAMED_KEYS and rank() == 0:
        keys = ", ".join(f"{old} -> {new}" for old, new in registry.RENAMED_KEYS.items())
        notice = f"notice: renamed config keys: {keys} (old names still load)"
        err.print(notice, style="dim", markup=False, highlight=False, soft_wrap=True)


HINTS = {
    "data": "Pass --data.",
    "dataset": "`winnow datasets get NAME --from FOLDER` copies or downloads a dataset.",
    "existing_run": "Pass --resume FOLDER, or another folder with --out.",
    "missing_images": "`winnow datasets verify NAME --allow-missing` accepts their absence.",
    "unfinished_run": "`winnow train --resume FOLDER` resumes it.",
}
"""What to do on the command line, by the hint of an error."""


def _advice(error: WinnowError) -> str:
    """Return what to do on the command line in addition to what the error says."""
    if isinstance(error.__context__, UnknownComponentError):
        return " On the command line, run that script with the same arguments: `python YOURS.py` instead of `winnow`."
    return f" {HINTS[error.hint]}" if error.hint is not None else ""


def _quieten(err: Console) -> None:
    """Show winnow's own warnings as one line each, and keep the libraries' chatter out of sight."""
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric.utilities").setLevel(logging.ERROR)  # the other level is reset on import
    if rank() > 0:
        warnings.filterwarnings("ignore")  # the first process has them too
    if not is_alone():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP would have it that no parameter is ever unused
    warnings.filterwarnings("ignore", module=r"(lightning|lightning_fabric|torch|timm|torchvision)(\..*)?")

    def show(message: Warning | str, category: type[Warning], filename: str, *_: object) -> None:
        if os.sep + "winnow" + os.sep in filename or category is UserWarning:
            err.print(f"[bold yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)

    warnings.showwarning = show  # type: ignore[assignment]
