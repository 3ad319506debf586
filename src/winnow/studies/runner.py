"""The one runner of studies: plan, import, train, measure, check claims, report."""

from __future__ import annotations

import fnmatch
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError, DataError, MissingExtraError, WinnowError, did_you_mean
from winnow.studies.scores import Scores, check_claims, effect_rows
from winnow.studies.settings import PLAIN_WEIGHTS
from winnow.studies.spec import (
    ClaimRecord,
    Effects,
    GridStudy,
    Measurement,
    Scale,
    Study,
    StudyReport,
    StudyRequest,
    Variant,
)
from winnow.training import RunDir, load_config
from winnow.training.overrides import Overrides
from winnow.training.parallel import RunOutcome, train_in_parallel
from winnow.training.results import Provenance, RunResult, collect_provenance
from winnow.training.sweep import PlannedRun, check_same, import_runs

RECORDED = (
    "command",
    "commit",
    "machine",
    "versions",
    "config",
    "metrics",
    "steps",
    "best_step",
    "seconds",
    "problems",
)
"""Keys of a run's result that the JSON file of a study keeps."""


@dataclass(frozen=True)
class StudyRun:
    """Finished run of a variant."""

    variant: str
    seed: int
    result: RunResult
    run_dir: RunDir | None = None  # None for a run that was read from a result file
    measured: Mapping[str, float | None] = field(default_factory=dict)  # by the study, with the trained model

    def percent(self, metric: str = "MAP@R") -> float:
        """Return a metric on the test classes in percent."""
        return 100 * self.result.metrics["test"][metric]

    def record(self) -> dict[str, Any]:
        """Return the run as the JSON file of a study holds it."""
        values = self.result.to_dict()
        recorded = {key: values[key] for key in RECORDED if key in values}
        measured = {"measured": dict(self.measured)} if self.measured else {}
        return {"method": self.variant, "seed": self.seed, **recorded, **measured}


Runs = Mapping[str, Sequence[StudyRun]]
"""Finished runs by variant; a variant without runs has an empty list."""


def run_study(study: Study, request: StudyRequest, *, note: str = "") -> StudyReport:
    """Measure a study and check its claims.

    Args:
        study: What to run.
        request: Size, folders, and settings.
        note: Sentence about these data or settings for the report.

    Raises:
        ConfigError: If the request does not fit the study.
        DataError: If data are missing, or no run is finished.
    """
    check_request(study, request)
    provenance = collect_provenance()  # now: another commit may be made before a long study ends
    measured = study.measure(request)
    finished = measured.runs or measured.exact
    if measured.planned and not finished:  # an empty table would replace a full one
        remedy = "Fix the errors above, and run it again" if request.train else "Train its runs first"
        raise DataError(f"{request.runs}: no run of the study {study.name} is finished. {remedy}.")
    return make_report(study, request, measured, provenance, note=note)


def make_report(
    study: Study, request: StudyRequest, measured: Measurement, provenance: Provenance, *, note: str = ""
) -> StudyReport:
    """Return the report of a measurement."""
    scale = request.scale
    claims = [] if scale.trial else check_claims(study.claims, measured, scale, study.metric)
    asked = request.overrides.to_args()
    settings = {"small": request.quick, **measured.settings, **({"asked": asked} if asked else {})}
    content = {
        "name": study.stem, "title": study.title, "setting": scale.setting, "settings": settings,
        "claims": [ClaimRecord.of(one) for one in claims], "rows": measured.rows, "missing": measured.missing,
        "todo": describe_missing(measured, request.command(study.name)), "runs": measured.runs, "note": note,
    }  # fmt: skip
    filled = {key: value for key, value in content.items() if value or key == "rows"}
    report = {**provenance.to_dict(), **filled, **measured.details, "figures": study.figures(measured)}
    return StudyReport.from_dict(report)


def describe_missing(measured: Measurement, command: str) -> str:
    """Return one sentence with the number of finished runs and the command that trains the others; "" if all are."""
    left = sum(map(len, measured.missing.values()))
    if not left:
        return ""
    return f"{measured.planned - left} of {measured.planned} runs finished. Run the rest with `{command}`."


def check_request(study: Study, request: StudyRequest) -> None:
    """Check that a study has what a request chooses.

    Raises:
        ConfigError: If it has not.
    """
    chosen = [
        *request.overrides.to_args(),
        *request.variants,
        *map(str, request.seeds or ()),
        *map(str, request.imports),
    ]
    if chosen and not study.takes_overrides:
        raise ConfigError(f"study {study.name}: it has no runs that take {chosen[0]}. Leave it out.")
    if request.data is not None and not request.scale.needs.has_folder:
        raise ConfigError(
            f"study {study.name}: its {request.scale.name} size reads no data folder, got {request.data}. Leave it out."
        )


# --- Grids ------------------------------------------------------------------------------------------------------------


def plan_grid(study: GridStudy, request: StudyRequest) -> list[tuple[Variant, int, PlannedRun]]:
    """Return the runs of a grid in the order of training: all variants with the first seed, then with the second.

    Raises:
        ConfigError: If the request sets what the study varies, or a run folder has other settings.
    """
    variants = list(study.variants(request.scale))
    _check_overrides(variants, request.overrides)
    located = request.scale.needs.prepare(request)
    return [
        (variant, seed, _plan_run(variant, seed, request, located))
        for seed in request.scale.seeds
        for variant in variants
    ]


def train_grid(study: GridStudy, request: StudyRequest) -> dict[str, list[StudyRun]]:
    """Train the missing runs of a grid; return the finished runs of every variant.

    Raises:
        ConfigError: If the request does not fit the study, or a run folder has other settings.
        DataError: If the folder of the images or a file to import is missing.
    """
    plan = plan_grid(study, request)
    runs = [run for _, _, run in plan]
    for file in request.imports:
        request.note(f"{file}: {import_runs(runs, file)} of {len(plan)} runs imported")
    names, seeds = _chosen([variant.name for variant, _, _ in plan], request)
    if request.train:
        now = [run for variant, seed, run in plan if variant.name in names and seed in seeds]
        _check_data(now)
        for outcome in train_in_parallel(now, on_end=lambda one: request.note(_describe(one)), cache=request.cache):
            if outcome.error is not None:
                request.failed.append(outcome.run.name)
    found: dict[str, list[StudyRun]] = {variant.name: [] for variant, _, _ in plan}
    for variant, seed, run in plan:
        result = run.run_dir.read_result()
        if result is not None:
            found[variant.name].append(StudyRun(variant.name, seed, result, run.run_dir))
    return found


def grid_measurement(study: GridStudy, scale: Scale, found: Runs) -> Measurement:
    """Return the table of a grid; variants without a run are left out if another one has some."""
    variants = list(study.variants(scale))
    exact = [row for one in variants if found[one.name] for row in [exact_row(study, one, found[one.name])]]
    shown = [one for one in variants if found[one.name]] or variants
    missing = {
        one.name: left
        for one in variants
        if (left := [seed for seed in scale.seeds if seed not in {run.seed for run in found[one.name]}])
    }
    config = {} if scale.file is None else {"config": Path(scale.file).name}
    runs = [run for one in variants for run in found[one.name]]
    by_seed = {
        seed: [exact_row(study, one, [run]) for one in variants for run in found[one.name] if run.seed == seed]
        for seed in scale.seeds
    }
    machines = {run.result.machine.gpu or run.result.machine.processor for run in runs} - {""}
    rows = [table_row(study, one, found[one.name]) for one in shown]
    if isinstance(study.figure, Effects):
        rows += effect_rows(study.figure, variants, Scores(exact, study.metric, variants), study.metric)
    return Measurement(
        rows=rows, exact=exact,
        by_seed={seed: rows for seed, rows in by_seed.items() if rows}, variants=variants,
        runs=[run.record() for run in runs], missing=missing, planned=len(variants) * len(scale.seeds),
        settings={"words": scale.base.to_args(), "seeds": list(scale.seeds), **config},
        details={"trained on": sorted(machines)}, artifacts={"runs": found},
    )  # fmt: skip


def restore_grid(study: GridStudy, content: Mapping[str, Any]) -> Measurement:
    """Return the measurement of a grid from the runs of its result file.

    Columns that are read from saved models cannot be computed again; their recorded values stay.
    """
    scale = study.scales["quick" if content["settings"]["small"] else "full"]
    found: dict[str, list[StudyRun]] = {one.name: [] for one in study.variants(scale)}
    for record in content["runs"]:
        name, seed, measured = record["method"], record["seed"], record.get("measured", {})
        values = {key: value for key, value in record.items() if key not in ("method", "seed", "measured")}
        if name in found:
            found[name].append(StudyRun(name, seed, RunResult.from_dict(values), measured=measured))
    table = grid_measurement(study, scale, found)
    recorded = {row["method"]: row for row in content["rows"]}

    def filled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [
            {key: recorded.get(row["method"], {}).get(key) if value is None else value for key, value in row.items()}
            for row in rows
        ]

    return replace(table, rows=filled(table.rows), exact=filled(table.exact))


def exact_row(study: GridStudy, variant: Variant, runs: Sequence[StudyRun]) -> dict[str, Any]:
    """Return the means over runs, not rounded."""
    row: dict[str, Any] = {"method": variant.name}
    row |= {metric: statistics.fmean(run.percent(metric) for run in runs) for metric in study.metrics}
    row |= {"best step": statistics.fmean(run.result.best_step for run in runs)}
    row |= {"steps": statistics.fmean(run.result.steps for run in runs)}
    return row | {column.name: column.value(runs) for column in study.columns}


def table_row(study: GridStudy, variant: Variant, runs: Sequence[StudyRun]) -> dict[str, Any]:
    """Return a row of the table: means and standard deviations in percent, published numbers, further columns."""
    row: dict[str, Any] = {"method": variant.name, "runs": len(runs)}
    for metric in study.metrics:
        values = [run.percent(metric) for run in runs]
        row[metric] = round(statistics.mean(values), 2) if values else None
        row[f"{metric} std"] = round(statistics.stdev(values), 2) if len(values) > 1 else None
    row["best step"] = round(statistics.mean(run.result.best_step for run in runs)) if runs else None
    axes = ((study.figure.x, variant.x), (study.figure.y, variant.y))
    row |= {name: value for name, value in axes if name and value is not None}
    row |= variant.published
    return row | {column.name: column.value(runs) if runs else None for column in study.columns}


def _plan_run(variant: Variant, seed: int, request: StudyRequest, located: Overrides) -> PlannedRun:
    """Return one run; of two values of a setting the later is used: base, data, variant, request."""
    scale = request.scale
    args = [part.to_args() for part in (scale.base, located, variant.settings, request.overrides)]
    config = load_config(scale.file, [*PLAIN_WEIGHTS, *(arg for part in args for arg in part), f"seed={seed}"])
    if not config.train.run_test:
        raise ConfigError("train.run_test=false: a study compares test classes. Leave it out.")
    run_dir = RunDir(request.runs / f"{folder_name(variant.name)}-seed{seed}")
    if run_dir.config_file.is_file():
        check_same(config, run_dir)
    return PlannedRun({"method": variant.name, "seed": str(seed)}, config, run_dir)


def folder_name(variant: str) -> str:
    """Return a name that every file system accepts."""
    return "".join(letter if letter.isalnum() else "-" for letter in variant.lower())


def _check_overrides(variants: Iterable[Variant], overrides: Overrides) -> None:
    """Check that a request sets no seed, and nothing that the variants differ in."""
    varied = sorted({_section(key) for one in variants for key in one.settings.flat()})
    for key in map(_section, overrides.flat()):
        if key == "seed":
            raise ConfigError("seed: a study has its own seeds. Choose some of them with `seeds`.")
        clash = next((other for other in varied if _within(key, other) or _within(other, key)), None)
        if clash is not None:
            raise ConfigError(f"{key}: the variants of this study differ in {clash}. Leave it to the study.")


def _section(key: str) -> str:
    """Return a config key; the name of a component is the component itself."""
    return key.removesuffix(".name")


def _within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")


def _chosen(names: Sequence[str], request: StudyRequest) -> tuple[set[str], set[int]]:
    """Return the variants and the seeds to train now."""
    for pattern in request.variants:
        if not fnmatch.filter(names, pattern):
            known = "; ".join(dict.fromkeys(names))
            raise ConfigError(f"variants: none is called '{pattern}'{did_you_mean(pattern, names)} Available: {known}.")
    for seed in request.seeds or ():
        if seed not in request.scale.seeds:
            known = ", ".join(map(str, request.scale.seeds))
            raise ConfigError(f"seeds: expected some of {known}, got {seed}. Choose one of them.")
    chosen = {name for pattern in request.variants for name in fnmatch.filter(names, pattern)}
    return chosen or set(names), set(request.seeds or request.scale.seeds)


def _check_data(runs: Iterable[PlannedRun]) -> None:
    """Check, once for all runs, that the folder of the images exists."""
    for run in runs:
        path = run.config.data.path
        if "/" in path and not Path(path).exists() and not run.run_dir.is_finished:
            raise DataError(
                f"{path}: folder of the images not found. Put the images there, or name another folder.", hint="data"
            )


def _describe(outcome: RunOutcome) -> str:
    if outcome.result is None:
        return f"{outcome.run.name}: {outcome.error}\n{outcome.traceback}".rstrip()
    test = outcome.result.metrics.get("test", {})
    return f"{outcome.run.name}: MAP@R {100 * test.get('MAP@R', float('nan')):.2f} after {outcome.result.steps} steps"


# --- Several studies --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """End of one of several studies."""

    name: str
    seconds: float
    outcome: str  # "done", "skipped" if data or an extra is missing, or "failed"
    text: str  # report, or reason
    paths: tuple[Path, ...] = ()


def run_studies(
    studies: Mapping[str, Study], make_request: Callable[[Study], StudyRequest], folder: Path
) -> Iterator[Ended]:
    """Run studies one after another and write their files; a study that fails does not end the others.

    Args:
        studies: Studies by name.
        make_request: Makes the request of a study.
        folder: Folder of the files.
    """
    from winnow.studies.render import to_text, write_report

    for name, study in studies.items():
        started = time.perf_counter()
        paths: tuple[Path, ...] = ()
        try:
            report = run_study(study, make_request(study))
            paths, outcome, text = tuple(write_report(report, folder)), "done", to_text(report)
        except (DataError, MissingExtraError) as error:
            outcome, text = "skipped", str(error)
        except WinnowError as error:
            outcome, text = "failed", str(error)
        except Exception:  # a fault in one study must not cost the others
            outcome, text = "failed", traceback.format_exc()
        yield Ended(name, time.perf_counter() - started, outcome, text, paths)


def summarize(ended: Sequence[Ended]) -> str:
    """Return how several studies ended: a line for each, and the totals."""
    width = max(len(one.name) for one in ended)
    lines = [f"{one.name:<{width}}  {one.outcome:<8}  {one.seconds:6.0f} s" for one in ended]
    counts = {outcome: sum(one.outcome == outcome for one in ended) for outcome in ("done", "skipped", "failed")}
    totals = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    return "\n".join([*lines, f"{totals}, in {sum(one.seconds for one in ended) / 60:.1f} minutes"])
