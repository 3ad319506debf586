"""Checkpoints written while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from winnow.training.folder import RunFolder

State = dict[str, Any]


class CheckpointWriter:
    """Writes the best weights, the checkpoint and the log of a run, in that order.

    A kill between two of these writes then repeats a validation, nothing else. On a GPU the state is copied there and
    written from another thread, because steps go on for as long as a disk takes; of states that come faster than they
    can be written only the latest is.

    Args:
        folder: Of the run.
        device: Where the state is.
    """

    def __init__(self, folder: RunFolder, device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if device.type == "cuda" else None
        self._lock = Lock()
        self._waiting: tuple[torch.cuda.Event, State | None, State, list[dict[str, Any]]] | None = None
        self._writing: Future[None] | None = None
        self._failure: Exception | None = None

    def put(self, best: State | None, checkpoint: State, history: list[dict[str, Any]]) -> None:
        """Write a state, now or soon; `best` is None where the best weights are those written before.

        Raises:
            OutputError: when this or an earlier state could not be written.
        """
        if self._pool is None:
            self._write(best, checkpoint, history)
            return
        self._raise_failure()
        checkpoint = _tensors(checkpoint, lambda tensor: tensor.clone())
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        with self._lock:
            if best is None and self._waiting is not None:
                best = self._waiting[1]
            self._waiting = (copied, best, checkpoint, list(history))
        self._writing = self._pool.submit(self._drain)

    @property
    def busy(self) -> bool:
        """Whether something is still to be written; raises what went wrong."""
        going = self._writing is not None and not self._writing.done()
        self._raise_failure()  # only after the look: a write may fail between the two
        return going

    def wait(self) -> None:
        """Wait until everything is written; raises what went wrong."""
        if self._writing is not None:
            self._writing.result()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _drain(self) -> None:
        with self._lock:
            state, self._waiting = self._waiting, None
        if state is None:  # an earlier call has written it already
            return
        copied, best, checkpoint, history = state
        try:
            copied.synchronize()
            best, checkpoint = (_tensors(part, lambda tensor: tensor.cpu()) for part in (best, checkpoint))
            self._write(best, checkpoint, history)
        except Exception as error:  # for the run to tell, at its next validation
            self._failure = error

    def _write(self, best: State | None, checkpoint: State, history: list[dict[str, Any]]) -> None:
        if best is not None:
            self._folder.save(self._folder.best_file, best)
        self._folder.save(self._folder.checkpoint_file, checkpoint)
        self._folder.write_history(history)


def _tensors(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a state of dicts, lists and values with every tensor changed."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: _tensors(value, change) for key, value in state.items()}
    if isinstance(state, list):
        return [_tensors(value, change) for value in state]
    return state
