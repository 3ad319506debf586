"""The runs of a protocol: planned, restartable, each in its folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from winnow.data.datasets import DATASETS as IMAGE_DATASETS
from winnow.errors import ConfigError
from winnow.models.factory import check_backbone
from winnow.protocols.methods import EARLIER_MEANINGS, MethodSpec, is_earlier_ccp, recorded_name
from winnow.protocols.spec import (
    BackboneSpec,
    Budget,
    DatasetSpec,
    ProtocolSpec,
    backbone_of,
    check_overrides,
    has_second_version,
)
from winnow.training import RunDir, RunOutcome, RunResult, make_config
from winnow.training.config import RunConfig
from winnow.training.objective import check_components, check_objective
from winnow.training.overrides import Overrides, read_yaml
from winnow.training.sweep import PlannedRun, check_same, import_runs, read_records

MOST_RUNS = 1000
"""Most runs of a fold; more would repeat seeds."""

Executor = Callable[[Sequence[PlannedRun], Callable[[RunOutcome], None]], list[RunOutcome]]
"""Trains runs and calls a function at the end of each; finished runs are only read, started runs are resumed."""


@dataclass(frozen=True)
class ProtocolRun:
    """One run of a method: run number `run` of fold number `fold`, both from 1."""

    method: str
    fold: int
    run: int
    planned: PlannedRun

    @cached_property
    def key(self) -> tuple[str, int, int]:
        """Method, fold, and run."""
        return self.method, self.fold, self.run

    def result(self) -> RunResult | None:
        """Return the result of a finished run; None if it is not finished."""
        return self.planned.run_dir.read_result()


@dataclass(frozen=True)
class ProtocolRequest:
    """A protocol, the methods it compares, and which of its runs to train.

    Overrides precede the protocol's settings and those that a method's name stands for; settings of one method precede
    all others.
    """

    protocol: ProtocolSpec
    dataset: DatasetSpec
    methods: Sequence[str]  # in the order of the table, such as `c2+gsp-zsr` and `c2,train.lr=1e-4`
    folder: Path  # of runs and tables
    backbone: BackboneSpec
    root: str | None = None  # folder of a benchmark dataset; None for the default
    overrides: Sequence[str] = ()  # KEY=VALUE for all runs
    folds: Sequence[int] | None = None  # to train, from 1; None for all
    runs: Sequence[int] | None = None  # to train, of each fold; there may be more than the protocol has
    note: str = ""  # sentence for the table, such as what is special about the images
    results: Sequence[Path] = ()  # earlier tables whose runs are imported
    budget: Budget = "early-stop"  # how long runs train, and which weights are reported

    @property
    def network(self) -> str:
        """Name of the backbone in tables; overrides may replace the protocol's."""
        return backbone_of(self.overrides) or self.backbone.title

    @cached_property
    def specs(self) -> list[MethodSpec]:
        """The methods; CCP in a folder or a table of version 0.1.0 has the name that it has now.

        Raises:
            ConfigError: If the list is empty, or a method is unknown or repeated.
        """
        if not self.methods:
            raise ConfigError("methods: expected at least one, got none. Name a method such as c2.")
        named = [MethodSpec.parse(method) for method in self.methods]
        specs = [spec.earlier if self._is_earlier(spec) else spec for spec in named]
        twice = next((spec for spec in specs if specs.count(spec) > 1), None)
        if twice is not None:
            raise ConfigError(f"methods: {twice} is named twice. Remove one of the two.")
        return specs

    def numbers(self) -> list[tuple[int, int]]:
        """Return the (fold, run) of every run of a method; all folds have a first run before one has a second.

        Raises:
            ConfigError: If folds or runs are requested that the protocol does not have.
        """
        for name, requested, most in (("folds", self.folds, self.protocol.folds), ("runs", self.runs, MOST_RUNS)):
            wrong = next((number for number in requested or () if not 1 <= number <= most), None)
            if wrong is not None:
                expected = f"1 to {most}" if most > 1 else f"1, the only fold of the {self.protocol.name} protocol"
                raise ConfigError(f"{name}: expected {expected}, got {wrong}. Correct the number.")
        runs = max(self.protocol.runs, *(self.runs or (0,)))
        return [(fold, run) for run in range(1, runs + 1) for fold in range(1, self.protocol.folds + 1)]

    def requests(self, run: ProtocolRun) -> bool:
        """Return whether a run is among those to train."""
        return (not self.folds or run.fold in self.folds) and (not self.runs or run.run in self.runs)

    def plan(self) -> list[ProtocolRun]:
        """Return all runs of the protocol, also those that are not requested.

        Raises:
            ConfigError: If a setting is invalid, or a run in the folder was made with another setting.
        """
        check_overrides(self.overrides)
        own = {spec: spec.own for spec in self.specs}
        common = Overrides.parse(*self.overrides)
        numbers = self.numbers()
        data = {fold: self.dataset.settings(self.protocol, fold, self.root) for fold in {fold for fold, _ in numbers}}
        runs = []
        for spec in self.specs:
            of_method = spec.of_run(self.dataset, self.protocol, self.backbone, self.budget)
            of_fold = {fold: of_method | data[fold] | common | own[spec] for fold in data}
            folder = self.folder / self._folder_of(spec)
            for fold, run in numbers:
                settings = of_fold[fold] | Overrides({"seed": run_seed(fold, run)})
                name, assignment = f"run{run}", {"method": str(spec), "run": str(run)}
                if self.protocol.folds > 1:
                    name, assignment = f"fold{fold}-{name}", {"method": str(spec), "fold": str(fold), "run": str(run)}
                run_dir = RunDir(folder / name)
                config = _checked(spec, settings)
                if run_dir.config_file.is_file():
                    made = run_dir.read_config().data.path
                    if Path(made).resolve() == Path(config.data.path).resolve():
                        config.data.path = made  # the same folder, named from elsewhere
                    check_same(config, run_dir)
                runs.append(ProtocolRun(str(spec), fold, run, PlannedRun(assignment, config, run_dir)))
        _check_distinct(runs)
        return runs

    def import_results(self, runs: Sequence[ProtocolRun], file: Path) -> int:
        """Import finished runs from an earlier `table.json`; return how many of the planned runs it contains.

        Raises:
            ConfigError: If the protocol concatenates embeddings, which no table contains, or a setting differs.
            DataError: If the file contains no runs.
        """
        if self.protocol.folds > 1:
            raise ConfigError(
                f"{file}: the {self.protocol.name} protocol concatenates embeddings, which a table does not contain. "
                "Copy the folders of the runs."
            )
        written = {
            recorded_name(str(record.get("method")), record["config"]): str(record.get("method"))
            for record in read_records(file)
        }
        planned = [
            replace(
                run.planned, assignment={**run.planned.assignment, "method": written.get(run.method, run.method)}
            )
            for run in runs
        ]  # fmt: skip
        return import_runs(planned, file)

    def train(
        self,
        runs: Sequence[ProtocolRun],
        executor: Executor,
        on_end: Callable[[RunOutcome], None] = lambda outcome: None,
    ) -> list[RunOutcome]:
        """Train the requested runs that are not finished, and remove the checkpoints of those that finish."""

        def drop_checkpoint(outcome: RunOutcome) -> None:
            if outcome.result is not None:
                outcome.run.run_dir.drop_checkpoint()
            on_end(outcome)

        waiting = [run.planned for run in runs if self.requests(run) and run.result() is None]
        return executor(waiting, drop_checkpoint)

    def _folder_of(self, spec: MethodSpec) -> str:
        """Return the folder of a method: an existing one of version 0.1.0 if the present name has none."""
        renamed = set(spec.additions) & set(EARLIER_MEANINGS.values())
        earlier = [name for name in spec.earlier_folders if not renamed or _holds_earlier_ccp(self.folder / name)]
        return next((name for name in (spec.folder, *earlier) if (self.folder / name).is_dir()), spec.folder)

    def _is_earlier(self, spec: MethodSpec) -> bool:
        """Return whether the runs of a method, in the folder or to be imported, are those of version 0.1.0."""
        if spec.earlier == spec:
            return False
        folders = (self.folder / name for name in (spec.folder, *spec.earlier_folders))
        return any(_holds_earlier_ccp(folder) for folder in folders) or any(
            recorded_name(str(record.get("method")), record["config"]) == str(spec.earlier)
            for file in self.results
            for record in read_records(file)
        )


def _holds_earlier_ccp(folder: Path) -> bool:
    """Return whether a folder has runs of CCP as version 0.1.0 trained it."""
    for file in sorted(folder.glob("*/config.yaml")):
        try:
            return is_earlier_ccp(read_yaml(file))
        except ConfigError:  # a damaged file is reported when the run is read
            continue
    return False


def run_seed(fold: int, run: int) -> int:
    """Return the seed of a run: 23 for run 3 of fold 2, and 2011 for run 11.

    The methods have the same seeds, so they can be paired. The folds have different ones, so the members of an ensemble
    start from different weights.
    """
    return (10 if run <= 10 else MOST_RUNS) * fold + run


def check_inputs_exist(request: ProtocolRequest, runs: Sequence[ProtocolRun]) -> None:
    """Check once, before training, that dataset, networks, and weights of the requested runs exist.

    Raises:
        ConfigError: If a network is unknown.
        DataError: If the dataset's folder is missing.
        ModelError: If weights are missing.
    """
    configs = [run.planned.config for run in runs if request.requests(run) and run.result() is None]
    if configs and request.dataset.path is None:
        dataset, root = IMAGE_DATASETS[request.dataset.name], configs[0].data.root  # of all runs
        folder = dataset.default_root if root is None else Path(root)
        if not folder.is_dir():
            dataset.check(folder)  # its error says where to get the dataset
    for number, backbone in enumerate(backbones := [config.backbone for config in configs]):
        if backbone not in backbones[:number]:
            check_backbone(backbone)


def rerun_command(request: ProtocolRequest) -> str:
    """Return the command that trains all missing runs of a table and writes the table again."""
    protocol, most = request.protocol, max(request.protocol.runs, *(request.runs or (0,)))
    options = {
        "--paper": "ccp" if has_second_version(protocol) else None,
        "--budget": None if request.budget == "early-stop" else request.budget,
        "--runs": ",".join(map(str, range(1, most + 1))) if most > protocol.runs else None,
        "--data": request.root,
        "--backbone": None if backbone_of(request.overrides) else request.backbone.name,
        "-o": str(request.folder),
        "--note": request.note or None,
    }
    words = [word for option, value in options.items() if value is not None for word in (option, value)]
    dataset = request.dataset.path or request.dataset.name
    methods = [str(spec) for spec in request.specs]
    return shlex.join(["winnow", "protocol", protocol.name, dataset, *methods, *words, *request.overrides])


def _check_distinct(runs: Sequence[ProtocolRun]) -> None:
    """Check that no two methods have the same settings: their comparison would look like a finding."""
    first = [run for run in runs if (run.fold, run.run) == (runs[0].fold, runs[0].run)]
    for index, run in enumerate(first):
        same = next((other for other in first[:index] if other.planned.config == run.planned.config), None)
        if same is not None:
            raise ConfigError(f"methods: {same.method} and {run.method} have the same settings. Remove one of them.")


def _checked(spec: MethodSpec, settings: Overrides) -> RunConfig:
    """Return a config; errors name the method, because the settings may suit other methods."""
    try:
        config = make_config(settings.tree)
        check_objective(config)
        check_components(config)
    except ConfigError as error:
        raise ConfigError(f"method '{spec}': {error}") from None
    return config
