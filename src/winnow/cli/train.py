"""`winnow train`: one run, or a sweep of runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from winnow.cli.errors import rank
from winnow.errors import ConfigError, ModelError, TrainingError

if TYPE_CHECKING:
    from winnow.models import BackboneConfig
    from winnow.training import RunConfig, RunDir, RunResult
    from winnow.training.parallel import RunOutcome
    from winnow.training.sweep import PlannedRun

_output = partial(typer.Option, rich_help_panel="Output")
_several = partial(typer.Option, rich_help_panel="Several runs")

SPLIT_TITLES = {
    "test": "test classes, not used for training",
    "val": "validation classes, because there are no test classes",
}
"""Titles of tables by split."""


def train(
    words: list[str] | None = typer.Argument(None, metavar="[CONFIG.yaml] [KEY=VALUE]..."),
    out_folder: Path | None = _output(
        None, "-o", "--out", metavar="DIR", help="Run folder [default: next free runs/DATA-POOLING-N]"
    ),
    resume: Path | None = _output(
        None, "--resume", metavar="DIR", help="Resume a run or a sweep from its last checkpoints"
    ),
    trust: bool = _output(False, "--trust", help="Import the augment.transform that a run folder names"),
    sweep: list[str] = _several(
        [], "--sweep", "--each", metavar="KEY=A,B", help="Train one run per value; repeat for a grid"
    ),
    jobs: int | None = _several(
        None, "-j", "--jobs", "--at-once", min=1, metavar="N", help="Concurrent runs [default: 4 on a GPU, 1 on a CPU]"
    ),
) -> None:
    """Train an embedding model.

    Classes are split into training, validation, and test classes; the best validation checkpoint is evaluated on the
    test classes.

    Arguments:
        CONFIG.yaml  Config file; `winnow config --yaml` prints a template
        KEY=VALUE    Override a config key; `winnow config` lists all keys

    Common overrides:
        data=PATH              folder of class folders, CSV file, or dataset name
        recipe=NAME            complete settings; `winnow recipes` lists them
        pooling=gsp            pooling layer; pooling.mu=0.3, pooling.eps=5
        loss=ms                loss; see `winnow config loss`
        backbone.train=frozen  frozen, full, or auto: full on a GPU
        train.max_steps=10000  upper limit; early stopping usually ends sooner
        seed=0                 seed of splits, batches, and initialization

    Examples:
        winnow train data=photos --out runs/first
        winnow train data=photos --sweep pooling=gap,gsp --sweep seed=0,1,2
        torchrun --nproc-per-node 4 -m winnow train data=photos
    """
    if resume is not None and (words or out_folder is not None or sweep):
        raise ConfigError("--resume: a run resumes with its own config. Remove the other arguments.")
    if sweep or (resume is not None and is_sweep(resume)):
        train_sweep(words or [], sweep, out_folder, resume, jobs, trust)
    elif jobs is not None:
        raise ConfigError("--jobs: requires several runs. Name them with --sweep.")
    else:
        train_one(words or [], out_folder, resume, trust)


def is_sweep(folder: Path) -> bool:
    """Return whether a folder contains a sweep."""
    from winnow.training.sweep import is_plan

    return is_plan(folder)


def train_one(words: Sequence[str], out_folder: Path | None, resume: Path | None, trust: bool) -> None:
    """Train or resume one run and print its metrics."""
    from winnow.cli.progress import ConsoleCallback
    from winnow.training import RunDir

    if resume is None:
        config = read_config(words)
        check_inputs([config])
        if (source := run_folder_of(words)) is not None:
            check_trust([config], source, trust)
        run_dir = RunDir(out_folder or next_free(config))
    else:
        run_dir = RunDir(resume)
        config = run_dir.read_config()
        if run_dir.is_finished:
            raise ConfigError(f"{resume}: the run is finished. Print it with `winnow evaluate {quote(str(resume))}`.")
        check_trust([config], resume, trust)
    from winnow.training import train as train_run  # slow, and not needed for an answer to a wrong setting

    with resumable(run_dir.path), ConsoleCallback() as callback:
        result = train_run(config, run_dir, resume=resume is not None, callback=callback)
    if rank() == 0:
        draw_run(run_dir, result)
        print_result(run_dir, result)


def print_result(run_dir: RunDir, result: RunResult) -> None:
    """Print the metrics of a run and of the baseline, and the next commands."""
    from winnow.cli.console import echo, echo_prose, metrics_table, out
    from winnow.cli.evaluate import PRETRAINED, default_map_row, describe_drop
    from winnow.cli.progress import ConsoleCallback

    config = result.config
    split = "test" if "test" in result.metrics else "val"
    with ConsoleCallback() as callback:
        finer = default_map_row(run_dir, None, callback) if split == "test" else {}
    rows = {
        PRETRAINED: result.untrained[split],
        **finer,
        f"trained ({config['pooling']['name']}, {config['dim']}-D)": result.metrics[split],
    }
    out.print(metrics_table(rows, f"{SPLIT_TITLES[split]} (%)"))
    if advice := advise(result.metrics["val"]["MAP@R"], result.untrained["val"]["MAP@R"], result.best_step):
        echo_prose(advice)
    if notice := describe_drop(result.metrics[split], result.untrained[split]):
        echo_prose(notice)
    if not result.prototypes_ready:
        # Step 0 precedes it with any memory.
        remedy = " Lower pooling.memory_size." if result.best_step > 0 else ""
        echo_prose(
            f"The best step, {result.best_step}, precedes the initialization of the prototypes, so the model uses "
            f"average pooling.{remedy}"
        )
    run, data = quote(str(run_dir.path)), quote(str(config["data"]["path"]))
    echo(f"run: {run_dir.path}  (best at step {result.best_step} of {result.steps})")
    echo(f"next: winnow explain {run} IMAGE...")
    echo(f"      winnow index {run} {data} -o my.index")
    echo("      winnow serve my.index")


def advise(trained: float, untrained: float, best_step: int) -> str | None:
    """Return advice if training gained nothing, by MAP@R of the validation classes."""
    if untrained == 1:
        return (
            "The pretrained backbone already retrieves every image of the validation classes, so no checkpoint can be "
            "selected. Increase data.val_fraction."
        )
    remedy = "Try train.lr=3e-5, another loss, or data with more classes."
    if best_step == 0:
        return (
            "No step improved MAP@R of the validation classes over the start, so the model is that of step 0: the "
            f"pretrained backbone with an untrained head. {remedy}"
        )
    if trained > untrained:
        return None
    return f"Training did not improve MAP@R of the validation classes over the pretrained backbone. {remedy}"


# Several runs


def train_sweep(
    words: Sequence[str],
    sweep: Sequence[str],
    out_folder: Path | None,
    resume: Path | None,
    jobs: int | None,
    trust: bool,
) -> None:
    """Plan or resume the runs of a sweep, train them, and compare them."""
    from winnow.cli.console import note
    from winnow.training.sweep import plan_runs, read_plan, write_plan

    if resume is not None:
        folder, runs = resume, read_plan(resume)
        check_trust([run.config for run in runs], resume, trust)
    else:
        file, overrides = split_words(words)
        folder = out_folder or next_free(read_config(words), "sweep")
        runs = plan_runs(folder, file, overrides, sweep)
        check_inputs([run.config for run in runs])
        if (source := run_folder_of(words)) is not None:
            check_trust([run.config for run in runs], source, trust)
        write_plan(folder, runs)
    note(f"{len(runs)} runs in {folder}", dim=True)
    with resumable(folder):
        outcomes = train_runs(runs, jobs)
    print_outcomes(folder, outcomes)


def train_runs(runs: Sequence[PlannedRun], jobs: int | None) -> list[RunOutcome]:
    """Train runs concurrently with progress bars; report failures immediately."""
    from winnow.cli.console import note
    from winnow.cli.progress import ConsoleCallback, bars
    from winnow.training.parallel import train_in_parallel

    def on_end(outcome: RunOutcome) -> None:
        callbacks[id(outcome.run)].close()  # removes bars of a run that failed before its first step
        if outcome.error is not None:
            reason = " ".join(str(outcome.error).split()) or type(outcome.error).__name__
            note(f"{outcome.traceback}failed: {outcome.run.name}: {reason}")

    # Before CUDA starts: by default streams beyond the eighth wait for the others.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    shared = bars()
    with shared:
        callbacks = {id(run): ConsoleCallback(run.name, shared) for run in runs}
        return train_in_parallel(runs, jobs=jobs, callback=lambda run: callbacks[id(run)], on_end=on_end)


def print_outcomes(folder: Path, outcomes: Sequence[RunOutcome]) -> None:
    """Draw and compare the runs that finished.

    Raises:
        TrainingError: If a run failed.
    """
    from winnow.cli.console import comparison_rows, echo, echo_prose, out
    from winnow.cli.evaluate import describe_drop

    done = [(outcome.run, outcome.result) for outcome in outcomes if outcome.result is not None]
    for run, result in done:  # only now, because drawing delays the other runs
        draw_run(run.run_dir, result)
    if done:
        out.print(comparison_rows(*comparison(done, default_maps(done))))
        for run, result in done:
            split = "test" if "test" in result.metrics else "val"
            if notice := describe_drop(result.metrics[split], result.untrained[split], run.name):
                echo_prose(notice)
        idle = [run.name for run, result in done if result.best_step == 0]
        if idle:
            echo_prose(
                f"{len(idle)} of {len(done)} runs have their best validation before the first step, so training did "
                f"not improve them: {'; '.join(idle)}"
            )
    echo(f"runs: {folder}")
    failed = [outcome.run.name for outcome in outcomes if outcome.error is not None]
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(outcomes)} runs failed ({'; '.join(failed)}). Fix the causes above, then run "
            f"`winnow train --resume {quote(str(folder))}`."
        )


def default_maps(done: Sequence[tuple[PlannedRun, RunResult]]) -> list[Mapping[str, float] | None]:
    """Return the baseline of each run on the network's default map; None for a run that uses this map.

    Runs that differ in nothing that the baseline depends on share it.
    """
    from winnow.cli.evaluate import default_map_row
    from winnow.cli.progress import ConsoleCallback

    found: dict[str, Mapping[str, float] | None] = {}
    keys = []
    with ConsoleCallback() as callback:
        for run, result in done:
            config, backbone = result.config, result.config["backbone"]
            parts = {**backbone, "train": None, "stride": backbone["stride"] is None}
            keys.append(json.dumps([config["seed"], config["data"], config["image"], parts], sort_keys=True))
            if keys[-1] not in found:
                rows = default_map_row(run.run_dir, None, callback) if "test" in result.metrics else {}
                found[keys[-1]] = next(iter(rows.values()), None)
    return [found[key] for key in keys]


def comparison(
    done: Sequence[tuple[PlannedRun, RunResult]], default_maps: Sequence[Mapping[str, float] | None] = ()
) -> tuple[list[dict[str, Any]], str]:
    """Return the baseline and each method, mean and std over seeds, and a table title.

    Args:
        done: Finished runs.
        default_maps: Baseline of each run on the network's default map, if the run uses another one.
    """
    from winnow.cli.evaluate import DEFAULT_MAP, PRETRAINED

    split = "test" if all("test" in result.metrics for _, result in done) else "val"
    methods = {
        method: [result for run, result in done if run.method() == method]
        for method in dict.fromkeys(run.method() for run, _ in done)
    }
    trained = [summarize(method, [one.metrics[split] for one in results]) for method, results in methods.items()]
    untrained = {name: [one.untrained[split] for one in results] for name, results in methods.items()}
    finer: dict[str, list[Mapping[str, float]]] = {}
    for (run, _), metrics in zip(done, default_maps, strict=False):
        if metrics is not None:
            finer.setdefault(run.method(), []).append(metrics)
    title = "test classes, not used for training" if split == "test" else "validation classes"
    return [*baselines(PRETRAINED, untrained), *baselines(DEFAULT_MAP, finer), *trained], f"{title} (%)"


def baselines(name: str, methods: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Return one table row of a baseline, or one for each method if they differ.

    Backbone and image size change the baseline, the other settings do not.
    """
    rows = [summarize(name, metrics) for metrics in methods.values()]
    distinct = [row for number, row in enumerate(rows) if row not in rows[:number]]
    if len(distinct) > 1:
        return [row | {"method": f"{row['method']}: {method}"} for row, method in zip(rows, methods, strict=True)]
    return distinct


def summarize(name: str, metrics: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return a table row: mean and standard deviation of runs."""
    from statistics import fmean, stdev

    from winnow.cli.console import METRICS

    row: dict[str, Any] = {"method": f"{name} ({len(metrics)} runs)" if len(metrics) > 1 else name}
    for metric in METRICS:
        values = [each[metric] for each in metrics]
        row[metric], row[f"{metric} std"] = fmean(values), stdev(values) if len(values) > 1 else None
    return row


# Common to both


def draw_run(run_dir: RunDir, result: RunResult) -> None:
    """Draw the curves of a run, and its CCP subproblems, into its folder.

    A damaged log is reported instead.
    """
    from winnow.cli.console import echo
    from winnow.report.figures import problem_curves, run_curves
    from winnow.report.style import save

    try:
        history = run_dir.read_history()
    except ModelError as error:
        echo(str(error))
        return
    save(run_curves(history), run_dir.path / "curves.png")
    record = result.to_dict()
    if "problems" in record:
        monitor = record["config"]["references"].get("monitor", "MAP@R")  # runs of early versions lack the key
        save(problem_curves(record["problems"], history, monitor), run_dir.path / "problems.svg")


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Add the command that resumes, with its folder, to an interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        started = any((folder / name).is_file() for name in ("config.yaml", "plan.yaml"))
        raise KeyboardInterrupt(
            f"resume with `winnow train --resume {quote(str(folder))}`" if started else "no run was started"
        ) from None


def run_folder_of(words: Sequence[str]) -> Path | None:
    """Return the run folder whose config file is the first argument, if it is one."""
    file = split_words(words)[0]
    if file is None or Path(file).name != "config.yaml":
        return None
    folder = Path(file).parent
    return folder if any((folder / name).is_file() for name in ("SHA256SUMS", "log.jsonl", "result.json")) else None


def check_trust(configs: Sequence[RunConfig], source: Path, trust: bool) -> None:
    """Raise `ConfigError` if a run folder names code to import and the user does not trust it.

    A run folder may come from somebody else. Everything else in it is read as data, never as code.
    """
    names = sorted({config.augment.transform for config in configs if config.augment.transform is not None})
    if names and not trust:
        raise ConfigError(
            f"{source}: training would import and run the code {', '.join(names)} (augment.transform). Read it, then "
            "pass --trust."
        )


def read_config(words: Sequence[str]) -> RunConfig:
    """Read an optional config file and overrides."""
    from winnow.training import load_config

    return load_config(*split_words(words))


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split arguments into an optional config file and overrides.

    Raises:
        ConfigError: If the first argument is neither, but the name of a component or key.
    """
    if not words or "=" in words[0]:
        return None, list(words)
    name = words[0]
    if not Path(name).exists() and not Path(name).suffix:
        from winnow.training.config import RunConfig

        hint = RunConfig.suggest(name, RunConfig.model_fields)
        raise ConfigError(f"{name}: expected CONFIG.yaml or KEY=VALUE{hint} `winnow config {name}` searches the keys.")
    return name, list(words[1:])


def check_inputs(configs: Sequence[RunConfig]) -> None:
    """Raise an error if a config names no data, an unknown network, or missing weights, before images are read.

    The default data would train on the bundled images for minutes.
    """
    from winnow.models.factory import check_backbone

    if any("path" not in config.data.model_fields_set for config in configs):
        raise ConfigError(
            "data: not set. Name a folder of class folders or a CSV file (winnow train data=photos), or use the "
            "bundled images (winnow train data=emoji)."
        )
    checked: list[BackboneConfig] = []
    for config in configs:
        if config.backbone not in checked:
            check_backbone(config.backbone)
            checked.append(config.backbone)


def next_free(config: RunConfig, kind: str | None = None) -> Path:
    """Return runs/DATA-POOLING-N, or DATA-KIND-N, for the first N that is free."""
    stem = f"{Path(config.data.path).stem or 'data'}-{kind or config.pooling.name}"
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder
