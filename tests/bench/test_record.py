"""What a benchmark leaves behind: ratios within a case, a table, a whole file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from winnow.bench import Bench, Row, Timing, bench_table, save_bench
from winnow.bench.record import show_bytes, show_seconds


@pytest.fixture
def bench() -> Bench:
    rows = [
        Row("small", "ours", Timing((1.0, 2.0, 4.0)), peak_bytes=3_000_000, facts={"MAP@R": 0.5}),
        Row("small", "theirs", Timing((4.0,))),
        Row("large", "ours", Timing((9.0,))),
    ]
    return Bench("toy-cpu", "A toy", "theirs", {"repeats": 3}, rows, ["theirs is too slow for large"])


def test_ratios_are_to_the_rival_of_the_same_case(bench: Bench) -> None:
    assert [bench.ratio(row) for row in bench.rows] == [0.5, 1.0, None]


def test_the_file_says_what_where_and_with_what(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/winnow", "bench", "toy"])
    path = save_bench(bench, tmp_path / "results" / "bench")
    assert path.name == "toy-cpu.json"
    text = path.read_text()
    found = json.loads(text)
    assert found["command"] == "winnow bench toy"
    assert found["settings"] == {"repeats": 3}
    assert found["machine"]["cores"] >= 1
    assert {"torch", "POT", "pytorch-metric-learning"} <= set(found["versions"])
    first = found["rows"][0]
    assert first["seconds"] == {"median": 2.0, "lowest": 1.0, "highest": 4.0, "runs": 3}
    assert (first["ratio"], first["peak_bytes"], first["facts"]) == (0.5, 3_000_000, {"MAP@R": 0.5})
    assert found["rows"][2]["ratio"] is None
    assert found["notes"] == ["theirs is too slow for large"]
    assert "/somewhere" not in text


def test_the_commit_of_a_copied_tree_comes_from_the_environment(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no git
    monkeypatch.setenv("WINNOW_COMMIT", "abc123")
    assert json.loads(save_bench(bench, tmp_path).read_text())["commit"] == "abc123"


def test_the_table_has_every_figure(bench: Bench) -> None:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(bench_table(bench))
    text = capture.get()
    for piece in ("A toy", "ratios to theirs", "2 s", "150%", "0.5", "3 MB", "MAP@R", "9 s"):
        assert piece in text
    assert text.count("small") == 1


def test_on_a_narrow_terminal_names_break_and_figures_do_not() -> None:
    facts = {"error": 1.23e-07, "gradient error": 4.56e-07, "memory ratio": 1.04}
    long = "B 512, n 256, d 128, m 128, float32, eps 20, features near prototypes"
    rows = [Row(long, "costs, log-sum-exp, weighted sum alone", Timing((1.0, 1.1)), peak_bytes=3_000_000, facts=facts)]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(bench_table(Bench("toy-cpu", "A toy", "winnow", {}, rows)))
    text = capture.get()
    assert "…" not in text
    for piece in ("1.05 s", "10%", "3 MB", "1.23e-07", "4.56e-07", "1.04"):
        assert piece in text


def test_units_suit_the_size() -> None:
    assert [show_seconds(value) for value in (12.345, 0.0123, 4.2e-5)] == ["12.3 s", "12.3 ms", "42 µs"]
    assert [show_bytes(value) for value in (2_500_000_000, 31_000_000, 900)] == ["2.5 GB", "31 MB", "0.9 kB"]
