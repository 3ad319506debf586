"""The study of a transformer's tokens: which runs it plans, and that its text follows the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.planned import planned
from winnow.studies import STUDIES, Task, tokens_vit

pytestmark = pytest.mark.filterwarnings("ignore:backbone test_vit starts from random weights")
NAMES = list(tokens_vit.methods(small=True))


@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
def test_every_planned_run_can_be_built(small: bool, tmp_path: Path) -> None:
    compared = tokens_vit.comparison(Task(small=small, runs=tmp_path))
    for method, config in planned(compared, tmp_path):
        assert (config.backbone.tokens == "cls") == method.name.startswith("class token")
        assert (config.pooling.name == "gsp") == ("GSP" in method.name)
        assert (config.zsr.weight > 0) == ("ZSR" in method.name)


def results(*scores: float) -> dict[str, list[dict[str, object]]]:
    """Return runs of two seeds whose mean is the score and whose deviation is 0.01 * sqrt(2)."""
    return {f"{name}, C2": [{"metrics": {"test": {"MAP@R": score + shift}}} for shift in (-0.01, 0.01)]
            for name, score in zip(NAMES, scores, strict=True)}  # fmt: skip


def test_the_text_follows_the_numbers() -> None:
    text = tokens_vit.told(results(0.3, 0.2, 0.25, 0.4, 0.35), NAMES)
    assert "GSP is +10.00 points from the best of the others, class token; seeds deviate by 1.41." in text
    assert text.startswith("- C2: GSP helps. MAP@R is class token 30.00")
    assert "From the mean of the same tokens GSP is +20.00, from the class token +10.00." in text
    assert "GSP harms." in tokens_vit.told(results(0.3, 0.2, 0.25, 0.1, 0.15), NAMES)
    assert "what GSP does cannot be told from what seeds deviate by" in tokens_vit.told(
        results(0.3, 0.2, 0.25, 0.305, 0.1), NAMES
    )
    some = results(0.3, 0.2, 0.25, 0.4, 0.35)
    some["GSP, C2"].pop()
    assert "cannot be told from one seed" in tokens_vit.told(some, NAMES)
    some["GSP, C2"].pop()
    assert "missing" in tokens_vit.told(some, NAMES)


def test_the_study_goes_from_runs_to_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_vit, "MADE", (2, 1))
    short = ["train.max_steps=1", "train.eval_steps=1", "train.samples_per_class=1", "train.device=cpu"]
    monkeypatch.setattr(tokens_vit, "SMALL", [*tokens_vit.SMALL, *short])
    chosen = {name: tokens_vit.methods(small=True)[name] for name in ("class token", "mean of tokens", "GSP")}
    monkeypatch.setattr(tokens_vit, "methods", lambda small: chosen)
    asked = tokens_vit.comparison
    monkeypatch.setattr(tokens_vit, "comparison", lambda task: replace(asked(task), seeds=(0,)))
    findings = STUDIES["tokens-vit"](Task(small=True, runs=tmp_path / "runs"))
    assert [row["runs"] for row in findings.rows] == [1, 1, 1]
    assert "cannot be told from one seed" in findings.text
    assert "made-up pictures" in findings.text
    assert "missing" not in findings.text
