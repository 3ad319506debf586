"""Runs that a comparison plans, for tests of what is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from winnow.studies.base import Task
from winnow.studies.methods import Comparison, Method
from winnow.training import RunConfig
from winnow.training.objective import check_components, check_objective


def planned(compared: Comparison, folder: Path) -> Iterator[tuple[Method, RunConfig]]:
    """Yield every method with the config of its first run, which can be built and has a folder of its own."""
    folders = set()
    for method in compared.methods:
        run = compared.plan(method, compared.seeds[0], Task(True, runs=folder))
        check_objective(run.config)
        check_components(run.config)
        folders.add(run.run_dir.path)
        yield method, run.config
    assert len(folders) == len(compared.methods)
