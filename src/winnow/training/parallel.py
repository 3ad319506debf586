"""Several runs concurrently on one device, which one run cannot fill."""

from __future__ import annotations

import gc
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from winnow.errors import ConfigError, TrainingError, WinnowError
from winnow.seeding import fork_rng
from winnow.training.cache import RunCache
from winnow.training.callbacks import Callback
from winnow.training.engine.distributed import launched_processes
from winnow.training.engine.stream import Steps
from winnow.training.results import RunResult
from winnow.training.run import iter_run
from winnow.training.sweep import PlannedRun

OUT_OF_MEMORY = "CUDA out of memory. Train fewer runs concurrently, or reduce train.classes_per_batch."


@dataclass(frozen=True)
class RunOutcome:
    """End of a run: its result, or the error that ended it."""

    run: PlannedRun
    result: RunResult | None = None
    error: Exception | None = None
    traceback: str = ""  # of an error that is not a `WinnowError`


def train_in_parallel(
    runs: Sequence[PlannedRun],
    *,
    jobs: int | None = None,
    callback: Callable[[PlannedRun], Callback] = lambda run: Callback(),
    on_end: Callable[[RunOutcome], None] = lambda outcome: None,
    cache: RunCache | None = None,
) -> list[RunOutcome]:
    """Train runs concurrently.

    They take training steps in turn, each on a separate stream of a GPU.

    On a CPU every result equals the result of the run alone. Objects that runs have in common are made once. A run that
    fails does not end the others. Finished runs are only read, and started runs are resumed.

    Args:
        runs: Runs to train.
        jobs: Number of concurrent runs. The default is 4 on a GPU and 1 on a CPU, where more bring no gain.
        callback: Makes the callback of each run.
        on_end: Called when a run has ended.
        cache: Objects shared with earlier or later runs; by default these runs share a new cache.

    Returns:
        One outcome for each run, in the order of `runs`.

    Raises:
        ConfigError: Under torchrun, whose processes train one run together.
    """
    if launched_processes().count > 1:
        raise ConfigError("torchrun: its processes train one run together. Start several runs without torchrun.")
    limit = jobs or (4 if torch.cuda.is_available() else 1)
    cache = cache or RunCache()
    outcomes: dict[int, RunOutcome] = {}
    waiting = deque(enumerate(runs))
    active: dict[int, Steps[RunResult]] = {}
    try:
        with fork_rng():
            while waiting or active:
                while waiting and len(active) < limit:
                    number, run = waiting.popleft()
                    active[number] = _iter_run(run, callback(run), cache)
                for number in list(active):
                    outcome = _next_step(runs[number], active[number])
                    if outcome is not None:
                        del active[number]
                        outcomes[number] = outcome
                        on_end(outcome)
                        _free_memory()
    finally:
        for steps in active.values():  # after an interruption: unlock the folders
            steps.close()
    return [outcomes[number] for number in range(len(runs))]


def _iter_run(run: PlannedRun, callback: Callback, cache: RunCache) -> Steps[RunResult]:
    """Start or resume a run, or read its result."""
    result = run.run_dir.read_result()
    if result is not None:
        return result
    return (yield from iter_run(run.config, run.run_dir, resume=None, callback=callback, cache=cache))


def _next_step(run: PlannedRun, steps: Steps[RunResult]) -> RunOutcome | None:
    """Run the next step of a run and return its outcome if it has ended."""
    try:
        next(steps)
    except StopIteration as end:
        return RunOutcome(run, result=end.value)
    except torch.cuda.OutOfMemoryError:
        return RunOutcome(run, error=TrainingError(OUT_OF_MEMORY))
    except Exception as error:  # an error of one run must not end the others
        trace = "" if isinstance(error, WinnowError) else traceback.format_exc()
        # The frames of the traceback hold the memory of the run.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return RunOutcome(run, error=error, traceback=trace)
    return None


def _free_memory() -> None:
    """Free the memory of a run that has ended."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
