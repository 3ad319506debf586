"""The runs of a protocol: planned, restartable, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError
from winnow.protocols.allowed import check_own, check_words
from winnow.protocols.kinds import Backbone, Protocol
from winnow.protocols.methods import method_words
from winnow.protocols.sets import ProtocolSet
from winnow.protocols.variants import Variant
from winnow.training import RunDir, RunOutcome, load_config
from winnow.training.config import RunConfig
from winnow.training.objective import check_components, check_objective
from winnow.training.sweep import PlannedRun, check_same, import_runs

MOST_RUNS = 1000

Engine = Callable[[Sequence[PlannedRun], Callable[[RunOutcome], None]], list[RunOutcome]]
"""Trains runs: finished ones are read, begun ones go on; told of each that ends."""


@dataclass(frozen=True)
class Trial:
    """One run of a protocol: run `run` of model `model` (validated on that fold) of a method; both count from 1."""

    method: str
    model: int
    run: int
    planned: PlannedRun

    def result(self) -> dict[str, Any] | None:
        """Return what was measured; None where it is not finished."""
        result = self.planned.run_dir.read_result()
        return None if result is None else result.to_dict()


@dataclass(frozen=True)
class Task:
    """Which runs of a protocol are asked for.

    Attributes:
        protocol: The protocol.
        target: The set.
        methods: Names of methods, in the order of the table; with settings of their own as in `c2,train.lr=1e-4`.
        folder: Where runs and tables go.
        backbone: The network.
        root: Folder of a published set; None for where it usually is.
        words: Settings of all runs, which go before the protocol's and before those that a method's name stands for.
        models: Folds to train, from 1; None for all. The table has whatever is finished.
        runs: Runs of each to train, likewise; there may be more than the protocol has.
        note: A sentence for the table, such as what is special about the images at hand.
    """

    protocol: Protocol
    target: ProtocolSet
    methods: Sequence[str]
    folder: Path
    backbone: Backbone
    root: str | None = None
    words: Sequence[str] = ()
    models: Sequence[int] | None = None
    runs: Sequence[int] | None = None
    note: str = ""

    @property
    def network(self) -> str:
        """What tables call the backbone; settings may have put another in its place."""
        return named_backbone(self.words) or self.backbone.title

    def numbers(self) -> list[tuple[int, int]]:
        """Return the (model, run) of every method; all folds have a first run before one has a second.

        Raises:
            ConfigError: for folds or runs that the protocol does not have.
        """
        name, models = self.protocol.name, self.protocol.models
        has = f"has folds 1-{models}" if models > 1 else "has one model: leave --folds out"
        for option, asked, most, told in (
            ("--folds", self.models, models, f"the {name} protocol {has}"),
            ("--runs", self.runs, MOST_RUNS, f"runs are counted from 1, and there are at most {MOST_RUNS}"),
        ):
            wrong = next((number for number in asked or () if not 1 <= number <= most), None)
            if wrong is not None:
                raise ConfigError(f"{option} {wrong}: {told}")
        runs = max(self.protocol.runs, *(self.runs or (0,)))
        return [(model, run) for run in range(1, runs + 1) for model in range(1, self.protocol.models + 1)]

    def wants(self, trial: Trial) -> bool:
        """Whether a run is among those to train."""
        return (not self.models or trial.model in self.models) and (not self.runs or trial.run in self.runs)

    def trials(self) -> list[Trial]:
        """Plan all runs of the protocol; `wants` says which of them are to be trained.

        Raises:
            ConfigError: for settings that cannot be, and for a run that was made with others.
        """
        if not self.methods:
            raise ConfigError("name at least one method; `winnow protocol --list` shows them")
        variants = [Variant.read(method) for method in self.methods]
        twice = next((variant for variant in variants if variants.count(variant) > 1), None)
        if twice is not None:
            raise ConfigError(f"the method {twice} is named twice")
        check_words(self.words)
        for variant in variants:
            check_own(variant)
        shared = self.protocol.words(self.target, self.backbone)
        cut = {
            model: self.target.data_words(self.protocol, model, self.root)
            for model in sorted({model for model, _ in self.numbers()})
        }
        trials = []
        for method, variant in zip(self.methods, variants, strict=True):
            own = method_words(variant.name, self.target, self.protocol, self.backbone)
            for model, run in self.numbers():
                asked = [*self.words, *variant.settings, f"seed={seed_of_run(model, run)}"]
                config = _config(method, [*shared, *own, *cut[model], *asked])
                name = f"fold{model}-run{run}" if self.protocol.models > 1 else f"run{run}"
                place = RunDir(self.folder / variant.folder / name)
                if place.config_file.is_file():
                    made = place.read_config().data.path
                    if Path(made).resolve() == Path(config.data.path).resolve():
                        config.data.path = made  # the same folder, named from elsewhere
                    check_same(config, place)
                choices = {"method": method, "fold": str(model), "run": str(run)}
                if self.protocol.models == 1:
                    del choices["fold"]
                trials.append(Trial(method, model, run, PlannedRun(choices, config, place)))
        _check_apart(trials)
        return trials

    def take_in(self, trials: Sequence[Trial], file: Path) -> int:
        """Make those runs finished that the `table.json` of an earlier command tells of; return how many.

        Raises:
            ConfigError: in a protocol that joins embeddings, which no table has, and for runs of other settings.
            DataError: for a file that is no such table.
        """
        if self.protocol.models > 1:
            raise ConfigError(
                f"--from {file}: the {self.protocol.name} protocol joins the embeddings of its models, which a table "
                "does not hold: copy the folders of the runs"
            )
        return import_runs([trial.planned for trial in trials], file)

    def train(
        self, trials: Sequence[Trial], engine: Engine, ended: Callable[[RunOutcome], None] = lambda outcome: None
    ) -> list[RunOutcome]:
        """Train what is wanted and not finished; once it is, remove what only an unfinished run needs."""

        def tidy(outcome: RunOutcome) -> None:
            if outcome.result is not None:
                outcome.run.run_dir.drop_checkpoint()
            ended(outcome)

        return engine([trial.planned for trial in trials if self.wants(trial) and trial.result() is None], tidy)


def named_backbone(words: Sequence[str]) -> str | None:
    """Return the network that settings put in the place of the protocol's; None where they do not."""
    named = [word.partition("=")[2] for word in words if word.startswith(("backbone=", "backbone.name="))]
    return named[-1] if named else None


def _check_apart(trials: Sequence[Trial]) -> None:
    """Refuse two methods that come to the same settings: their comparison would pass for a finding."""
    first = [trial for trial in trials if (trial.model, trial.run) == (trials[0].model, trials[0].run)]
    for place, trial in enumerate(first):
        same = next((other for other in first[:place] if other.planned.config == trial.planned.config), None)
        if same is not None:
            raise ConfigError(f"{same.method} and {trial.method} have the same settings: leave one out")


def _config(method: str, words: Sequence[str]) -> RunConfig:
    """Read the settings of a run; an error names its method, since others may well take what this one does not."""
    try:
        config = load_config(None, words)
        check_objective(config)
        check_components(config)
    except ConfigError as error:
        raise ConfigError(f"method '{method}': {error}") from None
    return config


def seed_of_run(model: int, run: int) -> int:
    """Return the seed of a run: 23 for run 3 of fold 2, and 2011 for run 11, where 31 is that of run 1 of fold 3.

    It is the same for all methods, so that they can be compared in pairs, and another for each model of an ensemble,
    so that its members do not start alike.
    """
    return (10 if run <= 10 else MOST_RUNS) * model + run
