"""What trains the runs of a protocol: packed on one machine, or as tasks of a Ray cluster."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import MissingExtraError, TrainingError, WinnowError
from winnow.protocols.cluster import check_room, connect
from winnow.protocols.runs import Engine
from winnow.training import Callback, RunDir, RunOutcome, RunResult, make_config, train, train_in_parallel
from winnow.training.sweep import PlannedRun

RETRIES = 3


def packed(*, at_once: int | None = None, monitor: Callable[[PlannedRun], Callback] = lambda run: Callback()) -> Engine:
    """Return the engine that trains runs side by side in this process."""

    def train(runs: Sequence[PlannedRun], ended: Callable[[RunOutcome], None]) -> list[RunOutcome]:
        return train_in_parallel(runs, jobs=at_once, callback=monitor, on_end=ended)

    return train


def on_ray(*, gpus: float = 1.0, cpus: float = 1.0, address: str | None = None) -> Engine:
    """Return the engine that trains each run as a task of a Ray cluster.

    A task whose worker or node is lost is tried again elsewhere, and goes on from the run's last checkpoint: data and
    run folders must be on a disk that all nodes share. What was finished stays, whatever happens to the others.

    Args:
        gpus: Share of a GPU for each run; with 0.25 four runs share one.
        cpus: Cores for each run.
        address: Of a running cluster; None for `$RAY_ADDRESS`, or else a local one.

    Raises:
        MissingExtraError: where Ray is not installed.
        ConfigError: when it trains, where no cluster answers or none of its nodes has the share.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "--engine ray") from None

    def train(runs: Sequence[PlannedRun], ended: Callable[[RunOutcome], None]) -> list[RunOutcome]:
        mine = not ray.is_initialized()
        if mine:
            connect(ray, address)
        try:
            check_room(ray.nodes(), gpus=gpus, cpus=cpus)
            task = ray.remote(num_gpus=gpus, num_cpus=cpus, max_retries=RETRIES)(train_one)
            waiting = {task.remote(Order.of(run)): run for run in runs}
            outcomes: dict[int, RunOutcome] = {}
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                run = waiting.pop(done)
                try:
                    outcome = ray.get(done).outcome(run)
                except ray.exceptions.RayError as error:
                    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                    outcome = RunOutcome(run, error=TrainingError(f"its worker was lost too often ({reason})"))
                outcomes[id(run)] = outcome
                ended(outcome)
            return [outcomes[id(run)] for run in runs]
        finally:
            if mine:
                ray.shutdown()

    return train


@dataclass(frozen=True)
class Order:
    """What a worker has to know of a run; paths are those of whoever gives it, and so is the command line."""

    config: dict[str, Any]
    folder: str
    working_folder: str
    command: list[str]

    @classmethod
    def of(cls, run: PlannedRun) -> Order:
        """Write a run down."""
        # Only what was set: some defaults depend on the machine.
        config = run.config.model_dump(mode="json", exclude_unset=True)
        return cls(config, str(run.run_dir.path.resolve()), os.getcwd(), sys.argv)


@dataclass(frozen=True)
class Answer:
    """How it ended: errors as text, because a raised one might not travel."""

    result: RunResult | None = None
    error: str = ""
    traceback: str = ""

    def outcome(self, run: PlannedRun) -> RunOutcome:
        """Return it as the other engine does."""
        if self.result is None:
            return RunOutcome(run, error=TrainingError(self.error), traceback=self.traceback)
        return RunOutcome(run, result=self.result)


def train_one(order: Order) -> Answer:
    """Train one run on the node this is called on, or go on with it, or read what came of it."""
    os.chdir(order.working_folder)
    sys.argv = list(order.command)
    folder = RunDir(Path(order.folder))
    try:
        result = folder.read_result()
        if result is not None:  # the worker was lost between writing it and telling
            return Answer(result)
        return Answer(train(make_config(order.config), folder, resume=folder.config_file.is_file()))
    except WinnowError as error:
        return Answer(error=str(error))
    except Exception as error:  # a fault of winnow's, told with its place
        return Answer(error=str(error) or type(error).__name__, traceback=traceback.format_exc())
