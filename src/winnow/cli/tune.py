"""`winnow tune`."""

from __future__ import annotations

import csv
import io
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from winnow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from winnow.protocols.search import Search


def tune(
    words: list[str] = typer.Argument(
        None,
        metavar="[CONFIG.yaml] [KEY=VALUE]... KEY=LOW..HIGH[:log]... KEY=A|B...",
        help="A config file, settings, and what to search, e.g. train.lr=1e-6..1e-3:log 'loss=c2|ms'.",
    ),
    trials: int = typer.Option(30, "--trials", min=1, help="Trials in all, those of earlier times among them."),
    out_folder: Path = typer.Option(Path("runs/tune"), "-o", "--out", help="Folder of the search; it goes on there."),
) -> None:
    """Search for settings by Optuna, on validation classes alone.

    Given again, it goes on; a trial that was broken off is taken up from its checkpoint.
    """
    from winnow.cli.console import echo, err
    from winnow.cli.progress import ConsoleCallback
    from winnow.cli.train import split_words
    from winnow.files import write_text
    from winnow.protocols.memory import telling
    from winnow.protocols.search import Search
    from winnow.protocols.space import parse_space

    file, settings = split_words(words or [])
    space, plain = parse_space(settings)
    if not space:
        raise ConfigError("name what to search, as in train.lr=1e-6..1e-3:log or 'loss=c2|ms'")
    search = Search(file, plain, space, out_folder)

    def ended(number: int, params: Mapping[str, Any], value: float | None) -> None:
        shown = " ".join(
            f"{key}={one:.4g}" if isinstance(one, float) else f"{key}={one}" for key, one in params.items()
        )
        told = "failed" if value is None else f"{100 * value:.2f}"
        err.print(f"trial {number}: {told}  {shown}", markup=False, highlight=False, soft_wrap=True)

    study = search.run(trials, monitor=lambda number: ConsoleCallback(f"trial {number}"), ended=ended)
    with telling(search.memory):
        done = [trial for trial in study.trials if trial.value is not None]
        table = io.StringIO()
        writer = csv.DictWriter(table, ["trial", "value", *space], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"trial": trial.number, "value": trial.value, **trial.params} for trial in done)
        write_text(out_folder / "trials.csv", table.getvalue())
        _draw(search, study, out_folder)
        if not done:
            raise ConfigError("every trial failed: search other ranges in another folder (--out)")
        place = search.place(study.best_params).path
        echo(f"best of {len(done)}: {100 * study.best_value:.2f} on validation classes, {place}")
        named = [] if file is None else [file]
        echo(f"next: {shlex.join(['winnow', 'train', *named, *search.settings(study.best_params)])}")


def _draw(search: Search, study: Any, folder: Path) -> None:
    """Draw what matters, and the two settings that matter most."""
    from winnow.protocols.search import importances
    from winnow.protocols.space import Range
    from winnow.report.figures import contour_figure, importance_figure
    from winnow.report.style import save

    found = importances(study)
    if found:
        save(importance_figure(found), folder / "importance.svg")
    first = sorted(search.space, key=lambda key: -found.get(key, 0.0))[:2]
    done = [trial for trial in study.trials if trial.value is not None]
    if len(first) == 2 and done:
        places = [(trial.params[first[0]], trial.params[first[1]]) for trial in done]
        spaces = [search.space[key] for key in first]
        log = [isinstance(one, Range) and one.log for one in spaces]
        metric = search.config(done[0].params).train.monitor
        values = [100 * trial.value for trial in done]
        save(contour_figure((first[0], first[1]), places, values, (log[0], log[1]), metric), folder / "contour.svg")
