"""Means, deviations, differences paired by seed, and sentences that hold for all numbers."""

import numpy as np
import pytest
from report_examples import full, history, method
from scipy import stats

from winnow.errors import DataError
from winnow.report import Comparison, Method, MethodRun, comparison_table, evidence, headline, markdown_table
from winnow.report.comparison import display_table, paired_difference

GAP, GSP = [0.10, 0.13, 0.11], [0.20, 0.26, 0.25]


def two(gap: list[float], gsp: list[float]) -> Comparison:
    return Comparison("t", "s", [method("average pooling", gap), method("GSP", gsp)])


def test_the_table_holds_numpys_numbers():
    comparison = full(GAP, GSP)
    baseline, average, pooled = comparison_table(comparison)
    assert [row["method"] for row in (baseline, average, pooled)] == ["pretrained", "average pooling", "GSP"]
    assert [row["seeds"] for row in (baseline, average, pooled)] == [0, 3, 3]
    for metric, of_map in (("MAP@R", lambda x: x), ("P@1", lambda x: 0.1 + x**2), ("P@R", np.sqrt)):
        ours, theirs = of_map(np.array(GSP)), of_map(np.array(GAP))
        assert pooled[metric] == pytest.approx(np.mean(ours), abs=1e-12)
        assert pooled[f"{metric} std"] == pytest.approx(np.std(ours, ddof=1), abs=1e-12)
        difference = ours - theirs
        assert pooled[f"{metric} difference"] == pytest.approx(np.mean(difference), abs=1e-12)
        assert pooled[f"{metric} difference std"] == pytest.approx(np.std(difference, ddof=1), abs=1e-12)
        low, high = stats.t.interval(0.95, 2, loc=np.mean(difference), scale=stats.sem(difference))
        assert pooled[f"{metric} difference low"] == pytest.approx(low, abs=1e-12)
        assert pooled[f"{metric} difference high"] == pytest.approx(high, abs=1e-12)
        assert average[f"{metric} difference"] is average[f"{metric} difference low"] is None
    assert baseline["P@1"] == 0.05
    assert baseline["P@1 std"] is baseline["R@5"] is baseline["seconds"] is None
    assert pooled["R@5"] == pytest.approx(0.9)
    assert pooled["seconds"] == 41
    assert len({tuple(row) for row in (baseline, average, pooled)}) == 1


def test_differences_are_paired_by_seed_not_by_order():
    reference = method("average pooling", [0.1, 0.2, 0.3], seeds=[0, 1, 2])
    other = method("GSP", [0.35, 0.21, 0.9], seeds=[2, 1, 7])
    found = paired_difference(other, reference, "MAP@R")
    assert found is not None
    assert found.mean == pytest.approx((0.05 + 0.01) / 2)
    assert found.std == pytest.approx(0.04 / np.sqrt(2))
    assert found.n == 2
    assert paired_difference(method("GSP", [0.5], seeds=[9]), reference, "MAP@R") is None
    assert paired_difference(other, reference, "R@100") is None


def test_the_headline_names_the_best_other_method_and_the_reference():
    methods = [method("average pooling", [0.4]), method("GSP", [0.3]), method("GSP + ZSR", [0.25])]
    text = headline(Comparison("t", "s", methods))
    assert text.index("GSP reaches 30.0%") < text.index("average pooling 40.0%")
    assert "40.0%" in headline(Comparison("t", "s", methods[:1]))


@pytest.mark.parametrize(
    ("gap", "gsp", "numbers", "noise"),
    [
        ([0.1, 0.1, 0.1], [0.2, 0.201, 0.202], ["+10.1 points", "[9.9, 10.3]", "n = 3 seeds"], False),
        ([0.1, 0.2, 0.3], [0.2, 0.1, 0.1], ["−6.7 points", "[−44.6, 31.3]", "n = 3 seeds"], True),
        ([0.1, 0.2], [0.2, 0.1], ["0.0 points", "[−127.1, 127.1]", "n = 2 seeds"], False),
        ([0.1], [0.2], ["+10.0 points", "n = 1 seed"], False),
    ],
)
def test_the_evidence_has_difference_interval_and_n(gap, gsp, numbers, noise):
    text = evidence(two(gap, gsp))
    assert all(number in text for number in numbers)
    assert ("[" in text) == (len(gap) > 1)
    assert ("noise" in text) == noise  # a verdict needs three seeds


def test_no_evidence_without_a_common_seed():
    assert evidence(Comparison("t", "s", [method("GSP", [0.1])])) == ""
    apart = [method("average pooling", [0.1], seeds=[0]), method("GSP", [0.2], seeds=[1])]
    assert evidence(Comparison("t", "s", apart)) == ""


def test_markdown_holds_the_numbers():
    lines = markdown_table(full(GAP, GSP)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0][:5] == ["method", "n", "MAP@R (%)", "P@1 (%)", "P@R (%)"]
    assert cells[2] == ["pretrained", "–", "2.00", "5.00", "3.00", "–"]
    assert cells[3][:3] == ["average pooling", "3", "11.33 ± 1.53"]
    assert cells[4][:3] == ["GSP", "3", "23.67 ± 3.21"]
    assert cells[4][5] == "**+12.33 [7.16, 17.50]**"
    assert len({len(row) for row in cells}) == 1


def test_only_differences_whose_interval_excludes_zero_are_bold():
    _, rows = display_table(two([0.1, 0.2, 0.3], [0.2, 0.1, 0.1]))
    assert not rows[1]["difference"].bold
    _, rows = display_table(two([0.3, 0.3, 0.3], [0.1, 0.11, 0.1]))
    assert rows[1]["difference"].bold
    _, rows = display_table(two([0.1], [0.2]))
    assert not rows[1]["difference"].bold


def test_a_single_seed_has_no_deviation_and_a_bar_in_a_name_is_escaped():
    table = markdown_table(Comparison("t", "s", [method("a|b", [0.1]), method("GSP", [0.2])]))
    assert "±" not in table
    assert "| a\\|b | 1 | 10.00 |" in table
    assert "| +10.00 |" in table


def test_a_metric_that_some_runs_have_is_averaged_over_those():
    runs = [MethodRun(0, {"MAP@R": 0.1, "P@1": 0.5}, [], 1.0), MethodRun(1, {"MAP@R": 0.3}, [], 1.0)]
    (row,) = comparison_table(Comparison("t", "s", [Method("GSP", "m", runs)]))
    assert row["P@1"] == 0.5
    assert row["P@1 std"] is None
    assert row["MAP@R"] == pytest.approx(0.2)


def test_incomplete_comparisons_raise():
    run = MethodRun(0, {"MAP@R": 0.1}, history(0.1), 1.0)
    with pytest.raises(DataError, match="methods"):
        Comparison("t", "s", [])
    with pytest.raises(DataError, match="GSP, GSP"):
        Comparison("t", "s", [Method("GSP", "m", [run]), Method("GSP", "m", [run])])
    with pytest.raises(DataError, match="GSP"):
        Method("GSP", "m", [])
    with pytest.raises(DataError, match="same seed"):
        Method("GSP", "m", [run, run])
    with pytest.raises(DataError, match="seed 4"):
        Method("GSP", "m", [MethodRun(4, {"P@1": 0.1}, [], 1.0)])
