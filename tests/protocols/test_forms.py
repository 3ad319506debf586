"""What the files of a table say: all metrics at the set's ranks, the documents' numbers, what is missing."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.conftest import MakeFolder
from tests.protocols.finished import finish, plan
from tests.protocols.test_runs import WORDS, make_task
from winnow.errors import ConfigError
from winnow.protocols import find_set, make_table, packed, write_table
from winnow.protocols.write import comma_separated, latex, markdown

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

LACKS = {"missing": {"test": {"found": 8122, "expected": 8131}, "train": {"found": 8048, "expected": 8054}}}
RANKS = {"R@10": 0.5, "R@100": 0.6, "R@1000": 0.7}


def test_every_file_says_where_its_numbers_come_from(tmp_path: Path) -> None:
    task = plan("conventional", tmp_path, "c1+xbm", "c1+xbm+gsp", target="cars196", words=["backbone.train=frozen"])
    trials = task.trials()
    for trial in trials[:4]:
        finish(trial, 0.2 + 0.01 * trial.run, dim=512, more={"R@2": 0.6 + 0.01 * trial.run}, data=LACKS)
    table = make_table(task, trials)
    write_table(task, table)
    page = (tmp_path / "table.md").read_text()
    assert "Images are missing: the test part has 8,122 of 8,131; the training part has 8,048 of 8,054." in page
    assert "The best of the finished runs by P@1" in page
    assert "best of 3" not in page
    assert "| 512-D MAP@R | doc. | 512-D P@1 | doc. | 512-D R@2 |" in page
    assert "| 63.00 |" in page  # R@2 of the best run, without a deviation
    paper = (tmp_path / "table.tex").read_text()
    head = " ".join(line.removeprefix("% ") for line in paper.splitlines() if line.startswith("%"))
    assert "the test part has 8,122 of 8,131" in head
    assert "`backbone.train=frozen`" in head
    assert "made with ResNet-50" in head
    assert "method & runs & 512-D MAP@R & d & 512-D P@1 & d & 512-D R@2" in paper
    assert "c1+xbm & 3 of 3 & $23.00$ ($22.00 \\pm 0.82$) $[" in paper
    assert "c1+xbm+gsp & 1 of 3 & $21.00$ ($21.00$) &" in paper
    row = next(csv.DictReader((tmp_path / "table.csv").open()))
    assert row["512-D MAP@R documents network"] == "ResNet-50"
    assert row["missing images"] == "the test part has 8,122 of 8,131; the training part has 8,048 of 8,054"
    assert row["settings"] == "backbone.train=frozen"
    assert "512-D R@2 documents" not in row
    (pair, *_) = csv.DictReader((tmp_path / "pairs.csv").open())
    assert (pair["method"], pair["against"], pair["runs of each"], pair["metric"]) == (
        "c1+xbm+gsp", "c1+xbm", "1", "MAP@R",
    )  # fmt: skip
    assert float(pair["difference"]) == 0


def test_a_doubt_about_the_documents_is_told_in_every_form(tmp_path: Path) -> None:
    task = plan("conventional", tmp_path, "c1+xbm+gsp", target="cars196", backbone="bn_inception", words=[])
    trials = task.trials()
    finish(trials[0], 0.2, dim=512)
    table = make_table(task, trials)
    (row,) = csv.DictReader(io.StringIO(comma_separated(task, table)))
    assert "misprint" in row["512-D MAP@R documents doubt"]
    for text in (latex(task, table), markdown(task, table)):
        assert "misprint" in text.replace("\n% ", " ")


def test_more_runs_than_the_protocols_are_counted(tmp_path: Path) -> None:
    task = plan("fair", tmp_path, "c2", runs=[4])
    trials = task.trials()
    assert len(trials) == 16
    for trial in trials:
        finish(trial, 0.2 + 0.01 * trial.run)
    assert "4 folds x 4 runs. The first" in markdown(task, make_table(task, trials))


@pytest.mark.parametrize("protocol", ["fair", "tuning", "conventional"])
def test_all_metrics_are_at_the_sets_ranks(tmp_path: Path, protocol: str) -> None:
    task = plan(protocol, tmp_path, "c2", target="sop")
    trials = task.trials()
    for trial in trials:
        finish(trial, 0.2 + 0.01 * trial.run, more=RANKS)
    table = make_table(task, trials)
    names = ["MAP@R", "P@1", "P@R", "R@1", "R@10", "R@100", "R@1000"]
    sizes = (4, 16) if protocol == "fair" else (4,)
    assert [(c.size, c.metric) for c in table.rows[0].cells] == [(size, name) for size in sizes for name in names]
    alone = {cell.metric: cell for cell in table.rows[0].cells if cell.size == 4}
    assert alone["R@100"].value == pytest.approx(60)
    for cell in table.rows[0].cells:
        assert cell.spread.low is not None
        assert cell.spread.high is not None
        assert 0 <= cell.spread.low <= cell.spread.high <= 100
    head = next(line for line in markdown(task, table).splitlines() if line.startswith("| method"))
    assert ("R@10 " in head) == ("R@1000 " in head) == (protocol == "conventional")
    assert "R@1 " not in head  # it is P@1
    (row,) = csv.DictReader(io.StringIO(comma_separated(task, table)))
    assert {f"{size}-D {name}" for size in sizes for name in names} <= row.keys()


def test_a_set_of_ones_own_has_no_columns_of_the_documents(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    task = make_task(photos, tmp_path / "out", "c2", protocol="conventional", runs=[1])
    trials = task.trials()
    task.train(trials, packed())
    table = make_table(task, trials)
    assert "doc" not in markdown(task, table)
    assert "documents" not in comma_separated(task, table)
    assert "& d" not in latex(task, table)


def test_a_folder_is_known_again_however_it_is_written(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    monkeypatch.chdir(photos.parent)
    written = [photos.name, f"{photos.name}/", str(photos), f"{photos}/", f"./{photos.name}"]
    assert {find_set(one).path for one in written} == {photos.name}
    assert {find_set(one).name for one in written} == {photos.name}
    task = make_task(Path(photos.name), tmp_path, "c2", protocol="conventional", runs=[1], words=WORDS)
    task.train(task.trials(), packed())
    monkeypatch.chdir(photos)
    again = make_task(Path("..") / photos.name, tmp_path, "c2", protocol="conventional", runs=[1], words=WORDS)
    with pytest.raises(ConfigError, match=r"another data\.path"):  # a relative path is another one elsewhere
        again.trials()
    monkeypatch.chdir(photos.parent)
    again = make_task(Path("..") / photos.parent.name / photos.name, tmp_path, "c2", protocol="conventional", runs=[1])
    assert [trial.result() is not None for trial in again.trials()] == [True, False, False]
