"""Bags of tokens: how they are drawn, that both poolings learn, and what the text makes of the numbers."""

from dataclasses import replace

import pytest
import torch

from winnow.errors import DataError
from winnow.studies import Task, tokens
from winnow.studies.tokens import Setting, Trained, draw_bags, train
from winnow.studies.tokens_report import draw, overlap, shown, table, told

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

    text = told([row("GAP", 0.2, 20.0, 60.0), row("GSP", 0.2, 95.0, 0.0)], 50, (0.55, 0.01))
    assert "+75.0 points: agrees in direction, the gain is as large" in text
    assert "60.0 % of the bags lie in another class's hull with GAP and 0.0 % with GSP: agrees.\n\n" in text
    assert "the picture is of the first, with 55.0 % of the bags in another hull with GAP and 1.0 % with GSP" in text
    text = told([row("GAP", 0.2, 80.0, 10.0), row("GSP", 0.2, 70.0, 20.0)], 50, (0.1, 0.2))
    assert "-10.0 points: does not agree in direction" in text
    assert "with GSP: does not agree.\n\n" in text


def test_the_picture_has_the_tables_numbers_and_a_key():
    def run(method: str, seed: int, margin: float, score: float, foreign: float) -> Trained:
        made = replace(TINY, classes=2, margin=margin)
        points = torch.rand(8, 2, generator=torch.Generator().manual_seed(seed))
        numbers = {"MAP@R": score, "validation": score, "overlap": foreign, "steps": 1}
        return Trained(made, method, seed, torch.rand(12, 2), points, torch.arange(8) // 4, numbers)

    # The first seed is best at margin 0.5, the mean at 0.2: text, table and picture go by the mean.
    runs = [run("GAP", 0, 0.2, 0.5, 0.1), run("GAP", 1, 0.2, 0.7, 0.3), run("GAP", 0, 0.5, 0.55, 0.0),
            run("GAP", 1, 0.5, 0.1, 0.0), run("GSP", 0, 0.2, 0.9, 0.0), run("GSP", 1, 0.2, 1.0, 0.0)]  # fmt: skip
    assert [(one.method, one.seed, one.setting.margin) for one in shown(runs)] == [("GAP", 0, 0.2), ("GSP", 0, 0.2)]
    figure = draw(runs)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["GAP: MAP@R 60.0 %, 20.0 % in another hull", "GSP: MAP@R 95.0 %, 0.0 % in another hull"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "bags in their class's hull", "tokens of the class", "tokens of the background",
    ]  # fmt: skip
    assert "drawn: the first seed" in figure.legends[0].get_title().get_text()


def test_the_study_trains_both_poolings_once(monkeypatch, tmp_path):
    monkeypatch.setattr(tokens, "settings", lambda small: ([Setting(classes=3, bag=10, bags=8, steps=100)], 1))
    with pytest.raises(DataError, match="--only-finished"):
        tokens.study(Task(small=True, runs=tmp_path, only_finished=True))
    findings = tokens.study(Task(small=True, runs=tmp_path))
    monkeypatch.setattr(tokens, "train", None)  # kept runs are read
    again = tokens.study(Task(small=True, runs=tmp_path, only_finished=True))
    assert (again.rows, again.text, again.details) == (findings.rows, findings.text, findings.details)
    assert [row["runs"] for row in findings.rows] == [1, 1]
    assert len(findings.figure.axes) == 2
