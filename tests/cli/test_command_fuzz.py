"""Any arguments of any command end in an exit code and a line: no traceback, no endless read, no huge memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.limits import bounded, repeated
from winnow.cli.main import app
from winnow.errors import TrainingError

pytestmark = pytest.mark.slow

NUMBERS = ["0", "-1", "1e400", "inf", "-inf", "nan", "9" * 30, "9" * 5000, "0x10", "1.5", "true", ""]
TEXTS = [
    "", " ", "=", "-", "--", "~", "..", "[]", "{}", "{a: ", "a=b=c", "\x1b[2J", "\u202e", "a" * 5000, "evil..name", "é",
    "%s%n", "*", "data=", "dim=inf", "dim=1000000000", "/dev/zero", "/dev/null", "missing", "folder", "fifo", "loop",
    "broken.json", "broken.yaml", "broken.csv", "broken.pt", "data=/dev/zero", "data=fifo", "data=loop",
    f"loss={repeated(9)}",
]  # fmt: skip


def _leaves(group: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            yield from _leaves(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(_leaves(typer.main.get_command(app)))


@pytest.fixture
def call(winnow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Call a command among odd files; work that could start is an error."""

    def no_work(*_: object, **__: object) -> None:
        raise TrainingError("work: not started in a test.")

    monkeypatch.setattr("winnow.demo.run_demo", no_work)
    monkeypatch.setattr("winnow.data.datasets.download._download_all", no_work)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for suffix in ("json", "yaml", "csv", "pt"):
        (tmp_path / f"broken.{suffix}").write_bytes(b"\xff[{" * 50)

    def check(*words: str) -> None:
        with bounded():
            said = winnow(*words)
        assert said.code in range(8), (words, said)
        assert "memory: not enough" not in said.err, words
        assert "Traceback" not in said.err, (words, said.err)
        assert "\x1b" not in said.out + said.err

    return check


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_extreme_values_of_every_option(call, name: tuple[str, ...]) -> None:
    command = COMMANDS[name]
    required = sum(one.param_type_name == "argument" and one.required for one in command.params)  # type: ignore[attr-defined]
    arguments = ["missing"] * required
    for one in command.params:  # type: ignore[attr-defined]
        if one.param_type_name == "option" and not getattr(one, "is_flag", False):
            for value in (*NUMBERS, *TEXTS[:: 1 if len(command.params) < 6 else 5]):  # type: ignore[attr-defined]
                call(*name, *arguments, one.opts[0], value)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_odd_arguments(call, name: tuple[str, ...]) -> None:
    for text in TEXTS:
        call(*name, text)
        call(*name, text, text)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(list(COMMANDS)), st.lists(st.sampled_from([*TEXTS, *NUMBERS, "-o", "--data", "--from"]), max_size=5)
)
def test_any_arguments(call, name: tuple[str, ...], words: list[str]) -> None:
    call(*name, *words)


@pytest.mark.parametrize(
    "error", [MemoryError(), np.zeros, torch.zeros, RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.")]
)
def test_memory_that_is_not_there_is_one_line(winnow, monkeypatch: pytest.MonkeyPatch, error) -> None:
    def fail(*_: object, **__: object) -> None:
        if isinstance(error, Exception):
            raise error
        error(10**15)

    monkeypatch.setattr("winnow.demo.run_demo", fail)
    said = winnow("demo")
    assert said.code == 1
    assert said.err.startswith("error: memory: not enough")
    assert said.err.count("\n") == 1
    monkeypatch.setattr("winnow.demo.run_demo", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        winnow("demo")
