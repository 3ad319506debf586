"""The app: all commands, their order on the help screen, and the exit codes."""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

import winnow
from winnow.cli import datasets
from winnow.cli.cache import cache
from winnow.cli.config import config
from winnow.cli.errors import (
    OUT_OF_MEMORY,
    UsageError,
    is_alone,
    is_out_of_memory,
    memory_reason,
    print_error,
    rank,
    report_error,
    usage_message,
)
from winnow.cli.evaluate import evaluate
from winnow.cli.help import Command, Group
from winnow.cli.index import index, search
from winnow.cli.models import embed, explain, export
from winnow.cli.protocol import protocol
from winnow.cli.recipes import recipes
from winnow.cli.serve import serve
from winnow.cli.study import study
from winnow.cli.terminal import PlainConsole
from winnow.cli.train import train
from winnow.cli.tune import tune
from winnow.cli.verify import verify
from winnow.errors import ConfigError, OutputError, WinnowError


def demo(
    out_folder: Path = typer.Option(Path("winnow-demo"), "-o", "--out", metavar="DIR", help="Output folder"),
    seeds: int = typer.Option(3, "--seeds", min=1, help="Runs of each method"),
    steps: int = typer.Option(600, "--steps", min=1, help="Training steps of each run"),
) -> None:
    """Compare four methods on bundled images (2 min on a CPU).

    Trains GAP, GMP, GSP, and GSP+ZSR. Writes report.html, results.json, results.md, and a model. Requires no network.

    Examples:
        winnow demo
        winnow demo --seeds 1 --steps 100 --out quick
    """
    from winnow.cli.console import comparison_rows, echo, out
    from winnow.cli.progress import ConsoleCallback
    from winnow.demo import run_demo

    with ConsoleCallback() as callback:
        result = run_demo(out_folder, seeds=seeds, steps=steps, callback=callback)
    out.print(comparison_rows(result.table))
    echo(f"report: {result.report}")
    echo(f"model:  {result.model}")
    echo(f"next: winnow index {quote(str(result.model))} emoji -o emoji.index")
    echo("      winnow serve emoji.index")


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start here": (demo,),
    "Train and evaluate": (train, recipes, evaluate, explain, tune, config, cache),
    "Embed and search": (embed, index, search, serve, export, verify),
    "Reproduce": (protocol, study),
}
"""The commands by group, in the order of the help screen."""

EPILOG = """Example:    winnow train data=photos
Exit codes: 0 ok, 1 error, 2 usage or config, 3 data, 4 model, 5 training,
            6 missing package, 7 cannot write, 130 interrupted"""


class App(Group):
    """The program, whose groups of commands have an order."""

    panels = tuple(COMMANDS)


app = typer.Typer(
    name="winnow",
    help="Train, evaluate, and search image embeddings.",
    epilog=EPILOG,
    cls=App,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Print one line on how to resume when Ctrl-C ends a command."""

    @functools.wraps(command)
    def wrapped(*args: Any, **settings: Any) -> None:
        try:
            command(*args, **settings)
        except KeyboardInterrupt as stop:
            more = f"; {stop}" if stop.args else ""
            if command in (protocol, tune, embed, index):
                more = "; rerun the same command to resume"
            if rank() == 0:
                PlainConsole(stderr=True).print(f"interrupted{more}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None

    return wrapped


for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(cls=Command, rich_help_panel=panel)(interruptible(command))


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench() -> None:
    """Report that the benchmarks have moved; version 0.3.0 removes this command."""
    raise ConfigError("bench: no longer a command. Run `python -m benchmarks NAME` in a checkout of the repository.")


datasets_app = typer.Typer(name="datasets", help=datasets.HELP, cls=Group, no_args_is_help=True)
for name, subcommand in datasets.COMMANDS.items():
    datasets_app.command(name, cls=Command)(interruptible(subcommand))
app.add_typer(datasets_app, rich_help_panel="Reproduce")


def _version(value: bool) -> None:
    if value:
        print(f"winnow {winnow.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version"),
) -> None:
    if not is_alone() and context.invoked_subcommand != "train":
        raise ConfigError(
            f"torchrun: only `winnow train` runs in several processes. Start `winnow {context.invoked_subcommand}` "
            "without it."
        )


def run() -> None:
    """Run the command line.

    An error that the user can fix is printed as one line, without a traceback.
    """
    err = PlainConsole(stderr=True)
    _configure_warnings(err)
    try:
        sys.exit(app(prog_name="winnow", standalone_mode=False))
    except WinnowError as error:
        report_error(error, err)
        sys.exit(error.exit_code)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        elif rank() == 0:
            print_error(usage_message(error), err)
        sys.exit(error.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print_error(OUT_OF_MEMORY.format(reason=memory_reason(error)), err)
        sys.exit(1)
    except OSError as error:  # without a more specific message
        if not isinstance(error, BrokenPipeError):
            print_error(str(error), err)
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


def _configure_warnings(err: Console) -> None:
    """Print warnings of winnow as one line each, and hide warnings of the libraries."""
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric.utilities").setLevel(logging.ERROR)  # the other level is reset on import
    if rank() > 0:
        warnings.filterwarnings("ignore")  # the first process prints them
    if not is_alone():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns if all parameters are used
    warnings.filterwarnings("ignore", module=r"(lightning|lightning_fabric|torch|timm|torchvision)(\..*)?")

    def show(message: Warning | str, category: type[Warning], filename: str, *_: object) -> None:
        if os.sep + "winnow" + os.sep in filename or category is UserWarning:
            err.print(f"[bold yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)

    warnings.showwarning = show  # type: ignore[assignment]
