"""`start.py install` accepts the extras of the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import start


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(start.__file__).parent / "pyproject.toml").read_text())["project"]
    known = list(project["optional-dependencies"])
    assert start.check_extras([*known[::-1], known[0]]) == sorted(known)
    with pytest.raises(SystemExit, match=r"unknown extra 'parket'.*parquet"):
        start.check_extras(["parquet", "parket"])


def test_install_adds_extras_to_those_of_the_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    installed, called = [], []
    monkeypatch.setattr(start, "install", installed.append)
    monkeypatch.setattr(start, "call", called.append)
    monkeypatch.setattr(start.sys, "argv", ["start.py", "install", "parquet", "onnx"])
    start.main()
    assert installed == [f"{start.USER},onnx,parquet"]
    assert called == [["winnow", "--version"]]
