"""`winnow tune`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from winnow.errors import ConfigError

if TYPE_CHECKING:
    from optuna import Study

    from winnow.tuning import Search, Values

_output = partial(typer.Option, rich_help_panel="Output")


def tune(
    words: list[str] = typer.Argument(
        None, metavar="[CONFIG.yaml] [KEY=VALUE]... KEY=LOW..HIGH...", help="Config file, overrides, and searched keys"
    ),
    trials: int = typer.Option(30, "--trials", min=1, help="Trials in total, earlier calls included"),
    out_folder: Path = _output(Path("runs/tune"), "-o", "--out", metavar="DIR", help="Folder of the search"),
) -> None:
    """Search hyperparameters with Optuna, on validation classes only.

    Trains one run per trial and prints the best one with the command that trains it again, with its test classes. A
    rerun resumes: interrupted trials continue from their checkpoints.

    Searched keys:
        KEY=LOW..HIGH      integers if both bounds are integers, numbers otherwise
        KEY=LOW..HIGH:log  logarithmic scale
        'KEY=A|B'          one of several values

    Examples:
        winnow tune data=photos train.lr=1e-6..1e-3:log pooling.mu=0.1..0.9
        winnow tune data=photos 'loss=c2|ms' dim=64..512 --trials 60
    """
    from winnow.cli.console import echo
    from winnow.cli.progress import ConsoleCallback
    from winnow.cli.train import split_words
    from winnow.tuning import Search, parse_space, storage_errors

    file, overrides = split_words(words or [])
    space, fixed = parse_space(overrides)
    if not space:
        raise ConfigError("KEY=LOW..HIGH: nothing to search. Name a key, such as train.lr=1e-6..1e-3:log.")
    search = Search(file, fixed, space, out_folder)
    study = search.run(trials, callback=lambda number: ConsoleCallback(f"trial {number}"), on_end=_print_trial)
    with storage_errors(search.database):
        done = _write_trials(search, study)
        if not done:
            raise ConfigError(f"{out_folder}: all trials failed. Search other ranges in another folder.")
        best = search.run_dir(study.best_params).path
        echo(f"best of {done}: {100 * study.best_value:.2f} on validation classes, {best}")
        command = ["winnow", "train", *([] if file is None else [file]), *search.to_overrides(study.best_params)]
        echo(f"next: {shlex.join(command)}")


def _print_trial(number: int, values: Values, score: float | None) -> None:
    from winnow.cli.console import err

    shown = " ".join(f"{key}={one:.4g}" if isinstance(one, float) else f"{key}={one}" for key, one in values.items())
    result = "failed" if score is None else f"{100 * score:.2f}"
    err.print(f"trial {number}: {result}  {shown}", markup=False, highlight=False, soft_wrap=True)


def _write_trials(search: Search, study: Study) -> int:
    """Write `trials.csv` and the figures, and return the number of finished trials."""
    from winnow.files import write_text
    from winnow.report.figures import contour_figure, importance_figure
    from winnow.report.style import save
    from winnow.report.tables import Column, to_csv
    from winnow.tuning import Range, importances

    done = [trial for trial in study.trials if trial.value is not None]
    rows = [{"trial": trial.number, "value": trial.value, **trial.params} for trial in done]
    write_text(search.folder / "trials.csv", to_csv(rows, [Column(key) for key in ("trial", "value", *search.space)]))
    importance = importances(study)
    if importance:
        save(importance_figure(importance), search.folder / "importance.svg")
    keys = sorted(search.space, key=lambda key: -importance.get(key, 0.0))[:2]
    if len(keys) == 2 and done:
        first, second = keys
        points = [(trial.params[first], trial.params[second]) for trial in done]
        ranges = [search.space[key] for key in keys]
        log_x, log_y = (isinstance(one, Range) and one.log for one in ranges)
        metric = search.config(done[0].params).train.monitor
        scores = [100 * trial.value for trial in done]
        save(contour_figure((first, second), points, scores, (log_x, log_y), metric), search.folder / "contour.svg")
    return len(done)
