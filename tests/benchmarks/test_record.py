"""Saved measurements: ratios within a case, a table, a file, files of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.record import Benchmark, Measurement, format_bytes, format_seconds, load, save, to_table
from winnow.profiling import Timing

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def benchmark() -> Benchmark:
    rows = [
        Measurement("small", "ours", Timing((1.0, 2.0, 4.0)), peak_bytes=3_000_000, facts={"MAP@R": 0.5}),
        Measurement("small", "theirs", Timing((4.0,))),
        Measurement("large", "ours", Timing((9.0,))),
    ]
    return Benchmark("toy-cpu", "A toy", "theirs", {"repeats": 3}, rows, ["theirs is too slow for large"])


def test_ratios_are_to_the_reference_of_the_same_case(benchmark: Benchmark) -> None:
    assert [benchmark.ratio(row) for row in benchmark.rows] == [0.5, 1.0, None]


def test_the_file_says_what_where_and_with_what(
    benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/__main__.py", "toy"])
    path = save(benchmark, tmp_path / "results" / "bench")
    assert path.name == "toy-cpu.json"
    text = path.read_text()
    found = json.loads(text)
    assert found["command"] == "python -m benchmarks toy"
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
    benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no git
    monkeypatch.setenv("WINNOW_COMMIT", "abc123")
    assert json.loads(save(benchmark, tmp_path).read_text())["commit"] == "abc123"


def test_the_table_has_every_figure(benchmark: Benchmark) -> None:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(to_table(benchmark))
    text = capture.get()
    for piece in ("A toy", "ratios to theirs", "2 s", "150%", "0.5", "3 MB", "MAP@R", "9 s"):
        assert piece in text
    assert text.count("small") == 1


def test_on_a_narrow_terminal_names_break_and_figures_do_not() -> None:
    facts = {"error": 1.23e-07, "gradient error": 4.56e-07, "memory ratio": 1.04}
    long = "B 512, n 256, d 128, m 128, float32, eps 20, features near prototypes"
    rows = [
        Measurement(
            long, "costs, log-sum-exp, weighted sum alone", Timing((1.0, 1.1)), peak_bytes=3_000_000, facts=facts
        )
    ]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(to_table(Benchmark("toy-cpu", "A toy", "winnow", {}, rows)))
    text = capture.get()
    assert "…" not in text
    for piece in ("1.05 s", "10%", "3 MB", "1.23e-07", "4.56e-07", "1.04"):
        assert piece in text


def test_units_suit_the_size() -> None:
    assert [format_seconds(value) for value in (12.345, 0.0123, 4.2e-5)] == ["12.3 s", "12.3 ms", "42 µs"]
    assert [format_bytes(value) for value in (2_500_000_000, 31_000_000, 900)] == ["2.5 GB", "31 MB", "0.9 kB"]


def test_files_of_earlier_versions_are_read_under_new_names(tmp_path: Path) -> None:
    names = ["its weights gradient kernel alone", "4 side by side", "1 clients", "16 clients", "winnow"]
    rows = [{"case": "r1, a regulariser", "rival": name, "ratio": 1.0} for name in names]
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"command": "winnow bench losses --repeats 5", "rows": rows}))
    found = load(path)
    assert found["command"] == "python -m benchmarks losses --repeats 5"
    expected = ["winnow, weights gradient kernel", "4 concurrent runs", "1 client", "16 clients", "winnow"]
    assert [row["rival"] for row in found["rows"]] == expected
    assert {(row["case"], row["ratio"]) for row in found["rows"]} == {("r1, regularizer", 1.0)}


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "bench").glob("*.json")), ids=lambda path: path.stem)
def test_ratios_of_published_results_follow_from_their_medians(path: Path) -> None:
    found = load(path)
    references = {r["case"]: r["seconds"]["median"] for r in found["rows"] if r["rival"] == found["against"]}
    assert references
    for row in found["rows"]:
        reference = references.get(row["case"])
        assert row["ratio"] == (None if reference is None else pytest.approx(row["seconds"]["median"] / reference))
