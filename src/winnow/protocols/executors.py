"""Executors of a protocol's runs: concurrently in this process, or as tasks of a Ray cluster."""

from __future__ import annotations

import os
import re
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError, MissingExtraError, TrainingError, WinnowError
from winnow.protocols.plan import Executor
from winnow.training import Callback, RunDir, RunOutcome, RunResult, make_config, train, train_in_parallel
from winnow.training.sweep import PlannedRun

RETRIES = 3
"""Attempts at a run after the first whose worker is lost."""
TIMEOUT = 10.0
"""Seconds in which a cluster must answer."""


def local_executor(
    *, jobs: int | None = None, callback: Callable[[PlannedRun], Callback] = lambda run: Callback()
) -> Executor:
    """Return the executor that trains runs concurrently in this process.

    Args:
        jobs: Number of concurrent runs; 4 on a GPU and 1 on a CPU by default.
        callback: Makes the callback of each run.
    """

    def execute(runs: Sequence[PlannedRun], on_end: Callable[[RunOutcome], None]) -> list[RunOutcome]:
        return train_in_parallel(runs, jobs=jobs, callback=callback, on_end=on_end)

    return execute


def ray_executor(*, gpus_per_run: float = 1.0, cpus_per_run: float = 1.0, address: str | None = None) -> Executor:
    """Return the executor that trains each run as a task of a Ray cluster.

    A task whose worker or node is lost is repeated elsewhere and resumes from the run's last checkpoint. Data and run
    folders must be on a disk that all nodes share. Finished runs remain if others fail.

    Args:
        gpus_per_run: GPUs of each run; with 0.25 four runs use one GPU.
        cpus_per_run: Cores of each run.
        address: Address of a running cluster; by default `$RAY_ADDRESS`, or else a local cluster.

    Raises:
        MissingExtraError: If Ray is not installed.
        ConfigError: When runs are trained, if no cluster answers or no node has these resources.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "Training on a cluster") from None

    def execute(runs: Sequence[PlannedRun], on_end: Callable[[RunOutcome], None]) -> list[RunOutcome]:
        started_here = not ray.is_initialized()
        if started_here:
            connect(ray, address)
        try:
            check_resources(ray.nodes(), gpus=gpus_per_run, cpus=cpus_per_run)
            task = ray.remote(num_gpus=gpus_per_run, num_cpus=cpus_per_run, max_retries=RETRIES)(train_remotely)
            waiting = {task.remote(RemoteRun.of(run)): run for run in runs}
            outcomes: dict[int, RunOutcome] = {}
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                run = waiting.pop(done)
                try:
                    outcome = ray.get(done).outcome(run)
                except ray.exceptions.RayError as error:
                    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                    lost = TrainingError(f"{run.name}: worker lost {RETRIES + 1} times ({reason}). Check the nodes.")
                    outcome = RunOutcome(run, error=lost)
                outcomes[id(run)] = outcome
                on_end(outcome)
            return [outcomes[id(run)] for run in runs]
        finally:
            if started_here:
                ray.shutdown()

    return execute


@dataclass(frozen=True)
class RemoteRun:
    """Message to a worker about a run, with paths and command line of the sending process."""

    config: dict[str, Any]
    folder: str
    working_folder: str
    command: list[str]

    @classmethod
    def of(cls, run: PlannedRun) -> RemoteRun:
        """Return the message about a run."""
        # Only what was set, because some defaults depend on the machine.
        config = run.config.model_dump(mode="json", exclude_unset=True)
        return cls(config, str(run.run_dir.path.resolve()), os.getcwd(), sys.argv)


@dataclass(frozen=True)
class RemoteOutcome:
    """End of a run on a worker, with errors as text, because exceptions may not be picklable."""

    result: RunResult | None = None
    error: str = ""
    traceback: str = ""

    def outcome(self, run: PlannedRun) -> RunOutcome:
        """Return the outcome as a local run has it."""
        if self.result is None:
            return RunOutcome(run, error=TrainingError(self.error), traceback=self.traceback)
        return RunOutcome(run, result=self.result)


def train_remotely(message: RemoteRun) -> RemoteOutcome:
    """Train or resume a run on this node; a finished run is only read."""
    os.chdir(message.working_folder)
    sys.argv = list(message.command)
    folder = RunDir(Path(message.folder))
    try:
        result = folder.read_result()
        if result is not None:  # the worker was lost after it wrote the result
            return RemoteOutcome(result)
        return RemoteOutcome(train(make_config(message.config), folder, resume=folder.config_file.is_file()))
    except WinnowError as error:
        return RemoteOutcome(error=str(error))
    except Exception as error:  # a bug, so its location is reported
        return RemoteOutcome(error=str(error) or type(error).__name__, traceback=traceback.format_exc())


def connect(ray: Any, address: str | None) -> None:
    """Connect to a running cluster, or start a local one.

    Args:
        ray: The module.
        address: Address of the cluster; by default `$RAY_ADDRESS`, or else a local cluster.

    Raises:
        ConfigError: If no cluster answers.
    """
    target = address or os.environ.get("RAY_ADDRESS")
    # Ray tries for minutes to reach a machine that does not answer, and has no setting for the time.
    if target is not None and (match := re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", target)):
        try:
            socket.create_connection((match[1], int(match[2])), timeout=TIMEOUT).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(target, error) from None
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, TimeoutError, ValueError) as error:
        if target is None:
            raise
        raise _no_cluster(target, error) from None


def _no_cluster(target: str, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ConfigError(
        f"{target}: no Ray cluster answers ({reason}). Start one with `ray start --head`, or pass no address and unset "
        "RAY_ADDRESS for a local one."
    )


def check_resources(nodes: Sequence[Mapping[str, Any]], *, gpus: float, cpus: float) -> None:
    """Check that a node has the resources of a run; otherwise its task would wait forever.

    Args:
        nodes: Result of `ray.nodes()`.
        gpus: GPUs of each run.
        cpus: Cores of each run.

    Raises:
        ConfigError: If no node has them.
    """
    present = [
        (float(node["Resources"].get("GPU", 0)), float(node["Resources"].get("CPU", 0)))
        for node in nodes
        if node["Alive"]
    ]
    if not any(has_gpus >= gpus and has_cpus >= cpus for has_gpus, has_cpus in present):
        found = ", ".join(f"{has_gpus:g} GPUs and {has_cpus:g} cores" for has_gpus, has_cpus in sorted(set(present)))
        raise ConfigError(
            f"gpus_per_run, cpus_per_run: no node has {gpus:g} GPUs and {cpus:g} cores; nodes have "
            f"{found or 'nothing'}. Request less, or 0 GPUs to train without one."
        )
