"""Tables of protocols as files: equal numbers in all of them, published numbers, notes, and the missing runs."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from tests.conftest import MakeFolder
from tests.protocols.finished import finish, make_request
from tests.protocols.test_plan import SMALL
from tests.protocols.test_plan import make_request as make_small_request
from winnow.errors import ConfigError, DataError
from winnow.protocols import (
    PUBLISHED_METHODS,
    MethodSpec,
    ProtocolTable,
    find_dataset,
    find_protocol,
    local_executor,
    make_table,
    read_table,
    write_table,
)
from winnow.protocols.ensembles import HEADLINE
from winnow.protocols.render import (
    claimed_difference,
    render_csv,
    render_latex,
    render_markdown,
    render_paired_csv,
    verdicts,
)
from winnow.protocols.statistics import bootstrap_estimate, clip_interval, mean_of_members
from winnow.protocols.table import published_number
from winnow.report.claims import Estimate

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "results" / "protocols").glob("*-*.json"))
OLD_TABLE = ROOT / "tests" / "golden" / "files" / "table.json"
MISSING = {"missing": {"test": {"found": 8122, "expected": 8131}, "train": {"found": 8048, "expected": 8054}}}
INTERVALS = {None: "bootstrap interval", "student": "by Student's t"}
RANKS = {"R@10": 0.5, "R@100": 0.6, "R@1000": 0.7}


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def markdown_rows(page: str, first: str) -> list[dict[str, str]]:
    """Return the rows of the table whose second column has this heading; headings occur twice if a paper has them."""
    lines = page.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| method | {first} |"))
    names: list[str] = []
    for name in split_row(lines[start]):
        names.append(f"{names[-1]} paper" if name == "paper" and "-D " in names[-1] else name)
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(names, split_row(line), strict=True)))
    return rows


def split_row(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def decimals(*values: float | None) -> list[str]:
    return [f"{value:.2f}" for value in values if value is not None]


def shown_numbers(text: str) -> list[str]:
    """Return the numbers of a text, with an ASCII minus and without a plus."""
    return re.findall(r"-?\d+\.\d+", text.replace("−", "-"))


def raw_cells(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield method and JSON of each number."""
    for row in content["rows"]:
        for cell in row["cells"]:
            yield str(MethodSpec.parse(row["method"])), cell


def check_rendered(content: Any, page: str, text: str, paired: str) -> None:
    """Compare the numbers of a `table.json` with those of its Markdown page and its CSV files."""
    best = content["protocol"]["report"] == "best"
    rows = {row["method"]: row for row in markdown_rows(page, "runs")}
    flat = {row["method"]: row for row in csv_rows(text)}
    for row in content["rows"]:
        method = str(MethodSpec.parse(row["method"]))
        assert rows[method]["runs"] == f"{row['finished']} of {row['planned']}"
        assert rows[method]["best step"] == flat[method]["best step"] == str(row["steps"])
    for method, cell in raw_cells(content):
        name, spread, theirs = f"{cell['size']}-D {cell['metric']}", cell["spread"], cell["document"]
        ends = decimals(spread["low"], spread["high"])
        if cell["metric"] in HEADLINE:
            shown = decimals(*([cell["value"]] if best else []), spread["mean"], spread["std"]) + ends
            assert shown_numbers(rows[method][name]) == shown
        elif best and cell["metric"] != "R@1" and cell["metric"].startswith("R@"):
            assert shown_numbers(rows[method][name]) == decimals(cell["value"])
        else:
            assert name not in rows[method]
        assert float(flat[method][name]) == pytest.approx(cell["value"], abs=5e-5)
        for key in ("mean", "std", "low", "high"):
            value = spread.get(key)
            assert flat[method][f"{name} {key}"] == ("" if value is None else str(round(float(value), 4)))
        assert spread["low"] is None or INTERVALS[spread.get("interval")] in page
        if theirs is not None:
            assert shown_numbers(rows[method][f"{name} paper"]) == decimals(theirs["value"], theirs.get("std"))
            assert flat[method][f"{name} paper"] == str(theirs["value"])
            if theirs["table"]:
                assert flat[method][f"{name} paper table"] == theirs["table"]
            else:  # of a recipe, whose source is in a note
                assert theirs["source"] in page
    differences = {}
    if any(pair["metric"] in HEADLINE for pair in content["pairs"]):
        differences = {(r["method"], r["against"], r["metric"]): r for r in markdown_rows(page, "against")}
    flat_pairs = {(r["method"], r["against"], f"{r['dim']}-D {r['metric']}"): r for r in csv_rows(paired)}
    assert len(flat_pairs) == len(content["pairs"])
    for pair in content["pairs"]:
        one = pair["difference"]
        key = (
            *(str(MethodSpec.parse(pair[name])) for name in ("method", "against")),
            f"{pair['size']}-D {pair['metric']}",
        )
        assert float(flat_pairs[key]["difference"]) == pytest.approx(one["mean"], abs=5e-5)
        if pair["metric"] in HEADLINE:
            row = differences[key]
            shown = decimals(one["mean"], one["low"], one["high"])
            assert shown_numbers(row["difference [95% interval]"]) == [text.replace("-0.00", "0.00") for text in shown]
            assert row["n"] == str(pair["models"])
            excludes_zero = one["low"] is not None and (one["low"] > 0 or one["high"] < 0)
            assert row["difference [95% interval]"].startswith("**") == excludes_zero


def check_table(table: ProtocolTable, content: Any) -> None:
    check_rendered(content, render_markdown(table), render_csv(table), render_paired_csv(table))


# Published results and files of version 0.1.0


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_published_tables_have_the_numbers_of_their_records(file: Path) -> None:
    table, content = read_table(file), json.loads(file.read_text(encoding="utf-8"))
    check_table(table, content)
    for suffix, text in ((".md", render_markdown(table)), (".csv", render_csv(table)), (".tex", render_latex(table))):
        assert file.with_suffix(suffix).read_text(encoding="utf-8") == text, "run scripts/render_protocols.py"


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_records_of_published_tables_are_read_and_written_unchanged(file: Path) -> None:
    table, content = read_table(file), json.loads(file.read_text(encoding="utf-8"))
    assert json.loads(table.to_json()) == content
    for row in table.rows:
        of_method = [run for run in table.runs if run.method == row.method]
        assert len(of_method) == row.finished
        for run in of_method:
            assert run.commit
            assert run.machine.python
            assert run.config
            assert run.metrics[table.protocol.split]


def test_a_table_of_version_0_1_0_is_rendered_with_equal_numbers() -> None:
    table, content = read_table(OLD_TABLE), json.loads(OLD_TABLE.read_text(encoding="utf-8"))
    check_table(table, content)
    assert [row.method for row in table.rows] == [str(MethodSpec.parse(row["method"])) for row in content["rows"]]
    assert table.rows[1].method.startswith("c2+gsp-zsr,")


@pytest.mark.parametrize("text", [None, "", "[]", '{"rows": 3}', "{"])
def test_other_files_are_no_tables(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "table.json").write_text(text)
    with pytest.raises(DataError, match="expected the table of a protocol"):
        read_table(tmp_path / "table.json")


# Tables of synthetic runs


def test_every_file_has_the_numbers_and_their_origin(tmp_path: Path) -> None:
    request = make_request(
        "conventional", tmp_path, "c1+xbm", "c1+xbm+gsp-zsr", dataset="cars196", overrides=["backbone.train=frozen"]
    )
    runs = request.plan()
    data = {**MISSING, "archive": ["images differ from the official archive: 64 of 64 sampled"]}
    for run in runs[:4]:
        finish(run, 0.2 + 0.01 * run.run, dim=512, more={"R@2": 0.6 + 0.01 * run.run}, data=data)
    table = make_table(request, runs)
    write_table(table, request.folder)
    texts = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir() if path.is_file()}
    check_rendered(
        json.loads(texts["table.json"]), texts["table.md"], texts["table.csv"], texts["paired_differences.csv"]
    )  # fmt: skip
    row, _ = markdown_rows(texts["table.md"], "runs")
    assert shown_numbers(row["512-D MAP@R"])[:3] == ["23.00", "22.00", "0.82"]
    assert row["512-D R@2"] == "63.00"  # of the best run
    assert "c1+xbm & 3 of 3 & 100 & 23.00 (22.00 $\\pm$ 0.82) [" in texts["table.tex"]
    assert "c1+xbm+gsp-zsr & 1 of 3 & 100 & 21.00 (21.00) &" in texts["table.tex"]
    notes = [line.removeprefix("- ") for line in texts["table.md"].splitlines() if line.startswith("- ")]
    comments = [line.removeprefix("% ") for line in texts["table.tex"].splitlines() if line.startswith("%")]
    assert comments[1:] == notes
    assert "Missing images: test 8,122 of 8,131; training 8,048 of 8,054." in notes
    assert "Images: images differ from the official archive: 64 of 64 sampled." in notes
    assert "Paper: [Thesis], Table 5.2, ResNet-50." in notes
    assert "Settings that replace the protocol's: `backbone.train=frozen`." in notes
    first = csv_rows(texts["table.csv"])[0]
    assert first["512-D MAP@R paper backbone"] == "ResNet-50"
    assert first["missing images"] == "test 8,122 of 8,131; training 8,048 of 8,054"
    assert first["settings"] == "backbone.train=frozen"
    assert "512-D R@2 paper" not in first
    assert read_table(tmp_path / "table.json") == table


def test_a_caveat_about_a_published_number_is_in_every_form(tmp_path: Path) -> None:
    request = make_request(
        "conventional", tmp_path, "c1+xbm+gsp-zsr", dataset="cars196", backbone="bn_inception", overrides=[]
    )
    runs = request.plan()
    finish(runs[0], 0.2, dim=512)
    table = make_table(request, runs)
    (row,) = csv_rows(render_csv(table))
    assert "misprint" in row["512-D MAP@R paper caveat"]
    for text in (render_latex(table), render_markdown(table)):
        assert "Caveat, c1+xbm+gsp-zsr, 512-D MAP@R of the paper: implausible" in text


def test_more_runs_than_the_protocol_has_are_counted(tmp_path: Path) -> None:
    request = make_request("fair", tmp_path, "c2", runs=[4])
    runs = request.plan()
    assert len(runs) == 16
    for run in runs[:-1]:
        finish(run, 0.2 + 0.01 * run.run)
    table = make_table(request, runs)
    assert (table.rows[0].finished, table.rows[0].planned) == (15, 16)
    (command,) = table.missing
    words = shlex.split(command)
    assert words[words.index("--runs") + 1] == "1,2,3,4"


@pytest.mark.parametrize("protocol", ["fair", "tuning", "conventional"])
def test_all_metrics_have_the_ranks_of_the_dataset(tmp_path: Path, protocol: str) -> None:
    request = make_request(protocol, tmp_path, "c2", dataset="sop")
    runs = request.plan()
    for run in runs:
        finish(run, 0.2 + 0.01 * run.run, more=RANKS)
    table = make_table(request, runs)
    names = ["MAP@R", "P@1", "P@R", "R@1", "R@10", "R@100", "R@1000"]
    dims = (4, 16) if protocol == "fair" else (4,)
    assert [(cell.dim, cell.metric) for cell in table.rows[0].cells] == [(dim, name) for dim in dims for name in names]
    cell = table.rows[0].find(4, "R@100")
    assert cell is not None
    assert cell.value == pytest.approx(60)
    for cell in table.rows[0].cells:
        assert cell.estimate.low is not None
        assert cell.estimate.high is not None
        assert 0 <= cell.estimate.low <= cell.estimate.high <= 100
    assert not table.missing
    check_table(table, json.loads(table.to_json()))


def test_a_folder_has_no_columns_of_a_paper(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    request = make_small_request(photos, tmp_path / "out", "c2", protocol="conventional", runs=[1])
    runs = request.plan()
    request.train(runs, local_executor())
    table = make_table(request, runs)
    for text in (render_markdown(table), render_csv(table), render_latex(table)):
        assert "paper" not in text.lower()


def test_verdicts_are_those_of_the_rule() -> None:
    """Fine-tuned CUB: the intervals contain 0, and some exclude the published difference."""
    page = (ROOT / "results" / "protocols" / "fair-cub200-resnet50.md").read_text(encoding="utf-8")
    found = markdown_rows(page, "against")
    assert len(found) == 12
    for row in found:
        mean, low, high = map(float, shown_numbers(row["difference [95% interval]"]))
        assert low < mean < high
        if row["paper"] == "–":
            assert row["sign"] == row["size"] == "–"
            continue
        claimed = float(row["paper"])
        assert claimed > 0
        sign = "Reproduced" if low > 0 else "Not reproduced" if high < 0 else "Within seed noise"
        size = "Not reproduced" if high < claimed else "Reproduced" if low > 0 else "Within seed noise"
        assert (row["sign"], row["size"]) == (sign, size)
    assert {row["size"] for row in found} == {"–", "Not reproduced", "Within seed noise"}


def test_a_published_loss_is_a_claim_too(tmp_path: Path) -> None:
    """In the fair protocol on In-shop the paper has PNCA + GSP below PNCA by 0.04 points of MAP@R."""
    request = make_request("fair", tmp_path, "pnca", "pnca+gsp-zsr", dataset="inshop", overrides=[])
    runs = request.plan()
    for run in runs:
        finish(run, 0.4 - (0.02 + 0.002 * run.run) * (run.method == "pnca+gsp-zsr"), dim=128)
    table = make_table(request, runs)
    pair = next(pair for pair in table.pairs if (pair.dim, pair.metric) == (128, "MAP@R"))
    claimed = claimed_difference(table, pair)
    assert claimed == pytest.approx(-0.04)
    assert pair.difference.high is not None
    assert pair.difference.high < 0
    assert verdicts(table, pair, -0.04) == {"sign": "Reproduced", "size": "Reproduced"}
    assert verdicts(table, pair, -4.0) == {"sign": "Reproduced", "size": "Not reproduced"}
    assert verdicts(table, pair, 0.04) == {"sign": "Not reproduced", "size": "Not reproduced"}
    rows = tuple(row.model_copy(update={"finished": 11}) for row in table.rows)
    fewer = table.model_copy(update={"rows": rows, "runs": table.runs[:-1]})
    assert verdicts(fewer, pair, -0.04) == {"sign": "Incomplete", "size": "Incomplete"}
    check_table(table, json.loads(table.to_json()))  # negative differences are bold too


def test_intervals_are_clipped_to_percent(tmp_path: Path) -> None:
    request = make_request("tuning", tmp_path, "c2")
    runs = request.plan()
    for run, score in zip(runs, (0.499, 0.4999, 0.47), strict=True):
        finish(run, score)
    cell = make_table(request, runs).rows[0].find(4, "P@1")
    assert cell is not None
    assert cell.estimate.low is not None
    assert cell.estimate.low < cell.value < cell.estimate.high == 100


def test_a_run_without_a_gain_is_not_counted_as_one_without_prototypes(tmp_path: Path) -> None:
    request = make_request("tuning", tmp_path, "c2+gsp-zsr")
    runs = request.plan()
    for run, best_step in zip(runs, (0, 2, 4), strict=True):
        finish(run, 0.2, best_step=best_step, prototypes_ready=best_step == 4)
    page = render_markdown(make_table(request, runs))
    assert "- c2+gsp-zsr: 1 of 3 runs have the best validation before the first step." in page
    assert "- c2+gsp-zsr: 1 of 3 runs have the best validation before the prototypes were initialized" in page


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_published_numbers_are_recomputed_from_the_runs(file: Path) -> None:
    """Means, deviations, and intervals of single models follow from the metrics of the recorded runs."""
    table = read_table(file)
    protocol = table.protocol

    def values(method: str, metric: str, numbers: set[tuple[int, int]] | None = None) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in range(protocol.folds)]
        for run in sorted((run for run in table.runs if run.method == method), key=lambda run: run.run or 0):
            assert run.fold is not None
            assert run.run is not None
            if numbers is None or (run.fold, run.run) in numbers:
                late = metric.startswith("last third ")
                value = last_third(run, metric) if late else run.metrics[protocol.split][metric]
                found[run.fold - 1].append(100 * value)
        return found

    def estimate(folds: list[list[float]]) -> Estimate:
        """Return the estimate of the documented method: a t-test where every fold has one run, else the bootstrap."""
        if [len(fold) for fold in folds] != [1, 1, 1, 1]:
            return bootstrap_estimate(mean_of_members(folds))
        bounds = ttest_1samp(np.ravel(folds), 0).confidence_interval(0.95)
        return Estimate(float(np.mean(folds)), None, float(bounds.low), float(bounds.high), 4, "student")

    def last_third(run: Any, metric: str) -> float:
        name, raw = metric.removeprefix("last third ").removeprefix("raw "), "raw " if " raw " in metric else ""
        group = "" if protocol.split == "val" or protocol.selects_on_test else "test "
        curve = zip(run.validations["step"], run.validations[f"{raw}{group}{name}"], strict=True)
        late = [value for step, value in curve if step > run.steps * 2 / 3]
        return sum(late) / len(late)

    def check(found: Estimate, wanted: Estimate) -> None:
        pairs = zip((found.mean, found.std, found.low, found.high),
                    (wanted.mean, wanted.std, wanted.low, wanted.high), strict=True)  # fmt: skip
        for one, other in pairs:
            assert (one is None) == (other is None)
            assert one == pytest.approx(other, abs=1e-9)
        assert found.interval == wanted.interval

    for row in table.rows:
        for cell in (cell for cell in row.cells if cell.dim == protocol.dim):
            single = values(row.method, cell.metric)
            check(cell.estimate, clip_interval(estimate(single), 0, 100))
            of_best = protocol.report == "best" and not cell.metric.startswith("last third")
            best = single[0][int(np.argmax(values(row.method, "P@1")[0]))]
            assert cell.value == pytest.approx(best if of_best else mean_of_members(single).mean())
    for pair in (pair for pair in table.pairs if pair.dim == protocol.dim):
        names = (pair.method, pair.against)
        both = set.intersection(*({(r.fold or 0, r.run or 0) for r in table.runs if r.method == n} for n in names))
        ours, theirs = (values(name, pair.metric, both) for name in names)
        differences = [np.subtract(*both).tolist() for both in zip(ours, theirs, strict=True)]
        check(pair.difference, estimate(differences))
        assert pair.models == len(both)


def test_published_numbers() -> None:
    def value(protocol: str, *key: Any, chapter: int = 5) -> tuple[float, str] | None:
        found = published_number(find_protocol(protocol, chapter), *key)
        return None if found is None else (found.value, found.table)

    assert value("conventional", "cub200", "c1+xbm", "resnet50", 512, "P@1") == (66.68, "5.2")
    assert value("conventional", "cars196", "c1+xbm+gsp-zsr", "resnet50", 512, "MAP@R") == (25.76, "5.2")
    assert value("conventional", "cub200", "c2+ccp", "resnet50", 512, "P@1") == (71.04, "3.2")
    assert value("conventional", "cars196", "ms+ccp", "resnet50", 512, "P@1") == (89.02, "3.2")
    # The number of BN-Inception is next to any network's in the fair protocol; the protocol's chapter is preferred.
    assert value("fair", "cub200", "c2", "resnet50", 128, "MAP@R") == (20.58, "5.1")
    assert value("fair", "cub200", "c2", "resnet50", 128, "MAP@R", chapter=3) == (21.01, "3.1")
    assert value("fair", "cub200", "c2+zsr", "resnet50", 512, "MAP@R") == (26.49, "5.3")
    assert value("fair", "cub200", "c2+ccp", "resnet50", 512, "MAP@R") == (28.02, "3.1")
    assert value("fair", "cub200", "c2+gemean", "resnet50", 512, "MAP@R") is None
    number = published_number(find_protocol("fair"), "cub200", "c2+gsp-zsr", "resnet50", 128, "MAP@R")
    assert number is not None
    assert number.std == 0.24
    for method in PUBLISHED_METHODS:
        assert published_number(find_protocol("fair"), "cub200", method, "resnet50", 512, "MAP@R") is not None, method


def test_a_folder_is_the_same_in_every_spelling(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    monkeypatch.chdir(photos.parent)
    written = [photos.name, f"{photos.name}/", str(photos), f"{photos}/", f"./{photos.name}"]
    assert {find_dataset(one).path for one in written} == {photos.name}
    assert {find_dataset(one).name for one in written} == {photos.name}
    request = make_small_request(Path(photos.name), tmp_path, "c2", protocol="conventional", runs=[1], overrides=SMALL)
    request.train(request.plan(), local_executor())
    monkeypatch.chdir(photos)
    again = make_small_request(
        Path("..") / photos.name, tmp_path, "c2", protocol="conventional", runs=[1], overrides=SMALL
    )
    with pytest.raises(ConfigError, match=r"another data\.path"):  # a relative path is another one elsewhere
        again.plan()
    monkeypatch.chdir(photos.parent)
    again = make_small_request(
        Path("..") / photos.parent.name / photos.name, tmp_path, "c2", protocol="conventional", runs=[1]
    )
    assert [run.result() is not None for run in again.plan()] == [True, False, False]
