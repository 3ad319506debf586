"""Bags of tokens: how they are drawn, that both poolings learn, and what the text makes of the numbers."""

import pytest
import torch

from winnow.errors import DataError
from winnow.studies import Task, tokens
from winnow.studies.tokens import Setting, draw_bags, train
from winnow.studies.tokens_report import overlap, table, told

TINY = Setting(classes=4, bag=20, bags=24, lr=5e-3, steps=300, warm_up=50, prototypes=8, eps=60.0)


def test_bags_hold_their_class_and_the_background():
    setting = Setting(bags=200)
    bags = draw_bags(setting, torch.Generator().manual_seed(0))
    assert bags.shape == (16, 200, 50)
    background = bags >= 64
    share = background.double().mean(dim=2)
    assert abs(float(share.mean()) - 0.5) < 0.01
    assert abs(float(share.std()) - 0.1) < 0.01
    assert (background.sum(dim=2) >= 1).all()
    assert (~background).any(dim=2).all()
    owner = torch.arange(16)[:, None, None].expand_as(bags)
    assert torch.equal(bags[~background] // 4, owner[~background])
    assert set(bags[background].tolist()) == {64, 65, 66, 67}


def test_gsp_learns_to_leave_the_background_aside():
    gap, gsp = train(TINY, "GAP", 0), train(TINY, "GSP", 0)
    assert gsp.tokens.abs().max() <= tokens.BOX + 1e-6
    assert gsp.numbers["MAP@R"] > 0.8
    assert gsp.numbers["overlap"] <= gap.numbers["overlap"]
    assert gsp.numbers["steps"] > TINY.warm_up
    rows = table([gap, gsp])
    assert [row["method"] for row in rows] == ["GAP", "GSP"]
    assert rows[1]["MAP@R"] == round(100 * gsp.numbers["MAP@R"], 1)


def test_overlap_counts_bags_in_foreign_hulls():
    run = train(Setting(classes=2, bag=4, bags=4, steps=0), "GAP", 0)
    run.labels = torch.tensor([0] * 4 + [1] * 4)
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    run.embedded = torch.cat([square, square + 0.5])
    assert overlap(run) == 0.25  # one corner of each lies in the other
    run.embedded = torch.cat([square, square + 5])
    assert overlap(run) == 0


def test_the_text_follows_the_numbers():
    def row(method: str, margin: float, score: float, hull: float) -> dict[str, object]:
        return {"method": method, "margin": margin, "MAP@R": score, "validation": score,
                "bags in another class's hull, %": hull}  # fmt: skip

    text = told([row("GAP", 0.2, 20.0, 60.0), row("GSP", 0.2, 95.0, 0.0)], 50)
    assert "+75.0 points. That agrees in direction; the gain is as large" in text
    assert text.endswith("which agrees.")
    text = told([row("GAP", 0.2, 80.0, 10.0), row("GSP", 0.2, 70.0, 20.0)], 50)
    assert "-10.0 points. That does not agree in direction" in text
    assert text.endswith("which does not agree.")


def test_the_study_trains_both_poolings_once(monkeypatch, tmp_path):
    monkeypatch.setattr(tokens, "settings", lambda small: ([Setting(classes=3, bag=10, bags=8, steps=100)], 1))
    with pytest.raises(DataError, match="leave out --only-finished"):
        tokens.study(Task(small=True, runs=tmp_path, only_finished=True))
    findings = tokens.study(Task(small=True, runs=tmp_path))
    monkeypatch.setattr(tokens, "train", None)  # kept runs are read
    again = tokens.study(Task(small=True, runs=tmp_path, only_finished=True))
    assert (again.rows, again.text, again.details) == (findings.rows, findings.text, findings.details)
    assert [row["runs"] for row in findings.rows] == [1, 1]
    assert len(findings.figure.axes) == 2
