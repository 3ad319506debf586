"""Sweeps: runs of all combinations of settings, and import of recorded runs.

`plan.yaml` contains the settings of all runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from winnow.errors import ConfigError, DataError, ModelError, add_component_hint
from winnow.files import make_folder, parse_json, read_text
from winnow.integrity import check_listed, write_checked_text
from winnow.training.config import EARLIER_VALUES, RunConfig, first_difference, read_recorded
from winnow.training.objective import check_components, check_objective
from winnow.training.overrides import load_config
from winnow.training.results import RunResult, ValidationEntry
from winnow.training.run_dir import RunDir

PLAN_FILE = "plan.yaml"

_CURVES = {"": "val", "raw ": "raw", "test ": "test", "raw test ": "raw_test"}
VALIDATION_COLUMNS = {
    **{f"{start}{metric}": f"{group}/{metric}" for start, group in _CURVES.items() for metric in ("MAP@R", "P@1")},
    "lr": "lr",
}
"""Columns of a recorded run's validations, such as `raw test MAP@R`, and their keys in the log."""

_AUTO = {
    "backbone.train": "auto", "train.lr": None, "train.eval_steps": None, "train.batch_size": None,
    "train.average": None, "references.lr_multiplier": None,
}  # fmt: skip
"""Keys and values of settings that depend on the machine or the data."""

_RESOLVED = ("image.resize", "image.crop", "backbone.stride")
"""Keys of settings that depend on the network and the data unless they are set."""

_COUNTED = ("unit", "max_steps", "freeze_backbone_steps", "warmup_steps", "milestones")
"""Keys of `train` that a run which was requested in epochs has in steps; they depend on the data."""

_RECORD_KEYS = ("method", "seed", "fold", "run", "validations")
"""Keys of a recorded run that are not part of its result."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    assignment: Mapping[str, str]  # swept keys and their values, as written
    config: RunConfig
    run_dir: RunDir

    @property
    def name(self) -> str:
        """The assignment, as `seed=0,pooling=gsp`."""
        return _name(self.assignment)

    def method(self) -> str:
        """Return the assignment without the seed: runs of one method are averaged."""
        return _name({key: value for key, value in self.assignment.items() if key != "seed"}) or "all seeds"


def plan_runs(folder: Path, file: str | None, overrides: Sequence[str], sweep: Sequence[str]) -> list[PlannedRun]:
    """Plan the runs of all combinations of lists such as `seed=0,1,2`.

    Args:
        folder: Folder of the run folders.
        file: Config file of all runs.
        overrides: Settings `KEY=VALUE` of all runs.
        sweep: Lists `KEY=A,B`; the last one changes fastest.

    Raises:
        ConfigError: If a list has another form, a key is unknown, or a value is invalid.
    """
    lists: dict[str, list[str]] = {}
    for text in sweep:
        key, separator, values = text.partition("=")
        if not separator or not key or not values:
            raise ConfigError(f"sweep: expected KEY=VALUE,VALUE,..., got '{text}'. Name a key and its values.")
        if key in lists:
            raise ConfigError(f"sweep: duplicate key {key}. Name all its values in one list.")
        lists[key] = at_commas(values)
    runs = []
    for combination in product(*lists.values()):
        assignment = dict(zip(lists, combination, strict=True))
        # A component's name before its settings: a name removes the settings of another component.
        ordered = sorted(assignment.items(), key=lambda item: item[0].count("."))
        config = load_config(file, [*overrides, *(f"{key}={value}" for key, value in ordered)])
        check_objective(config)
        check_components(config)
        runs.append(PlannedRun(assignment, config, RunDir(folder / _name(assignment).replace("/", "_"))))
    names = [run.run_dir.path.name for run in runs]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise ConfigError(f"sweep: the run {duplicate} occurs twice. Remove a repeated value.")
    return runs


def write_plan(folder: Path, runs: Sequence[PlannedRun]) -> None:
    """Write the plan of a sweep, which `read_plan` reads to start missing runs.

    Raises:
        ConfigError: If the folder already contains runs.
    """
    started = [run.run_dir.path for run in runs if run.run_dir.config_file.exists()]
    if (folder / PLAN_FILE).exists() or RunDir(folder).config_file.exists() or started:
        # A run with other settings would be resumed, or its result read, as one of these.
        where = started[0] if started else folder
        raise ConfigError(
            f"{where}: folder already contains runs. Resume them or choose another folder.", hint="existing_run"
        )
    make_folder(folder)
    # The folder is last: an entry without it was cut off.
    entries = [
        {
            "config": _planned_settings(run.config),
            "choices": dict(run.assignment),
            "folder": run.run_dir.path.name,
        }
        for run in runs
    ]
    write_checked_text(folder / PLAN_FILE, f"{_head(runs)}\n{yaml.safe_dump(entries, sort_keys=False)}")


def _planned_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that were set, because some defaults depend on the data, and those that date the plan."""
    settings, every = config.model_dump(mode="json", exclude_unset=True), config.model_dump(mode="json")
    for section in (place for place in EARLIER_VALUES if "=" not in place):  # components name all settings
        values = {name: every[section][name] for name in EARLIER_VALUES[section]}
        settings[section] = {**settings.get(section, {}), **values}
    return settings


def is_plan(folder: Path) -> bool:
    """Return whether a folder contains a sweep."""
    return (folder / PLAN_FILE).is_file()


def read_plan(folder: Path) -> list[PlannedRun]:
    """Read the runs of a sweep; runs that have started use the config of their folder.

    Raises:
        ModelError: If the plan is missing or damaged.
        ConfigError: If a setting of the plan is invalid.
    """
    file = folder / PLAN_FILE
    check_listed(file, remedy="Restore it, or resume its runs one by one.")
    try:
        text = read_text(file)
        entries: list[dict[str, Any]] = yaml.safe_load(text)
        read = [(entry["choices"], entry["config"], RunDir(folder / entry["folder"])) for entry in entries]
        if any(run_dir.path.parent != folder or run_dir.path.name == ".." for _, _, run_dir in read):
            raise ValueError  # the folder of a run leads out of the sweep
        # A file that is cut off would read with default settings and missing runs.
        if not text.endswith("\n") or (text.startswith("#") and not text.startswith(f"{_head(read)}\n")):
            raise ValueError
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError, RecursionError):
        raise ModelError(f"{file}: file missing or damaged. Restore it, or resume its runs one by one.") from None
    try:
        planned = {run_dir: read_recorded(tree) for _, tree, run_dir in read if not run_dir.config_file.is_file()}
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}{add_component_hint(error)}") from None
    return [
        PlannedRun(assignment, planned[run_dir] if run_dir in planned else run_dir.read_config(), run_dir)
        for assignment, _, run_dir in read
    ]


def check_same(config: RunConfig, run_dir: RunDir) -> None:
    """Check that a run in a folder was made with a config.

    Raises:
        ConfigError: If a setting differs; the message names the first.
    """
    other = first_run_difference(config, run_dir.read_config(), run_dir.read_result())
    if other is not None:
        raise ConfigError(
            f"{run_dir.path}: the run was made with another {other}. Choose another folder, or remove this one."
        )


def first_run_difference(config: RunConfig, made: RunConfig, result: RunResult | None) -> str | None:
    """Return the first setting in which a run differs from a config, or None.

    Settings that depend on the data or the machine may have any value unless they are set. All others have their
    default.

    Args:
        config: Requested config.
        made: Config of the run.
        result: Result of the run; None if it is not finished.
    """
    requested, present = config.model_dump(mode="json"), made.model_dump(mode="json")
    for key, auto in _AUTO.items():
        section, name = key.split(".")
        if name in requested[section] and requested[section][name] == auto:
            requested[section][name] = present[section].get(name)  # not left out: components are compared as a whole
    for section, name in (key.split(".") for key in _RESOLVED):
        if name not in getattr(config, section).model_fields_set:
            del requested[section][name]
    if config.train.unit == "epochs":
        for name in _COUNTED:
            del requested["train"][name]
    classes = present["train"]["classes_per_batch"]
    if classes < requested["train"]["classes_per_batch"] and _has_all_classes(classes, result):
        del requested["train"]["classes_per_batch"]
    batch, most = present["train"]["batch_size"], config.train.images_per_batch
    limited = batch is not None and batch < most and _has_all_images(batch, result)
    if config.train.sampler == "random" and (limited or batch == most):
        del requested["train"]["batch_size"]
    different = first_difference(requested, present)
    if different is None:
        return None
    values = [_at(tree, different) for tree in (present, requested)]
    return different if values[0] == values[1] else f"{different} ({values[0]} there, {values[1]} here)"


def _at(tree: Any, key: str) -> Any:
    """Return the value of a dotted key, or None.

    A key is missing, or is a pattern that contains dots.
    """
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _has_all_classes(count: int, result: RunResult | None) -> bool:
    """Return whether a run trains on this many classes.

    An unfinished run compares its checkpoint when it resumes.
    """
    return result is None or result.data.classes.get("train") == count


def _has_all_images(count: int, result: RunResult | None) -> bool:
    """Return whether a run trains on this many images, which limit its random batches."""
    return result is None or result.data.images.get("train") == count


def _head(runs: Sequence[Any]) -> str:
    return f"# {len(runs)} runs"


def _name(assignment: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in assignment.items())


def at_commas(text: str) -> list[str]:
    """Split a list at its commas, except at commas inside brackets."""
    values, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in ")}]")
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return values


def import_runs(runs: Sequence[PlannedRun], file: Path) -> int:
    """Import finished runs from a result file into missing run folders.

    An imported run has its config, result, validations, and provenance, but no model and no embeddings.

    Args:
        runs: Planned runs; a record belongs to the run with the same assignment.
        file: `table.json` of a protocol or the JSON file of a study.

    Returns:
        The number of planned runs that the file contains.

    Raises:
        DataError: If the file contains no complete runs.
        ConfigError: If it contains none of the planned runs, or one with different settings. Nothing is written then.
    """
    found = []
    for record in read_records(file):
        run = next((run for run in runs if _matches(record, run)), None)
        if run is not None:
            values = {key: value for key, value in record.items() if key not in _RECORD_KEYS}
            try:
                found.append((run, RunResult.from_dict(values), _history(record.get("validations", {}))))
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{file}: run {run.name} is damaged. Restore the file.") from None
    for run, result, _ in found:
        other = first_run_difference(run.config, read_recorded(result.config), result)
        if other is not None:
            raise ConfigError(f"{file}: run {run.name} was made with another {other}. Import runs of equal settings.")
    if not found:
        raise ConfigError(f"{file}: none of the planned runs is in this file. Choose another file.")
    for run, result, history in found:
        if not run.run_dir.config_file.exists():
            run.run_dir.create(read_recorded(result.config))
            run.run_dir.write_history(history)
            run.run_dir.write_result(result)
    return len(found)


def read_records(file: Path) -> list[dict[str, Any]]:
    """Return the finished runs that a result file contains.

    Raises:
        DataError: If the file cannot be read or lacks the settings of its runs.
    """
    check_listed(file, error=DataError)
    try:
        records: list[dict[str, Any]] = parse_json(read_text(file))["runs"]
        complete = all({"config", "metrics", "best_step", "steps"} <= set(record) for record in records)
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{file}: no runs in this file. Choose the table.json of a protocol or the JSON file of a study."
        ) from None
    if not complete:
        raise DataError(f"{file}: the file lacks the settings of its runs. Choose a file with complete runs.")
    return records


def _matches(record: Mapping[str, Any], run: PlannedRun) -> bool:
    return all(str(record.get(key)) == value for key, value in run.assignment.items())


def validation_columns(history: Sequence[ValidationEntry]) -> dict[str, list[float]]:
    """Return step and metrics of each validation by columns, and the learning rate if it changes.

    A column exists if all validations have it. Before the first step there is no average, so the weights are both.
    """
    entries = [{**entry, **_before_first_step(entry)} for entry in history]
    columns = {name: key for name, key in VALIDATION_COLUMNS.items() if all(key in entry for entry in entries)}
    if not entries:  # of a run that was imported without its validations
        return {}
    return {
        "step": [entry["step"] for entry in entries],
        **{name: [recorded_digits(entry[key]) for entry in entries] for name, key in columns.items()},
    }


def recorded_digits(value: float) -> float:
    """Return a metric with the six digits that a record has."""
    return float(f"{value:.6g}")


def _before_first_step(entry: ValidationEntry) -> dict[str, float]:
    if entry.step > 0:
        return {}
    groups = {"raw": entry.val, "raw_test": entry.test}
    return {f"{group}/{metric}": value for group, each in groups.items() for metric, value in each.items()}


def _history(validations: Mapping[str, Sequence[float]]) -> list[ValidationEntry]:
    """Return the log of a record: its columns, row by row."""
    names = [VALIDATION_COLUMNS.get(name, name) for name in validations]
    rows = zip(*validations.values(), strict=True)
    return [ValidationEntry.from_dict(dict(zip(names, row, strict=True))) for row in rows]
