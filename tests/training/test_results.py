"""Provenance of results."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from winnow.training.results import collect_provenance, zsr_scale_note


def test_provenance_command_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["winnow", "study", "m-eps", "--methods", "m 64, eps 5, C2", "--note", "it's", "train.lr=1e-4", "c2+gsp"]
    monkeypatch.setattr("sys.argv", ["anywhere/bin/winnow", *given[1:]])
    command = collect_provenance().command
    assert shlex.split(command) == given
    assert command.endswith("train.lr=1e-4 c2+gsp"), "what needs no quotes has none"


def test_runs_with_another_scale_of_zsr_are_noted() -> None:
    def config(weight: float, **scale: float) -> dict[str, Any]:
        return {"zsr": {"weight": weight, **scale}}

    assert zsr_scale_note([{}, config(0, logit_scale=9.5), config(0.1, logit_scale=1)]) == ""
    assert "`zsr.logit_scale=9.5`" in zsr_scale_note([config(0.1, scale=9.5), config(0.1, logit_scale=9.5)])
    assert "=1` and `zsr.logit_scale=9.5`" in zsr_scale_note([config(1, logit_scale=1), config(1, logit_scale=9.5)])
    assert "=3` and `zsr.logit_scale=9.5`" in zsr_scale_note([config(1, scale=9.5), config(1, logit_scale=3)])
