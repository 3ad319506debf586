"""The table writer: what each format contains, read back by the format's own reader."""

import csv
import io
import re

from hypothesis import given
from hypothesis import strategies as st

from winnow.report.tables import Column, Styled, columns_of, to_csv, to_latex, to_markdown

TEXTS = st.text(st.characters(exclude_characters="\r", codec="utf-8"))
ROWS = [
    {"method": "GAP", "MAP@R": 15.2, "n": 3},
    {"method": "a|b", "MAP@R": Styled(17.25, "17.25 ± 0.10", bold=True), "n": None},
]


def test_markdown_aligns_numbers_and_escapes_bars() -> None:
    head, line, first, second = to_markdown(ROWS).splitlines()
    assert head == "| method | MAP@R | n |"
    assert line == "|---|---:|---:|"
    assert first == "| GAP | 15.2 | 3 |"
    assert second == "| a\\|b | **17.25 ± 0.10** | – |"


def test_digits_are_common_to_a_column() -> None:
    rows = [{"x": 20.0}, {"x": 20.25}, {"x": None}]
    assert [line.strip("| ") for line in to_markdown(rows).splitlines()[2:]] == ["20.00", "20.25", "–"]
    assert "20.250" in to_markdown(rows, [Column("x", digits=3)])


def test_small_numbers_keep_their_significant_digits() -> None:
    assert "0.001234" in to_markdown([{"x": 0.001234}, {"x": 5.5}])


@given(st.lists(st.tuples(TEXTS, st.none() | st.floats(allow_nan=False)), min_size=1, max_size=5))
def test_csv_reads_back(cells: list[tuple[str, float | None]]) -> None:
    rows = [{"text": text, "number": number} for text, number in cells]
    read = list(csv.reader(io.StringIO(to_csv(rows, [Column("text"), Column("number")]), newline="")))
    assert read[0] == ["text", "number"]
    for (text, number), row in zip(cells, read[1:], strict=True):
        assert row[0] == text
        assert row[1] == ("" if number is None else str(number))


def test_latex_escapes_and_has_one_cell_per_column() -> None:
    text = to_latex([{"method": "c2_50%", "x": Styled(1.0, "1.0 ± 0.1", bold=True)}], comment="one\ntwo")
    assert text.startswith("% one\n% two\n\\begin{tabular}{lr}")
    row = next(line for line in text.splitlines() if "c2" in line)
    assert row == r"c2\_50\% & \textbf{1.0 $\pm$ 0.1} \\"
    assert len(re.findall(r"(?<!\\)&", text)) == 2


def test_nothing_makes_no_markdown() -> None:
    assert to_markdown([]) == ""
    assert columns_of([]) == []
