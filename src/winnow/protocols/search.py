"""A search for settings by Optuna: any keys of the config, judged on validation classes alone, resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import ConfigError, MissingExtraError, TrainingError
from winnow.files import lock, make_folder
from winnow.protocols.begun import changed, flat
from winnow.protocols.memory import telling
from winnow.protocols.space import Space, first, suggest
from winnow.training import Callback, RunConfig, RunDir, load_config, train
from winnow.training.cache import RunCache
from winnow.training.objective import check_components, check_objective
from winnow.training.sweep import check_same

if TYPE_CHECKING:
    from optuna import Study

_OURS = "winnow"  # the study's name and the key of what it was begun with


@dataclass(frozen=True)
class Search:
    """Which settings are searched, and around which others.

    Attributes:
        file: A config file for all trials.
        words: Settings of all trials.
        space: What is searched, by key.
        folder: Of the trials' runs and the search's memory.
    """

    file: str | None
    words: Sequence[str]
    space: Space
    folder: Path

    @property
    def memory(self) -> Path:
        """The search's memory, a database of Optuna."""
        return self.folder.resolve() / "search.db"

    def settings(self, found: Mapping[str, Any]) -> list[str]:
        """Return the words, after the config file, of some values of the searched keys."""
        # A name before its settings: a loss given after loss.margin would drop it.
        chosen = sorted(found.items(), key=lambda one: one[0].count("."))
        return [*self.words, *(f"{key}={value}" for key, value in chosen)]

    def config(self, found: Mapping[str, Any]) -> RunConfig:
        """Return the config of some values of the searched keys.

        Raises:
            ConfigError: for a key or value that no config takes, and for validation on the test classes.
        """
        config = load_config(self.file, [*self.settings(found), "train.run_test=false"])
        if config.data.val_classes == "test":
            raise ConfigError("data.val_classes=test: settings that are chosen on the test classes say nothing")
        check_objective(config)
        check_components(config)
        return config

    def lowest(self) -> RunConfig:
        """Return the config of the lower end of every range and the first of every choice."""
        return self.config({key: first(where) for key, where in self.space.items()})

    def run(
        self,
        trials: int,
        *,
        monitor: Callable[[int], Callback] = lambda number: Callback(),
        ended: Callable[[int, Mapping[str, Any], float | None], None] = lambda number, params, value: None,
        shared: RunCache | None = None,
    ) -> Study:
        """Go on until there are that many finished trials.

        A trial that was broken off is taken up again, from the checkpoint of its run.

        Args:
            trials: How many in all.
            monitor: Makes a monitor for each trial.
            ended: Told of each trial that ends: its number, its values, and the validation's best value, if any.
            shared: What the trials have in common, made once; default each makes its own.

        Raises:
            ConfigError: when the folder holds a search for something else.
            ModelError: when the memory is damaged, or cannot be read or written.
            OutputError: when another process searches in the folder.
            MissingExtraError: where Optuna is not installed.
        """
        optuna = _optuna()
        make_folder(self.folder)
        # A file of its own: whoever closes the memory's, even without having had a lock on it, lets go of SQLite's.
        with lock(self.folder / "search.lock", f"searching in {self.folder}"), telling(self.memory):
            study = self.open()
            # No other process is at it, so that whoever ran these is gone.
            for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
                study.enqueue_trial(trial.params, skip_if_exists=False)
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            states = [optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED]
            while (count := len(study.get_trials(deepcopy=False, states=states))) < trials:
                # Its draws are a function of how many there were, so that a search that is resumed draws no others.
                study.sampler = optuna.samplers.TPESampler(seed=count, multivariate=True, constant_liar=False)
                trial = study.ask()
                found = {key: suggest(trial, key, where) for key, where in self.space.items()}
                value = self._judge(found, monitor(trial.number), shared)
                if value is None:  # such as a loss that was not finite: an answer too, and not to be asked again
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                else:
                    study.tell(trial, value)
                ended(trial.number, found, value)
        return study

    def open(self) -> Study:
        """Open the search's memory, `search.db` in its folder, or begin it.

        Raises:
            ConfigError: when the folder holds a search for something else.
            ModelError: when the memory is damaged, or cannot be read or written.
        """
        optuna = _optuna()
        make_folder(self.folder)
        lowest = self.lowest()
        values = flat(lowest)
        searched = {key: value for key, value in values.items() if key in self.space}
        asked = {
            "space": {key: asdict(where) for key, where in self.space.items()},
            "config": {key: value for key, value in values.items() if key not in searched},
        }
        asked = json.loads(json.dumps(asked))
        with telling(self.memory):
            study = optuna.create_study(
                study_name=_OURS, storage=f"sqlite:///{self.memory}", direction="maximize", load_if_exists=True
            )
            begun = study.user_attrs.get(_OURS, asked)
            other = "ranges" if begun["space"] != asked["space"] else changed(lowest, begun["config"] | searched)
            if other is not None:
                raise ConfigError(f"{self.folder} holds a search with other {other}: choose another with --out")
            study.set_user_attr(_OURS, asked)
        return study

    def place(self, found: Mapping[str, Any]) -> RunDir:
        """Return the folder of the run with some values: by the values, so that the same trial finds it again."""
        text = json.dumps(found, sort_keys=True)
        return RunDir(self.folder / f"trial-{hashlib.sha256(text.encode()).hexdigest()[:12]}")

    def _judge(self, found: Mapping[str, Any], monitor: Callback, shared: RunCache | None) -> float | None:
        """Train a run, or go on with it; return the best value of its validation."""
        folder, config = self.place(found), self.config(found)
        if folder.config_file.is_file():  # of a search whose memory is gone, perhaps one with other settings
            check_same(config, folder)
        result = folder.read_result()
        if result is None:
            try:
                begun = folder.config_file.is_file()
                result = train(config, folder, resume=begun, callback=monitor, cache=shared)
            except TrainingError as error:
                monitor.message(str(error))
                return None
        folder.drop_checkpoint()
        return float(result.metrics["val"][config.train.monitor])


def importances(study: Study) -> dict[str, float]:
    """Return how much each key decides, summing to 1; empty while there are too few different trials to say."""
    optuna = _optuna()
    from optuna.importance import PedAnovaImportanceEvaluator

    try:
        found: dict[str, float] = optuna.importance.get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator()
        )
    except (ValueError, RuntimeError):
        return {}
    return found


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "optuna", "winnow tune") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
