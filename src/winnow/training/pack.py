"""Several runs side by side on one device, because one small batch at a time cannot fill it."""

from __future__ import annotations

import gc
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from winnow.errors import ConfigError, TrainingError, WinnowError
from winnow.seeding import fork_rng
from winnow.training.distributed import launched
from winnow.training.lane import Work
from winnow.training.monitor import Monitor
from winnow.training.plan import Planned
from winnow.training.run import training
from winnow.training.shared import Shared

OUT_OF_MEMORY = (
    "the GPU has no memory left: train fewer runs side by side (--at-once), or smaller batches "
    "(train.classes_per_batch)"
)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its result, or the error that ended it; `trace` says where, for an error no user has caused."""

    run: Planned
    result: dict[str, Any] | None = None
    error: Exception | None = None
    trace: str = ""


def run_pack(
    runs: Sequence[Planned],
    *,
    at_once: int | None = None,
    monitor: Callable[[Planned], Monitor] = lambda run: Monitor(),
    ended: Callable[[Outcome], None] = lambda outcome: None,
    shared: Shared | None = None,
) -> list[Outcome]:
    """Train runs side by side: each in turn takes a step, on a stream of its own where there is a GPU.

    On a CPU every run comes out exactly as it would alone. What runs have in common is made once. A run that fails
    ends alone. Runs that were finished before are only read, and runs that were begun before are resumed.

    Args:
        runs: What to train.
        at_once: How many side by side; the others wait. Default 4 on a GPU, 1 on a CPU, where more gain nothing.
        monitor: Makes a monitor for each run.
        ended: Told when a run has ended.
        shared: What these runs have in common with others before or after them; default with each other only.

    Returns:
        One outcome for each run, in the order of `runs`.

    Raises:
        ConfigError: under torchrun, whose processes are for one run.
    """
    if launched().count > 1:
        raise ConfigError("torchrun is for one run, which its processes train together: start several runs without it")
    limit = at_once or (4 if torch.cuda.is_available() else 1)
    shared = shared or Shared()
    outcomes: dict[int, Outcome] = {}
    waiting = deque(enumerate(runs))
    going: dict[int, Work[dict[str, Any]]] = {}
    try:
        with fork_rng():
            while waiting or going:
                while waiting and len(going) < limit:
                    number, run = waiting.popleft()
                    going[number] = _begin(run, monitor(run), shared)
                for number in list(going):
                    outcome = _advance(runs[number], going[number])
                    if outcome is not None:
                        del going[number]
                        outcomes[number] = outcome
                        ended(outcome)
                        _free()
    finally:
        for work in going.values():  # broken off: their folders are free again
            work.close()
    return [outcomes[number] for number in range(len(runs))]


def _begin(run: Planned, monitor: Monitor, shared: Shared) -> Work[dict[str, Any]]:
    """Start a run, go on with it, or read what came of it."""
    result = run.folder.read_result()
    if result is not None:
        return result
    return (yield from training(run.config, run.folder, resume=None, monitor=monitor, shared=shared))


def _advance(run: Planned, work: Work[dict[str, Any]]) -> Outcome | None:
    """Do a run's next piece; return how it ended if it did."""
    try:
        next(work)
    except StopIteration as end:
        return Outcome(run, result=end.value)
    except torch.cuda.OutOfMemoryError:
        return Outcome(run, error=TrainingError(OUT_OF_MEMORY))
    except Exception as error:  # a fault of one run must not cost the hours of the others
        trace = "" if isinstance(error, WinnowError) else traceback.format_exc()
        # The frames it passed through hold the run's memory.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return Outcome(run, error=error, trace=trace)
    return None


def _free() -> None:
    """Give back the memory of a run that has ended."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
