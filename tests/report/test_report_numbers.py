"""Means, spreads, paired differences, and sentences that are true whatever the numbers are."""

import csv

import numpy as np
import pytest
from report_examples import full, method

from winnow.report import Comparison, Method, MethodRun, comparison_table, headline, markdown_table, write_csv
from winnow.report.numbers import best_rows, evidence, paired_difference, signed

GAP, GSP = [0.10, 0.13, 0.11], [0.20, 0.26, 0.25]


def two(gap: list[float], gsp: list[float]) -> Comparison:
    return Comparison("t", "s", [method("average pooling", gap), method("GSP", gsp)])


def test_the_table_holds_numpys_numbers():
    comparison = full(GAP, GSP)
    untrained, average, pooled = comparison_table(comparison)
    assert [row["method"] for row in (untrained, average, pooled)] == ["untrained", "average pooling", "GSP"]
    assert [row["seeds"] for row in (untrained, average, pooled)] == [0, 3, 3]
    for metric, of_map in (("MAP@R", lambda x: x), ("P@1", lambda x: 0.1 + x**2), ("P@R", np.sqrt)):
        ours, theirs = of_map(np.array(GSP)), of_map(np.array(GAP))
        assert pooled[metric] == pytest.approx(np.mean(ours), abs=1e-12)
        assert pooled[f"{metric} std"] == pytest.approx(np.std(ours, ddof=1), abs=1e-12)
        assert pooled[f"{metric} difference"] == pytest.approx(np.mean(ours - theirs), abs=1e-12)
        error = np.std(ours - theirs, ddof=1) / np.sqrt(3)
        assert pooled[f"{metric} difference se"] == pytest.approx(error, abs=1e-12)
        assert average[f"{metric} difference"] is average[f"{metric} difference se"] is None
    assert untrained["P@1"] == 0.05
    assert untrained["P@1 std"] is untrained["R@5"] is untrained["seconds"] is None
    assert pooled["R@5"] == pytest.approx(0.9)
    assert pooled["seconds"] == 41
    assert len({tuple(row) for row in (untrained, average, pooled)}) == 1


def test_differences_are_paired_by_seed_not_by_order():
    reference = method("average pooling", [0.1, 0.2, 0.3], seeds=[0, 1, 2])
    other = method("GSP", [0.35, 0.21, 0.9], seeds=[2, 1, 7])
    found = paired_difference(other, reference, "MAP@R")
    assert found is not None
    assert found.mean == pytest.approx((0.05 + 0.01) / 2)
    assert found.se == pytest.approx(0.04 / np.sqrt(2) / np.sqrt(2))
    assert (found.seeds, found.ahead) == (2, 2)
    assert paired_difference(method("GSP", [0.5], seeds=[9]), reference, "MAP@R") is None
    assert paired_difference(other, reference, "R@100") is None


@pytest.mark.parametrize(
    ("gap", "gsp", "says"),
    [
        ([0.025], [0.241], "GSP reaches 24.1 % MAP@R on classes it has never seen; average pooling reaches 2.5 %."),
        (
            [0.241], [0.2],
            "average pooling stays ahead: it reaches 24.1 % MAP@R on classes it has never seen; GSP reaches 20.0 %.",
        ),
        ([0.3], [0.3], "GSP and average pooling both reach 30.0 % MAP@R on classes they have never seen."),
        # A difference that the written numbers do not show is none.
        ([0.30010], [0.30040], "GSP and average pooling both reach 30.0 % MAP@R on classes they have never seen."),
        ([0.30040], [0.30010], "GSP and average pooling both reach 30.0 % MAP@R on classes they have never seen."),
        ([0.0], [0.0], "GSP and average pooling both reach 0.0 % MAP@R on classes they have never seen."),
    ],
)  # fmt: skip
def test_the_headline_is_true(gap, gsp, says):
    assert headline(two(gap, gsp)) == says


def test_the_headline_names_the_best_of_several():
    methods = [method("average pooling", [0.2]), method("GSP", [0.3]), method("GSP + ZSR", [0.25])]
    assert headline(Comparison("t", "s", methods)).startswith("GSP reaches 30.0 %")
    methods[0] = method("average pooling", [0.4])
    assert headline(Comparison("t", "s", methods)).endswith("; GSP, the best of the others, reaches 30.0 %.")
    assert headline(Comparison("t", "s", methods[:1])) == (
        "average pooling reaches 40.0 % MAP@R on classes it has never seen."
    )


def test_the_evidence_counts_seeds_and_keeps_the_sign():
    assert evidence(two([0.1, 0.2, 0.3], [0.2, 0.1, 0.1])) == (
        "GSP minus average pooling: −6.7 ± 8.8 percentage points (mean and standard error of 3 differences, paired by "
        "seed); GSP is ahead with 1 of 3 seeds."
    )
    assert "+10.0 percentage points with the one seed" in evidence(two([0.1], [0.2]))
    assert evidence(Comparison("t", "s", [method("GSP", [0.1])])) == ""
    apart = [method("average pooling", [0.1], seeds=[0]), method("GSP", [0.2], seeds=[1])]
    assert evidence(Comparison("t", "s", apart)) == ""


@pytest.mark.parametrize(
    ("value", "written"), [(0.216, "+21.6"), (-0.003, "−0.3"), (0.0, "0.0"), (-0.0001, "0.0"), (0.0004, "0.0")]
)
def test_differences_are_written_with_their_sign(value, written):
    assert signed(value) == written


def test_markdown_is_the_pages_table():
    lines = markdown_table(full(GAP, GSP)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["method", "seeds", "MAP@R, %", "P@1, %", "P@R, %", "MAP@R − average pooling, points"]
    assert cells[2] == ["untrained", "–", "2.0", "5.0", "3.0", "–"]
    assert cells[3][:3] == ["average pooling", "3", "11.3 ± 1.5"]
    assert cells[4][:3] == ["GSP", "3", "**23.7** ± 3.2"]
    assert cells[4][5] == "+12.3 ± 1.2"
    assert len({len(row) for row in cells}) == 1


def test_markdown_of_a_single_seed_and_a_name_with_a_bar():
    table = markdown_table(Comparison("t", "s", [method("a|b", [0.1]), method("GSP", [0.2])]))
    assert "±" not in table
    assert "| a\\|b | 1 | 10.0 |" in table
    assert "+10.0" in table


def test_ties_are_all_best_unless_all_tie():
    rows = [{"m": 0.3001}, {"m": 0.3004}, {"m": 0.1}, {"m": None}]
    assert best_rows(rows, "m") == {0, 1}
    assert best_rows(rows[:2], "m") == set()
    assert best_rows(rows[3:], "m") == set()


def test_csv_holds_the_same_rows(tmp_path):
    comparison = full(GAP, GSP)
    path = tmp_path / "new" / "results.csv"
    write_csv(path, comparison)
    with path.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    expected = [
        {key: "" if value is None else str(value) for key, value in row.items()} for row in comparison_table(comparison)
    ]
    assert read == expected


def test_a_metric_only_some_runs_have_is_averaged_over_those():
    runs = [MethodRun(0, {"MAP@R": 0.1, "P@1": 0.5}, [], 1.0), MethodRun(1, {"MAP@R": 0.3}, [], 1.0)]
    (row,) = comparison_table(Comparison("t", "s", [Method("GSP", "m", runs)]))
    assert row["P@1"] == 0.5
    assert row["P@1 std"] is None
    assert row["MAP@R"] == pytest.approx(0.2)
