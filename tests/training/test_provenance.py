"""Where a result comes from."""

from __future__ import annotations

import shlex

import pytest

from winnow.training.provenance import provenance


def test_the_command_can_be_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["winnow", "study", "m-eps", "--methods", "m 64, eps 5, C2", "--note", "it's", "train.lr=1e-4", "c2+gsp"]
    monkeypatch.setattr("sys.argv", ["anywhere/bin/winnow", *given[1:]])
    command = provenance()["command"]
    assert shlex.split(command) == given
    assert command.endswith("train.lr=1e-4 c2+gsp"), "what needs no quotes has none"
