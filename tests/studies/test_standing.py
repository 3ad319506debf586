"""Paragraphs that set numbers beside the documents' claims: they follow the numbers and what seeds deviate by."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from winnow.studies import cub_losses, cub_poolings, losses
from winnow.studies.ccp_mnist_report import told
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import verdict
from winnow.studies.sweeps import curves

CHANCE = "cannot be told from what seeds deviate by"


def runs(*scores: float) -> list[dict[str, Any]]:
    return [{"metrics": {"test": {"MAP@R": score / 100, "P@1": score / 100}}, "best_step": 5000} for score in scores]


def test_losses_on_cub_are_set_beside_the_thesis() -> None:
    found = {method.name: [] for method in cub_losses.METHODS} | {
        "C2": runs(19.0, 20.0), "C2 + CCP": runs(22.0, 22.0), "C2 + XBM": runs(19.4, 20.0),
        "Proxy-Anchor": runs(20.0, 20.2), "Proxy-Anchor + R2": runs(19.5, 19.7), "MS": runs(18.0),
    }  # fmt: skip
    text = cub_losses.standing(found)
    assert "- CCP improves the loss it is added to: C2 + CCP +2.50 (there +1.66), agrees.\n" in text
    assert f"- Memory (XBM) improves the loss: C2 + XBM +0.20 (there +0.40), {CHANCE}." in text
    assert text.endswith(": R2 -0.50, does not agree.")  # whose seeds deviate less than those of C2
    assert "MS + CCP" not in text
    assert cub_losses.standing({method.name: [] for method in cub_losses.METHODS}) == ""


def test_poolings_on_cub_are_set_beside_the_thesis() -> None:
    reached = {"GAP": 18.0, "GSP + ZSR": 20.0, "DeLF": 19.9, "GMP": 17.0, "GeMean+GSP": 21.0, "GeMean": 18.5}
    assert cub_poolings.standing(reached, 0.8) == [
        "- GSP + ZSR is ahead of average pooling: +2.00 points of MAP@R; agrees.",
        "- It is first: from the best other, DeLF, +0.10; cannot be told from what runs deviate by. It is number 2 of "
        "the 6 that are in, and first is GeMean+GSP.",
        "- DeLF is on a par with it: -0.10; agrees.",
        "- GeMean is on a par with it: -1.50; does not agree.",
        "- No other is more than a point ahead of average pooling: of 1 none; agrees.",
    ]
    ahead = cub_poolings.standing({**reached, "GMP": 19.5, "GeMean": 19.3}, 0.8)
    assert ahead[3].endswith("GeMean is on a par with it: -0.70; agrees.")
    assert ahead[4].endswith("of 1 GMP; does not agree.")
    assert cub_poolings.standing(reached, 0.0)[2].endswith("cannot be told (one run).")
    alone = cub_poolings.standing({"GAP": 18.0, "GSP + ZSR": 17.9}, 0.0)
    assert alone == [f"- GSP + ZSR is ahead of average pooling: -0.10 points of MAP@R; {verdict(-0.1, 0, of='run')}."]
    assert cub_poolings.standing({"GAP": 18.0}, 0.8) == []


def test_losses_count_where_both_poolings_have_runs() -> None:
    def row(name: str, score: float | None, steps: int | None = 100) -> dict[str, Any]:
        return {"method": name, "MAP@R": score, "MAP@R sd": 0.2, "steps": steps}

    rows = [row("c1, GAP", 1.0), row("c1, GSP + ZSR", 3.0, 990), row("c2, GAP", 1.0, 1000),
            row("c2, GSP + ZSR", 1.5, 960), row("ms, GAP", 2.0), row("ms, GSP + ZSR", None, None)]  # fmt: skip
    text = losses.compared_poolings(rows)
    assert "with 2 of 2, and by +0.50 points of MAP@R with c2, which gains least; agrees." in text
    assert losses.not_done(rows, 1000).endswith("not done learning: c1 with GSP + ZSR, c2.")
    none = [row("ms, GAP", 2.0), row("ms, GSP + ZSR", None, None)]
    assert "No loss has runs of both" in losses.compared_poolings(none)
    assert losses.not_done(none, 1000) == ""


@pytest.mark.parametrize("collapsed", [True, False])
def test_ccp_in_the_plane_is_set_beside_the_thesis(collapsed: bool) -> None:
    def row(method: str, seed: int, problem: int, test: float, radius: float, spread: float) -> dict[str, Any]:
        return {
            "method": method, "seed": seed, "problem": problem, "validation MAP@R": test, "test MAP@R": test,
            "radius, converged": radius, "distance, converged": radius / 4, "proxy spread": spread,
        }  # fmt: skip

    rows = []
    for seed in (0, 1):
        rows += [row("CCP", seed, 1, 0.5, 1.2 - seed / 50, 0.1), row("CCP", seed, 2, 0.6 + seed / 50, 0.9, 0.2)]
        rows.append(row("one problem", seed, 1, 0.6 + seed / 20, 1.2, 0.001 if collapsed else 0.1))
        rows.append(row("samples", seed, 1, 0.6, 1.2, 0.1))
    text = told(rows)
    spread = "0.001 ± 0.000" if collapsed else "0.100 ± 0.000"
    said = f"{spread} from the mean of their class, {'agrees' if collapsed else 'does not agree'}"
    assert f"collapse to a point: {said} (closer" in text
    assert "radius falls through the problems: 1.190 ± 0.014 to 0.900 ± 0.000 (lower in 2 of 2 runs), agrees;" in text
    assert "nearest proxy: 0.297 ± 0.004 to 0.225 ± 0.000 (lower in 2 of 2 runs), agrees" in text
    assert "test MAP@R 50.0 ± 0.0 to 61.0 ± 1.4 (higher in 2 of 2 runs), agrees" in text
    assert f"one problem trained on for as long 62.5 ± 3.5 %, {CHANCE};" in text
    assert "in runs of 2, 2 problems" in text


def test_a_legend_is_beside_the_bars() -> None:
    compared = Comparison([Method("a", [], "one"), Method("b", [], "two")], seeds=(0,))
    figure = compared.figure({"a": runs(20.0), "b": runs(20.0)}, "all of them long")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    assert figure.axes[0].get_legend() is None
    FigureCanvasAgg(figure).draw()
    box, bars = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert box.y1 <= bars.y0


def test_one_baseline_of_several_lines_is_drawn_once_and_in_the_colour_of_none() -> None:
    found = {"C2": runs(20.0), "1 of 1": runs(21.0), "4 of 4": runs(22.0)}
    lines = {"K = 1": {1.0: "1 of 1"}, "K = 4": {4.0: "4 of 4"}}
    axes = curves(found, lines, dict.fromkeys(lines, "C2"), label="pool", title="CCP").axes[0]
    colours = {line.get_label(): line.get_color() for line in axes.get_lines()}
    assert list(colours) == ["K = 1", "K = 4", "C2"]
    assert len(set(colours.values())) == 3
    assert list(axes.get_xticks()) == [1.0, 4.0]
