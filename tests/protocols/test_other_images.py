"""Embeddings of other images are not joined, nor their numbers compared; the other methods keep their table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.protocols.finished import LABELS, NAMES, finish, plan
from winnow.errors import DataError, ModelError
from winnow.protocols import Task, joined_metrics, make_table
from winnow.protocols.runs import Trial
from winnow.protocols.write import content, markdown
from winnow.training import RunDir

OTHERS = (*NAMES[:-1], "class3/new.jpg")


def run_all(task: Task, odd: set[tuple[str, int, int]]) -> list[Trial]:
    trials = task.trials()
    for trial in trials:
        names = OTHERS if (trial.method, trial.model, trial.run) in odd else NAMES
        finish(trial, 0.2 + 0.01 * trial.run + 0.001 * trial.model, names=names)
    return trials


def test_a_run_of_other_images_is_named_and_its_method_left_out(tmp_path: Path) -> None:
    task = plan("fair", tmp_path, "c2", "ms", "c1")
    trials = run_all(task, {("ms", 2, 3)})
    folds = [[t.planned.run_dir for t in trials if (t.method, t.model) == ("ms", model)] for model in range(1, 5)]
    with pytest.raises(DataError, match=r"ms/fold2-run3: other test images.*train the runs anew"):
        joined_metrics(folds, normalize="unit", folder=tmp_path)
    table = make_table(task, trials)
    assert [len(row.cells) > 0 for row in table.rows] == [True, False, True]
    assert list(table.faults) == ["ms"]
    assert {(pair.method, pair.against) for pair in table.pairs} == {("c1", "c2")}
    page = markdown(task, table)
    assert f"ms is left out: {tmp_path}/ms/fold2-run3: other test images" in page
    assert "once every fold has a run" not in page
    assert "fold2-run3" in content(task, table)["left_out"]["ms"]


def test_methods_of_other_images_are_not_compared(tmp_path: Path) -> None:
    task = plan("fair", tmp_path, "c2", "ms")
    table = make_table(task, run_all(task, {("ms", model, run) for model in range(1, 5) for run in (1, 2, 3)}))
    assert [len(row.cells) > 0 for row in table.rows] == [True, False]
    assert table.faults["ms"].count("/ms/fold") == 12
    assert not table.pairs


def test_embeddings_that_are_gone_leave_a_method_out(tmp_path: Path) -> None:
    task = plan("fair", tmp_path, "c2", "ms")
    trials = run_all(task, set())
    make_table(task, trials)  # joined numbers are kept from now on
    (tmp_path / "c2" / "fold1-run1" / "test.safetensors").unlink()
    table = make_table(task, trials)
    assert [len(row.cells) > 0 for row in table.rows] == [False, True]
    assert "fold1-run1/test.safetensors: file missing or damaged" in table.faults["c2"]


@pytest.mark.parametrize("one_more", [False, True])
def test_files_without_a_mark_are_compared_by_their_labels(tmp_path: Path, one_more: bool) -> None:
    labels = {"a": LABELS, "b": torch.cat([LABELS, LABELS[-1:]]) if one_more else LABELS, "c": LABELS}
    runs = [RunDir(tmp_path / name) for name in labels]
    for run, own in zip(runs, labels.values(), strict=True):
        run.path.mkdir()
        save_file({"embeddings": torch.randn(len(own), 4), "labels": own}, run.embeddings_file)
    runs[2].write_embeddings(torch.randn(12, 4), LABELS, NAMES)  # as runs have it now
    folds = [[run] for run in runs]
    if one_more:
        with pytest.raises(DataError, match=f"^{tmp_path}/b: "):
            joined_metrics(folds, normalize="unit", folder=tmp_path)
    else:
        assert joined_metrics(folds, normalize="unit", folder=tmp_path)["P@1"].shape == (1, 1, 1)
    with pytest.raises(ModelError, match="missing or damaged"):
        RunDir(tmp_path / "nowhere").read_images()


def test_the_mark_is_of_names_labels_and_order(tmp_path: Path) -> None:
    def marked(name: str, labels: torch.Tensor, names: tuple[str, ...]) -> RunDir:
        run = RunDir(tmp_path / name)
        run.path.mkdir()
        run.write_embeddings(torch.randn(len(labels), 4), labels, names)
        return run

    first, same = marked("first", LABELS, NAMES).read_images(), marked("same", LABELS, NAMES).read_images()
    assert first.matches(same)
    swapped = (NAMES[1], NAMES[0], *NAMES[2:])  # two images of one class: the labels are the same
    for name, labels, names in (
        ("names", LABELS, OTHERS), ("order", LABELS, swapped), ("labels", LABELS.flip(0), NAMES),
        ("count", LABELS[:-1], NAMES[:-1]),
    ):  # fmt: skip
        assert not first.matches(marked(name, labels, names).read_images()), name
