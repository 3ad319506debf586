"""`winnow train` for several runs: what it plans, shows and prints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import ModelError, TrainingError

if TYPE_CHECKING:
    from winnow.training import RunDir
    from winnow.training.parallel import RunOutcome
    from winnow.training.sweep import PlannedRun


def train_pack(folder: Path, runs: Sequence[PlannedRun], at_once: int | None) -> None:
    """Train planned runs side by side, tell how each ends, and compare them.

    Raises:
        TrainingError: at the end, if any run failed.
    """
    from winnow.cli.console import comparison_rows, echo, err, out
    from winnow.cli.progress import ConsoleCallback, bars
    from winnow.training.parallel import train_in_parallel

    def ended(outcome: RunOutcome) -> None:
        monitor[id(outcome.run)].close()  # a run that failed before its first step has left bars behind
        if outcome.error is not None:
            reason = " ".join(str(outcome.error).split()) or type(outcome.error).__name__
            line = f"{outcome.traceback}failed: {outcome.run.name}: {reason}"
            err.print(line, markup=False, highlight=False, soft_wrap=True)

    # Before CUDA starts: by default streams beyond the eighth wait for others.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    shown = bars()
    with shown:
        monitor = {id(run): ConsoleCallback(run.name, shown) for run in runs}
        outcomes = train_in_parallel(runs, jobs=at_once, callback=lambda run: monitor[id(run)], on_end=ended)
    done = [outcome for outcome in outcomes if outcome.result is not None]
    for outcome in done:  # only now, because drawing would keep the other runs waiting
        assert outcome.result is not None, "it is done"
        draw_run(outcome.run.run_dir, outcome.result.to_dict())
    if done:
        out.print(comparison_rows(*_comparison(done)))
        idle = [outcome.run.name for outcome in done if outcome.result and outcome.result.best_step == 0]
        if idle:
            echo(f"{len(idle)} of {len(done)} runs had their best validation before the first step, so that nothing "
                f"they learned counts: {'; '.join(idle)}")  # fmt: skip
    echo(f"runs: {folder}")
    failed = [outcome.run.name for outcome in outcomes if outcome.error is not None]
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(outcomes)} runs failed ({'; '.join(failed)}): put right what is told above and go "
            f"on with `winnow train --resume {folder}`"
        )


def draw_run(folder: RunDir, result: Mapping[str, Any]) -> None:
    """Draw how a run went into its folder: its curves, and its problems if it solved a sequence of them.

    A damaged log leaves nothing to draw, which is said; the run's result stands without it.
    """
    from winnow.cli.console import echo
    from winnow.report.figures import problem_curves, run_curves
    from winnow.report.style import save

    try:
        history = folder.read_history()
    except ModelError as error:
        echo(str(error))
        return
    save(run_curves(history), folder.path / "curves.png")
    if "problems" in result:
        by = result["config"]["references"].get("monitor", "MAP@R")  # older runs do not say
        save(problem_curves(result["problems"], history, by), folder.path / "problems.svg")


def _comparison(outcomes: Sequence[RunOutcome]) -> tuple[list[dict[str, Any]], str]:
    """Return a row for each method, with mean and standard deviation over its seeds, and the table's title."""
    import numpy as np

    from winnow.report.figures import METRICS

    results = [(outcome.run.method(), outcome.result.to_dict()) for outcome in outcomes if outcome.result is not None]
    tested = all("test" in result["metrics"] for _, result in results)
    split = "test" if tested else "val"
    rows: list[dict[str, Any]] = []
    for method in dict.fromkeys(name for name, _ in results):
        metrics = [result["metrics"][split] for name, result in results if name == method]
        row: dict[str, Any] = {"method": f"{method} ({len(metrics)} runs)" if len(metrics) > 1 else method}
        for name in METRICS:
            values = np.array([each[name] for each in metrics])
            row[name] = float(values.mean())
            row[f"{name} std"] = float(values.std(ddof=1)) if len(values) > 1 else None
        rows.append(row)
    title = "test classes, never seen in training (%)" if tested else "validation classes (%)"
    return rows, title
