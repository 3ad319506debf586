"""Which runs to train together: the product of lists of settings, written down before the first begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from winnow.errors import ConfigError, ModelError, add_component_hint
from winnow.files import make_folder, write_text
from winnow.training.config import Config, make_config
from winnow.training.folder import RunFolder
from winnow.training.learner import check_objective, check_parts
from winnow.training.same import differing
from winnow.training.words import load_config

PLAN_FILE = "plan.yaml"
_LEFT_OPEN = (("backbone", "train", "auto"), ("train", "lr", None), ("train", "eval_every", None))
"""Section, name and value of settings that leave the choice to the machine or the data."""
_SETTLED = (("image", "resize"), ("image", "crop"), ("backbone", "stride"))
"""Section and name of settings that the network and the data choose where they are not named."""


@dataclass(frozen=True)
class Planned:
    """One run of a plan.

    Attributes:
        choices: What it has of each list: key to value, as written.
        config: All its settings.
        folder: Where it goes.
    """

    choices: Mapping[str, str]
    config: Config
    folder: RunFolder

    @property
    def name(self) -> str:
        """The choices, as `seed=0,pooling=gsp`."""
        return _name(self.choices)

    def method(self) -> str:
        """The choices but for the seed: what is averaged over seeds."""
        return _name({key: value for key, value in self.choices.items() if key != "seed"}) or "all seeds"


def plan_runs(folder: Path, file: str | None, words: Sequence[str], each: Sequence[str]) -> list[Planned]:
    """Make the runs of all combinations of lists such as `seed=0,1,2` and `pooling=gap,gsp`.

    Args:
        folder: Where the runs' folders go.
        file: A config file for all of them.
        words: Settings for all of them.
        each: The lists; the last one changes fastest.

    Raises:
        ConfigError: for a list that is none, an unknown key or a value that no config takes.
    """
    lists: dict[str, list[str]] = {}
    for text in each:
        key, separator, values = text.partition("=")
        if not separator or not key or not values:
            raise ConfigError(f"--each {text}: write it as KEY=VALUE,VALUE,...")
        if key in lists:
            raise ConfigError(f"--each {key} is given twice: name all its values in one list")
        lists[key] = at_commas(values)
    runs = []
    for combination in product(*lists.values()):
        choices = dict(zip(lists, combination, strict=True))
        # A name before its settings: a pooling given after pooling.mu would silently drop it, and runs that differ in
        # nothing else would be compared.
        chosen = sorted(choices.items(), key=lambda choice: choice[0].count("."))
        config = load_config(file, [*words, *(f"{key}={value}" for key, value in chosen)])
        check_objective(config)
        check_parts(config)
        runs.append(Planned(choices, config, RunFolder(folder / _name(choices).replace("/", "_"))))
    names = [run.folder.path.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"--each makes the run {twice} twice: leave out one of its values")
    return runs


def write_plan(folder: Path, runs: Sequence[Planned]) -> None:
    """Write a plan into its folder, for those of its runs that begin only after a break."""
    begun = [run.folder.path for run in runs if run.folder.config_file.exists()]
    if (folder / PLAN_FILE).exists() or RunFolder(folder).config_file.exists() or begun:
        # A run that was begun with other settings would be resumed, or its result read, as if it were one of these.
        where = begun[0] if begun else folder
        raise ConfigError(f"{where} already holds runs: go on with them by --resume, or choose another with --out")
    make_folder(folder)
    # Only what was set, because some defaults depend on the data. The folder comes last: an entry without is cut off.
    entries = [
        {
            "config": run.config.model_dump(mode="json", exclude_unset=True),
            "choices": dict(run.choices),
            "folder": run.folder.path.name,
        }
        for run in runs
    ]
    write_text(folder / PLAN_FILE, f"{_head(runs)}\n{yaml.safe_dump(entries, sort_keys=False)}")


def is_plan(folder: Path) -> bool:
    """Whether a folder holds the runs of a plan."""
    return (folder / PLAN_FILE).is_file()


def read_plan(folder: Path) -> list[Planned]:
    """Read the runs of a plan; those that have begun go by their own config."""
    try:
        text = (folder / PLAN_FILE).read_text(encoding="utf-8")
        entries: list[dict[str, Any]] = yaml.safe_load(text)
        read = [(entry["choices"], entry["config"], RunFolder(folder / entry["folder"])) for entry in entries]
        # Of a file that is cut off, settings would become defaults, and runs would be missing from the table.
        if not text.endswith("\n") or (text.startswith("#") and not text.startswith(f"{_head(read)}\n")):
            raise ValueError
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError):
        raise ModelError(f"{folder / PLAN_FILE} is damaged or cannot be read; resume its runs one by one") from None
    try:
        planned = {run: make_config(tree) for _, tree, run in read if not run.config_file.is_file()}
    except ConfigError as error:
        raise ConfigError(f"{folder / PLAN_FILE}: {error}{add_component_hint(error)}") from None
    return [Planned(choices, planned[run] if run in planned else run.read_config(), run) for choices, _, run in read]


def check_same(config: Config, place: RunFolder) -> None:
    """Refuse to take the run of a folder for one of another config.

    Raises:
        ConfigError: naming the first setting that differs.
    """
    other = difference(config, place.read_config(), place.read_result())
    if other is not None:
        raise ConfigError(f"{place.path} was made with another {other}: choose another folder, or remove this one")


def difference(config: Config, made: Config, result: Mapping[str, Any] | None) -> str | None:
    """Return the first setting that a run was made with otherwise, in words; None where it is one of this config.

    What was left to the data or the machine may be anything; what is not named has its default, and a run that was made
    with another value of it is another run.

    Args:
        config: What is asked for.
        made: What the run was made with.
        result: What it came to; None where it is not finished.
    """
    asked, there = config.model_dump(mode="json"), made.model_dump(mode="json")
    for section, name, left_open in _LEFT_OPEN:
        if asked[section][name] == left_open:
            del asked[section][name]
    for section, name in _SETTLED:
        if name not in getattr(config, section).model_fields_set:
            del asked[section][name]
    held = there["train"]["classes_per_batch"]
    if held < asked["train"]["classes_per_batch"] and _holds_all_classes(held, result):
        del asked["train"]["classes_per_batch"]
    key = differing(asked, there)
    if key is None:
        return None
    values = [_at(tree, key) for tree in (there, asked)]
    return key if values[0] == values[1] else f"{key} ({values[0]} there, {values[1]} here)"


def _at(tree: Any, key: str) -> Any:
    """Return the value of a dotted key; None where there is none, or the key of a pattern has dots of its own."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _holds_all_classes(count: int, result: Mapping[str, Any] | None) -> bool:
    """Whether that many classes are all a run trains on; of an unfinished one its checkpoint tells when it goes on."""
    return result is None or result.get("data", {}).get("classes", {}).get("train") == count


def _head(runs: Sequence[Any]) -> str:
    return f"# {len(runs)} runs"


def _name(choices: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in choices.items())


def at_commas(text: str) -> list[str]:
    """Split a list at its commas, but not at those inside brackets."""
    values, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in ")}]")
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return values
