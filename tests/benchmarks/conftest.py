"""Benchmarks run as commands, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from benchmarks.__main__ import main

RunBenchmark = Callable[[str], None]


@pytest.fixture
def run_benchmark(monkeypatch: pytest.MonkeyPatch) -> RunBenchmark:
    """Run `python -m benchmarks` with arguments; it has to succeed."""

    def run(arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments.split()])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code

    return run
