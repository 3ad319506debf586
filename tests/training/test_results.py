"""Provenance of results."""

from __future__ import annotations

import shlex

import pytest

from winnow.training.results import collect_provenance


def test_provenance_command_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["winnow", "study", "m-eps", "--methods", "m 64, eps 5, C2", "--note", "it's", "train.lr=1e-4", "c2+gsp"]
    monkeypatch.setattr("sys.argv", ["anywhere/bin/winnow", *given[1:]])
    command = collect_provenance().command
    assert shlex.split(command) == given
    assert command.endswith("train.lr=1e-4 c2+gsp"), "what needs no quotes has none"
