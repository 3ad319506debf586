"""Runs of custom loops, trained models, and solved CCP problems."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from winnow.data import Splits
from winnow.errors import ConfigError, DataError, ModelError
from winnow.integrity import check_listed, write_checked
from winnow.models import Embedder
from winnow.models.factory import read_state_dict
from winnow.references import ChanceConstrainedProxies
from winnow.studies.spec import StudyRequest
from winnow.training import Trainer
from winnow.training.build import build_setup, resolve_config
from winnow.training.cache import RunCache
from winnow.training.callbacks import Callback
from winnow.training.config import RunConfig, first_difference
from winnow.training.engine.precision import make_fabric
from winnow.training.inputs import Inputs

if TYPE_CHECKING:
    from winnow.training.sweep import PlannedRun


@dataclass(frozen=True)
class StoredRun:
    """Result of a run that a study trains with its own loop."""

    numbers: Mapping[str, Any]  # as JSON holds them
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def keep_run(
    request: StudyRequest, name: str, settings: Mapping[str, Any], train: Callable[[], StoredRun]
) -> StoredRun | None:
    """Train a run and store its result, or read the stored one.

    Returns None if it is missing and training is off.

    Args:
        request: Names the folder of the runs.
        name: Name of the run and of its file.
        settings: All that the result depends on, as JSON holds it; `config` is the config of a run.
        train: Trains the run.

    Raises:
        ConfigError: If the stored run has other settings.
    """
    file = Path(request.runs) / f"{name}.safetensors"
    settings = json.loads(json.dumps(settings))  # as they will be read
    stored = _read(file, request.note)
    if stored is not None:
        theirs, run = stored
        try:
            same = _same(settings, theirs)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}. Remove the file, or choose another folder.") from None
        if not same:
            raise ConfigError(
                f"{file}: trained with other data or settings. Remove the file, or choose another folder."
            )
        return run
    if not request.train:
        return None
    run = train()
    tensors = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in run.tensors.items()}
    metadata = {"asked": json.dumps(settings), "numbers": json.dumps(run.numbers)}
    write_checked(file, lambda partial: save_file(tensors, partial, metadata))
    return StoredRun(run.numbers, tensors)


def require_run(
    request: StudyRequest, name: str, settings: Mapping[str, Any], train: Callable[[], StoredRun]
) -> StoredRun:
    """Train or read a run of a study that needs all of its runs.

    Raises:
        ConfigError: If the stored run has other settings.
        DataError: If the run is missing and training is off.
    """
    run = keep_run(request, name, settings, train)
    if run is None:
        raise DataError(f"run '{name}': not finished, and this study needs all of its runs. Train its runs first.")
    return run


def _same(settings: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether settings are equal.

    A config that lacks newer settings has their defaults.
    """
    plain = [{key: value for key, value in each.items() if key != "config"} for each in (settings, theirs)]
    if plain[0] != plain[1] or ("config" in settings) != ("config" in theirs):
        return False
    return "config" not in settings or first_difference(settings["config"], theirs["config"]) is None


def _read(file: Path, note: Callable[[str], None]) -> tuple[Mapping[str, Any], StoredRun] | None:
    """Return settings and result of a stored run; None if missing or damaged, which is noted."""
    try:
        check_listed(file, remedy="The run counts as missing.")
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (it is no mapping)
            return json.loads(metadata["asked"]), StoredRun(json.loads(metadata["numbers"]), tensors)
    except ModelError as error:
        note(str(error))
        return None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class TrainedModel:
    """Trained model of a run with the test images of the run."""

    config: RunConfig
    embedder: Embedder  # with the best weights, on the device of the run, in evaluation mode
    inputs: Inputs  # the test images
    frozen: bool  # whether the inputs are outputs of the backbone

    def features(self, indices: Sequence[int]) -> Tensor:
        """Return the feature maps of test images."""
        batch = self.inputs.test(indices)
        return batch if self.frozen else self.embedder.backbone(batch)


def open_trained(run: PlannedRun, splits: Splits, cache: RunCache) -> TrainedModel:
    """Return the model of a finished run.

    Args:
        run: A finished run.
        splits: Images of the run, of which the test split is used.
        cache: Features shared with other runs.
    """
    assert splits.test is not None, "a study has test images"
    config = resolve_config(run.config)
    setup = build_setup(config, replace(splits, train=splits.test, val=splits.test), Callback(), cache)
    embedder = setup.embedder.to(make_fabric(config).device).eval()
    weights = run.run_dir.model_folder / "model.safetensors"
    embedder.load_state(read_state_dict(weights), str(weights))
    return TrainedModel(config, embedder, setup.val, setup.frozen)


@dataclass
class ProblemSolution:
    """Solution of one problem of a CCP run."""

    initial_proxies: Tensor | None  # (C K, d) as they are stored; None without proxies
    weights: dict[str, Tensor] = field(default_factory=dict)
    """State of the objective at the best validation; empty if the run ended before the first validation."""


def solve_problems(trainer: Trainer) -> list[ProblemSolution]:
    """Train to the end; return the solution of each CCP problem.

    A run without problems has one solution.
    """
    objective, found = trainer.objective, list[ProblemSolution]()
    last: tuple[int, int] | None = None
    for _ in trainer.iter_fit():
        # Right after a step is recorded as best, the objective has these weights; so do new proxies.
        if trainer.ccp_solver is None or not trainer.ccp_solver.history:
            continue
        number, problem = len(trainer.ccp_solver.history), trainer.ccp_solver.history[-1]
        if number > len(found):
            assert isinstance(objective.references, ChanceConstrainedProxies), "only CCP has problems"
            found.append(ProblemSolution(objective.references.proxies.detach().clone()))
        if problem.best_step and (number, problem.best_step) != last:
            last = (number, problem.best_step)
            found[-1].weights = {key: value.clone() for key, value in objective.state_dict().items()}
    return found or [ProblemSolution(None, trainer.best_state)]
