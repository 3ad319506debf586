"""Checkpoints: their content, their writer, and reading them to resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypedDict

import torch
from torch import Tensor

from winnow.errors import ConfigError, ModelError
from winnow.training.config import RunConfig, first_difference
from winnow.training.data_record import DataRecord
from winnow.training.results import Metrics, ValidationEntry
from winnow.training.run_dir import RunDir

Weights = dict[str, Tensor]


class Checkpoint(TypedDict):
    """Content of `checkpoint.pt`: all state of a run.

    `best.pt` contains the best weights, in the form of `learner`.
    """

    config: dict[str, Any]  # settings of the run; only a run with equal settings resumes
    learner: Weights  # parameters and buffers of the Objective: model, losses, references
    optimizer: dict[str, Any]
    precision: dict[str, Any]  # gradient scaler of 16-mixed; empty otherwise
    progress: dict[str, Any]  # TrainState
    problems: dict[str, Any] | None  # CCPSolver; None without CCP
    plateau: dict[str, Any] | None  # ReduceOnPlateau; None with a constant learning rate
    average: Weights | None  # WeightAverage; None without averaging, missing in version 0.1.0
    teacher: Weights | None  # WeightAverage; None without self-distillation, missing in version 0.1.0
    data: str  # digest of the DataRecord; "" without a run folder, missing in version 0.1.0


@dataclass
class TrainState:
    """Progress of a run."""

    step: int = 0
    best: float = -1.0  # best validation value, including the one before the first step
    best_step: int = 0
    best_after_start: float = -1.0  # best value of the validations after the first step
    evaluations_without_gain: int = 0  # validations since then
    seconds: float = 0.0
    history: list[ValidationEntry] = field(default_factory=list)

    def best_metrics(self) -> Metrics:
        """Return the validation metrics of the best weights."""
        return next(entry.val for entry in self.history if entry.step == self.best_step)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `progress` of a checkpoint."""
        return {
            "step": self.step,
            "best": self.best,
            "best_step": self.best_step,
            "peak": self.best_after_start,
            "stalled": self.evaluations_without_gain,
            "seconds": self.seconds,
            "history": [entry.to_dict() for entry in self.history],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], monitor: str) -> TrainState:
        """Read the entry `progress` of a checkpoint.

        `monitor` is the metric that selects the best weights.
        """
        history = [ValidationEntry.from_dict(line) for line in values["history"]]
        peak = values.get("peak")
        if peak is None:  # checkpoints of early versions do not have it
            peak = max((entry.val[monitor] for entry in history if entry.step > 0), default=-1.0)
        return cls(
            values["step"], values["best"], values["best_step"], peak, values["stalled"], values["seconds"], history
        )


def load_checkpoint(run_dir: RunDir, config: RunConfig) -> tuple[Checkpoint, Weights]:
    """Load the last checkpoint of a run and its best weights.

    Raises:
        ModelError: If a file is missing or damaged, or the checkpoint was made with a different config.
    """
    file = run_dir.checkpoint_file
    checkpoint: Checkpoint = run_dir.load(file)  # type: ignore[assignment]
    best: Weights = run_dir.load(run_dir.best_file)
    try:
        # A setting that winnow did not have at the time has its default.
        key = first_difference(config.model_dump(mode="json"), checkpoint.get("config") or {})
    except ConfigError as error:
        raise ModelError(f"{file}: the checkpoint has settings that this version does not have ({error}).") from None
    if key is not None:
        raise ModelError(f"{file}: the checkpoint was made with another {key}. Resume the run with its own config.")
    recorded = checkpoint.get("data") if run_dir.data_file.is_file() else None
    if recorded and recorded != DataRecord.read(run_dir.data_file).digest():
        raise ModelError(f"{run_dir.data_file}: not the record of this checkpoint. Restore it from a copy.")
    return checkpoint, best


class CheckpointWriter:
    """Writes the best weights, the checkpoint, and the log of a run, in that order.

    An interruption between two of these writes repeats one validation and loses nothing else. On a GPU the state is
    copied there and written by another thread, so training continues. If states come faster than the disk takes them,
    only the latest is written.

    Args:
        run_dir: Folder of the run.
        device: Device of the state.
    """

    def __init__(self, run_dir: RunDir, device: torch.device) -> None:
        self._run_dir, self._device = run_dir, device
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if device.type == "cuda" else None
        self._lock = Lock()
        self._waiting: tuple[torch.cuda.Event, Weights | None, Checkpoint, list[ValidationEntry]] | None = None
        self._writing: Future[None] | None = None
        self._failure: Exception | None = None

    def put(self, best: Weights | None, checkpoint: Checkpoint, history: list[ValidationEntry]) -> None:
        """Write a state, immediately or soon.

        `best` is None if the best weights have not changed.

        Raises:
            OutputError: If this or an earlier state could not be written.
        """
        if self._pool is None:
            self._write(best, checkpoint, history)
            return
        self._raise_failure()
        checkpoint = _map_tensors(checkpoint, lambda tensor: tensor.clone())
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        with self._lock:
            if best is None and self._waiting is not None:
                best = self._waiting[1]
            self._waiting = (copied, best, checkpoint, list(history))
        self._writing = self._pool.submit(self._drain)

    @property
    def busy(self) -> bool:
        """Whether a state is still to be written; raises the error of a failed write."""
        writing = self._writing is not None and not self._writing.done()
        self._raise_failure()  # after `done`: a write may fail between the two
        return writing

    def wait(self) -> None:
        """Wait until all states are written; raises the error of a failed write."""
        if self._writing is not None:
            self._writing.result()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _drain(self) -> None:
        with self._lock:
            state, self._waiting = self._waiting, None
        if state is None:  # an earlier call has written it
            return
        copied, best, checkpoint, history = state
        try:
            copied.synchronize()
            best, checkpoint = (_map_tensors(one, lambda tensor: tensor.cpu()) for one in (best, checkpoint))
            self._write(best, checkpoint, history)
        except Exception as error:  # raised in the run's thread, at its next validation
            self._failure = error

    def _write(self, best: Weights | None, checkpoint: Checkpoint, history: list[ValidationEntry]) -> None:
        if best is not None:
            self._run_dir.save(self._run_dir.best_file, best)
        self._run_dir.save(self._run_dir.checkpoint_file, checkpoint)
        self._run_dir.write_history(history)


def _map_tensors(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of nested dicts and lists."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: _map_tensors(value, change) for key, value in state.items()}
    if isinstance(state, list):
        return [_map_tensors(value, change) for value in state]
    return state
