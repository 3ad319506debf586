"""Comparing methods over seeds: the runs, side by side and restartable, and the table and picture they make."""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import ConfigError, DataError, nearest
from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.base import Task
from winnow.studies.outcomes import Found, lacking, percent, without_empty
from winnow.training import RunDir, load_config
from winnow.training.parallel import RunOutcome, train_in_parallel
from winnow.training.sweep import PlannedRun, check_same, import_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Method:
    """Something to compare.

    Attributes:
        name: What the table calls it.
        words: Its settings, beside those that all methods share.
        group: Methods of one group have one colour in the picture.
        facts: What the table says of it beside its numbers, such as what a document reports.
    """

    name: str
    words: Sequence[str]
    group: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Methods, and what all of them share.

    Attributes:
        methods: In the order of the table, which is that of training.
        seeds: Every method is trained with each; all methods with the first before any with the second.
        words: Settings of all methods.
        file: A config file for all of them, whose data may be elsewhere.
    """

    methods: Sequence[Method]
    seeds: Sequence[int]
    words: Sequence[str] = ()
    file: str | None = None

    def train(self, task: Task, *, at_once: int | None = None) -> dict[str, list[dict[str, Any]]]:
        """Train what is not trained yet; return the finished runs' results by the name of their method.

        Args:
            task: Has the folder of the runs: those that are finished there are read, those that were begun are resumed.
            at_once: Runs side by side.

        Raises:
            ConfigError: for a run that was made with other settings.
            DataError: where the folder to train on, or runs in a file to take them from, are not there.
        """
        plan = [(method.name, self.plan(method, seed, task)) for seed in self.seeds for method in self.methods]
        for file in task.recorded:
            task.note(f"{file} tells of {import_runs([run for _, run in plan], file)} of the {len(plan)} runs")
        names, seeds = self.wanted(task)
        if not task.only_finished:
            runs = [run for name, run in plan if name in names and run.config.seed in seeds]
            _check_data(runs)
            train_in_parallel(runs, jobs=at_once, on_end=lambda outcome: task.note(_told(outcome)), cache=task.shared)
        found: dict[str, list[dict[str, Any]]] = {method.name: [] for method in self.methods}
        for name, run in plan:
            result = run.run_dir.read_result()
            if result is not None:
                found[name].append(result.to_dict())
        return found

    def wanted(self, task: Task) -> tuple[set[str], set[int]]:
        """Return the names of the methods and the seeds that a task wants trained.

        Raises:
            ConfigError: for a pattern or a seed that there is none of.
        """
        names = [method.name for method in self.methods]
        for pattern in task.methods:
            if not fnmatch.filter(names, pattern):
                hint = nearest(pattern, names)
                raise ConfigError(f"--methods '{pattern}': no method is called so{hint}; there are: {'; '.join(names)}")
        for seed in task.seeds or ():
            if seed not in self.seeds:
                raise ConfigError(f"--seeds {seed}: this study has the seeds {', '.join(map(str, self.seeds))}")
        chosen = {name for pattern in task.methods for name in fnmatch.filter(names, pattern)}
        return chosen or set(names), set(task.seeds or self.seeds)

    def plan(self, method: Method, seed: int, task: Task) -> PlannedRun:
        """Return one run; what the task asks for goes before what the comparison says.

        Raises:
            ConfigError: for a seed, a run without a test, or what the methods differ in among what is asked for, and
                for a run of other settings.
        """
        self._check_varied(task.words)
        seeded = next((word for word in task.words if word.startswith("seed=")), None)
        if seeded is not None:
            raise ConfigError(f"{seeded}: a study has seeds of its own, of which --seeds trains some")
        where = [f"data={task.data}"] if self.file is not None and task.data is not None else []
        config = load_config(self.file, [*self.words, *where, *method.words, *task.words, f"seed={seed}"])
        if not config.train.run_test:
            raise ConfigError("train.run_test=false: a study compares on test classes; leave it out")
        place = RunDir(task.runs / f"{_plain(method.name)}-seed{seed}")
        if place.config_file.is_file():
            check_same(config, place)
        return PlannedRun({"method": method.name, "seed": str(seed)}, config, place)

    def _check_varied(self, words: Sequence[str]) -> None:
        """Refuse a setting that would make methods alike, or one of them another, under the same names."""
        varied = {_key(word) for method in self.methods for word in method.words}
        for key in map(_key, words):
            clash = next((other for other in sorted(varied) if _within(key, other) or _within(other, key)), None)
            if clash is not None:
                raise ConfigError(f"{key}: the methods of this study differ in {clash}; leave it to the study")

    def rows(self, found: Found) -> list[dict[str, Any]]:
        """Return the table: means over the seeds, in percent, their spread, and the seeds that are missing.

        Args:
            found: Results by the name of their method.
        """
        rows: list[dict[str, Any]] = []
        for method in self.methods:
            runs = found[method.name]
            row: dict[str, Any] = {"method": method.name, "runs": len(runs)}
            for name in ("MAP@R", "P@1"):
                values = percent(runs, name)
                row[name] = round(statistics.mean(values), 2) if values else None
                row[f"{name} sd"] = round(statistics.stdev(values), 2) if len(values) > 1 else None
            row["steps"] = round(statistics.mean(run["best_step"] for run in runs)) if runs else None
            row |= method.facts
            row["missing"] = lacking(self.seeds, runs)
            rows.append(row)
        return without_empty(rows, "missing")

    @styled
    def figure(self, found: Found, title: str) -> Figure:
        """Draw MAP@R of every method: a bar for the mean, a dot for each seed, a whisker for their deviation."""
        shown = [method for method in self.methods if found[method.name]]
        figure = new_figure(7.2, 1.1 + 0.27 * len(shown))
        axes = figure.subplots()
        colours = method_colors(dict.fromkeys(method.group for method in shown))
        for place, method in enumerate(shown):
            values = percent(found[method.name])
            deviation = statistics.stdev(values) if len(values) > 1 else None
            axes.barh(
                place, statistics.mean(values), xerr=deviation, color=colours[method.group], alpha=0.75, height=0.7
            )
            axes.plot(values, [place] * len(values), ".", color=INK, markersize=3)
        axes.set_yticks(range(len(shown)), [method.name for method in shown])
        axes.set_ylim(max(len(shown), 1) - 0.4, -0.6)  # from the top down
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel("MAP@R on unseen classes, percent")
        axes.set_title(title)
        if len(colours) > 1:
            handles = [axes.barh(0, 0, color=colour, alpha=0.75)[0] for colour in colours.values()]
            # Beside the bars, which may be long everywhere.
            figure.legend(handles, list(colours), loc="outside lower center", ncols=len(colours), fontsize=8)
        return figure


def _check_data(runs: Sequence[PlannedRun]) -> None:
    """Refuse, once for all runs, to train on a folder that is not there."""
    for run in runs:
        path = run.config.data.path
        if "/" in path and not Path(path).exists() and not run.run_dir.is_finished:
            raise DataError(f"this comparison trains on {path}, which is not there: put the images there, or run it "
                            "from the folder that holds it")  # fmt: skip


def _told(outcome: RunOutcome) -> str:
    if outcome.result is None:
        return f"{outcome.run.name}: {outcome.error}\n{outcome.traceback}".rstrip()
    test = outcome.result.metrics.get("test", {})
    return f"{outcome.run.name}: MAP@R {100 * test.get('MAP@R', float('nan')):.2f} after {outcome.result.steps} steps"


def _key(word: str) -> str:
    """Return the setting that a word sets; the name of a part is the part itself."""
    return word.partition("=")[0].removesuffix(".name")


def _within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")


def _plain(name: str) -> str:
    """Return a name that every file system takes."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())
