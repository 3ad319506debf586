"""Hyperparameter search with Optuna: space, resumable study, importance."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from winnow.errors import ConfigError, MissingExtraError, ModelError, TrainingError
from winnow.files import lock, make_folder
from winnow.models.config import Section, section_of
from winnow.training import Callback, RunConfig, RunDir, load_config, train
from winnow.training.build import resolve_config
from winnow.training.cache import RunCache
from winnow.training.config import first_difference, make_config
from winnow.training.objective import check_components, check_objective
from winnow.training.sweep import check_same

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")
_STUDY = "winnow"  # name of the study in its database, and key of the settings it was started with

Value: TypeAlias = float | int | str
"""Value of a searched key."""
Values: TypeAlias = Mapping[str, Value]
"""Values of a trial by searched key."""


@dataclass(frozen=True)
class Range:
    """Interval of numbers on a linear or logarithmic scale.

    Numbers are integers if both bounds are integers.
    """

    low: float
    high: float
    log: bool
    whole: bool

    @property
    def first(self) -> Value:
        """Lower bound."""
        return int(self.low) if self.whole else self.low

    def suggest(self, trial: Trial, key: str) -> Value:
        """Let an Optuna trial choose a value."""
        if self.whole:
            return int(trial.suggest_int(key, int(self.low), int(self.high), log=self.log))
        return float(trial.suggest_float(key, self.low, self.high, log=self.log))


@dataclass(frozen=True)
class Choice:
    """List of values."""

    values: tuple[str, ...]

    @property
    def first(self) -> Value:
        """First value."""
        return self.values[0]

    def suggest(self, trial: Trial, key: str) -> Value:
        """Let an Optuna trial choose a value."""
        return str(trial.suggest_categorical(key, self.values))


Space: TypeAlias = Mapping[str, Range | Choice]
"""Searched config keys."""


def parse_space(overrides: Sequence[str]) -> tuple[dict[str, Range | Choice], list[str]]:
    """Separate searched keys from fixed overrides.

    Searched keys are `train.lr=1e-6..1e-3:log` or `loss=c2|ms`.

    A searched key is removed from the fixed overrides.

    Raises:
        ConfigError: If a range is empty, or a key has two ranges.
    """
    space: dict[str, Range | Choice] = {}
    fixed = []
    for override in overrides:
        key, _, text = override.partition("=")
        match = _RANGE.fullmatch(text)
        if match is None and "|" not in text:
            fixed.append(override)
            continue
        if key in space:
            raise ConfigError(f"{key}: duplicate range. Search one range per key.")
        if match is None:
            space[key] = Choice(tuple(text.split("|")))
            continue
        low, high, log = float(match[1]), float(match[2]), match[3] is not None
        if low >= high:
            raise ConfigError(f"{override}: expected LOW < HIGH, got {match[1]} and {match[2]}. Swap the bounds.")
        if log and low <= 0:
            raise ConfigError(f"{override}: expected LOW > 0 on a logarithmic scale, got {match[1]}. Raise it.")
        whole = all(re.fullmatch(r"[-+]?\d+", bound) for bound in (match[1], match[2]))
        space[key] = Range(low, high, log, whole)
    return space, [override for override in fixed if override.partition("=")[0] not in space]


@dataclass(frozen=True)
class Search:
    """A search on validation classes.

    Its folder holds one run per trial and the study's database.
    """

    file: str | None  # config file of all trials
    overrides: Sequence[str]  # of all trials
    space: Space
    folder: Path

    @property
    def database(self) -> Path:
        """Database of the Optuna study."""
        return self.folder.resolve() / "search.db"

    def to_overrides(self, values: Values) -> list[str]:
        """Return the overrides of a trial, which follow the config file."""
        # A component's name before its settings: a name removes the settings of another component.
        chosen = sorted(values.items(), key=lambda item: item[0].count("."))
        return [*self.overrides, *(f"{key}={value}" for key, value in chosen)]

    def config(self, values: Values) -> RunConfig:
        """Return the config of a trial.

        Raises:
            ConfigError: If a key or value is invalid, or the test classes are used for validation.
        """
        config = load_config(self.file, [*self.to_overrides(values), "train.run_test=false"])
        if config.data.val_classes == "test":
            raise ConfigError("data.val_classes: a search on the test classes is biased. Choose validation classes.")
        check_objective(config)
        check_components(config)
        return config

    def first_config(self) -> RunConfig:
        """Return the config of the first value of every searched key."""
        return self.config({key: searched.first for key, searched in self.space.items()})

    def run(
        self,
        trials: int,
        *,
        callback: Callable[[int], Callback] = lambda number: Callback(),
        on_end: Callable[[int, Values, float | None], None] = lambda number, values, score: None,
        cache: RunCache | None = None,
    ) -> Study:
        """Run trials until the study has a number of them.

        Interrupted trials resume from their checkpoints.

        Args:
            trials: Number of trials, earlier calls included.
            callback: Returns the callback of a trial's run.
            on_end: Called after each trial with its number, values, and best validation score (None if it failed).
            cache: Data that all trials share; by default each trial loads its own.

        Raises:
            ConfigError: If the folder contains a search with other settings.
            ModelError: If the database is damaged or cannot be accessed.
            OutputError: If another process searches in the folder.
            MissingExtraError: If Optuna is not installed.
        """
        optuna = _import_optuna()
        make_folder(self.folder)
        # A separate lock file: closing the database, even without a lock on it, releases the locks of SQLite.
        with lock(self.folder / "search.lock", f"searching in {self.folder}"), storage_errors(self.database):
            study = self.open()
            self._check_scores(study)
            # No other process has the lock, so running trials were interrupted.
            for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
                study.enqueue_trial(trial.params, skip_if_exists=False)
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            states = [optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED]
            while (count := len(study.get_trials(deepcopy=False, states=states))) < trials:
                # Draws depend on the number of finished trials only, so a resumed search draws the same values.
                study.sampler = optuna.samplers.TPESampler(seed=count, multivariate=True, constant_liar=False)
                trial = study.ask()
                values = {key: searched.suggest(trial, key) for key, searched in self.space.items()}
                score = self._score(values, callback(trial.number), cache)
                if score is None:  # the loss was not finite: a result as well, and not to be repeated
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                else:
                    study.tell(trial, score)
                on_end(trial.number, values, score)
        return study

    def open(self) -> Study:
        """Open or create the study of this search.

        Raises:
            ConfigError: If the folder contains a search with other settings.
            ModelError: If the database is damaged or cannot be accessed.
        """
        optuna = _import_optuna()
        make_folder(self.folder)
        first = self.first_config()
        fixed = flat(first)
        searched = {key: value for key, value in fixed.items() if key in self.space}
        requested = {
            "space": {key: asdict(one) for key, one in self.space.items()},
            "config": {key: value for key, value in fixed.items() if key not in searched},
        }
        requested = json.loads(json.dumps(requested))
        with storage_errors(self.database):
            study = optuna.create_study(
                study_name=_STUDY, storage=f"sqlite:///{self.database}", direction="maximize", load_if_exists=True
            )
            started = study.user_attrs.get(_STUDY, requested)
            same_space = started["space"] == requested["space"]
            other = changed_setting(first, started["config"] | searched) if same_space else "ranges"
            if other is not None:
                raise ConfigError(
                    f"{self.folder}: folder contains a search with other {other}. Choose another folder.",
                    hint="search_folder",
                )
            study.set_user_attr(_STUDY, requested)
        return study

    def _check_scores(self, study: Study) -> None:
        """Check that finished trials have the scores of their runs; a run that was removed is not compared.

        Raises:
            ModelError: If one has another score.
        """
        for trial in study.get_trials(deepcopy=False):
            result = None if trial.value is None else self.run_dir(trial.params).read_result()
            if result is not None and trial.value != result.metrics["val"][self.config(trial.params).train.monitor]:
                raise ModelError(
                    f"{self.database}: trial {trial.number} has another score than {self.run_dir(trial.params).path}, "
                    "so the file is damaged. Remove it; finished trials are found again by their folders."
                )

    def run_dir(self, values: Values) -> RunDir:
        """Return the run folder of a trial; equal values have the same folder."""
        text = json.dumps(values, sort_keys=True)
        return RunDir(self.folder / f"trial-{hashlib.sha256(text.encode()).hexdigest()[:12]}")

    def _score(self, values: Values, callback: Callback, cache: RunCache | None) -> float | None:
        """Train or resume the run of a trial, and return its score.

        The score is None if training failed.
        """
        folder, config = self.run_dir(values), self.config(values)
        if folder.config_file.is_file():  # the database may be new and the run of another search
            check_same(config, folder)
        result = folder.read_result()
        if result is None:
            try:
                started = folder.config_file.is_file()
                result = train(config, folder, resume=started, callback=callback, cache=cache)
            except TrainingError as error:
                callback.message(str(error))
                return None
        folder.drop_checkpoint()
        return float(result.metrics["val"][config.train.monitor])


def importances(study: Study) -> dict[str, float]:
    """Return the PED-ANOVA importance of each key; they sum to 1.

    The result is empty if there are too few different trials.
    """
    optuna = _import_optuna()
    from optuna.importance import PedAnovaImportanceEvaluator

    try:
        found: dict[str, float] = optuna.importance.get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator()
        )
    except (ValueError, RuntimeError):
        return {}
    return found


def flat(config: RunConfig) -> dict[str, Any]:
    """Return the set values of a config by dotted key."""
    found: dict[str, Any] = {}

    def walk(tree: Any, prefix: str) -> None:
        if isinstance(tree, dict) and tree:
            for key, value in tree.items():
                walk(value, f"{prefix}.{key}" if prefix else str(key))
        else:
            found[prefix] = tree

    walk(config.model_dump(mode="json", exclude_unset=True), "")
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of dotted keys: the inverse of `flat`.

    Only sections are split at dots, because parameter patterns contain dots.
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        section: type[Section] | None = RunConfig
        node, rest = tree, key
        while section is not None:
            name, _, rest = rest.partition(".")
            field = section.model_fields.get(name)
            section = section_of(field) if field is not None and rest else None
            if rest:
                node = node.setdefault(name, {})
            else:
                node[name] = value
        if rest:
            node[rest] = value
    return tree


def changed_setting(requested: RunConfig, started: Mapping[str, Any]) -> str | None:
    """Return the first setting in which a search was started differently, or None.

    Settings that did not exist when the search was started have their defaults.

    Args:
        requested: Config with some values of the searched keys.
        started: Set values of the started search by dotted key, with the same values of the searched keys.
    """
    try:
        made = make_config(nested(started))
    except ConfigError as error:
        return f"settings, which this version rejects ({error})"
    # The second comparison: image.crop and others differ from their default if they are left to the data.
    key = first_difference(_dump(requested), _dump(made)) or first_difference(
        _dump(resolve_config(requested)), _dump(resolve_config(made))
    )
    return None if key is None else f"settings, first {key}"


def _dump(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


@contextmanager
def storage_errors(database: Path) -> Iterator[None]:
    """Convert errors of Optuna's storage.

    Raises:
        ModelError: If the database is damaged, locked, not accessible, or of another version of Optuna.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DatabaseError, OperationalError

    try:
        yield
    except (StorageInternalError, DatabaseError) as error:
        # Optuna wraps errors of its transactions, but not errors of opening the file.
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        if isinstance(cause, DatabaseError) and not isinstance(cause, OperationalError):
            raise ModelError(
                f"{database}: file damaged. Remove it; finished trials are found again by their folders."
            ) from None
        reason = cause.orig if isinstance(cause, DatabaseError) else cause or error
        # Removal is no advice here: another process may be writing to it.
        raise ModelError(
            f"{database}: file cannot be read or written ({reason}). Check that no other search uses it, that you may "
            "write to it, and that the disk is not full. Then run the search again to resume."
        ) from None
    except RuntimeError as error:
        if "table schema" not in str(error):  # no other sign distinguishes it
            raise
        raise ModelError(
            f"{database}: made by another version of Optuna. Install that version, or remove the file and start again."
        ) from None


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "optuna", "a hyperparameter search") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
