"""Protocols from the first run to the table, on sets of seconds: broken off, resumed, compared, refused."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.conftest import MakeFolder
from winnow.cli.main import app
from winnow.errors import ConfigError, DataError, ModelError
from winnow.protocols import BACKBONES, PROTOCOLS, Task, find_set, make_table, packed, write_table
from winnow.protocols import joined as joined_module
from winnow.protocols.joined import join
from winnow.protocols.write import comma_separated, content, latex, markdown
from winnow.training import Callback, RunDir
from winnow.training.sweep import PlannedRun

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

WORDS = ["backbone=resnet20", "backbone.weights=random", "backbone.train=frozen", "image.resize=16", "image.crop=16",
         "dim=4", "train.classes_per_batch=3", "train.samples_per_class=2", "train.max_steps=6", "train.eval_steps=2",
         "train.lr=1e-2", "train.device=cpu"]  # fmt: skip


def make_task(photos: Path, folder: Path, *methods: str, protocol: str = "fair", **more: Any) -> Task:
    words = more.pop("words", WORDS)
    return Task(PROTOCOLS[protocol], find_set(str(photos)), methods, folder, BACKBONES["resnet50"], words=words, **more)


class Killed(Callback):
    """Ends everything in the middle of a run, as Ctrl-C does."""

    def step(self, step: int) -> None:
        if step == 5:
            raise KeyboardInterrupt


def told(task: Task) -> tuple[str, str, str]:
    table = make_table(task, task.trials())
    return markdown(task, table), comma_separated(task, table), latex(task, table)


def test_a_protocol_that_was_killed_ends_in_the_table_of_an_unbroken_one(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    photos = make_folder(classes=16, images=4, size=16)
    both = make_task(photos, tmp_path / "whole", "c2", "ms", runs=[1, 2])
    both.train(both.trials(), packed())
    whole = make_task(photos, tmp_path / "whole", "c2", runs=[1, 2])
    broken = make_task(photos, tmp_path / "broken", "c2", runs=[1, 2])
    trials = broken.trials()

    def monitor(run: PlannedRun) -> Callback:
        return Killed() if run.run_dir.path.parts[-2:] == ("c2", "fold2-run2") else Callback()

    with pytest.raises(KeyboardInterrupt):
        broken.train(trials, packed(monitor=monitor))
    begun = broken.folder / "c2" / "fold2-run2"
    assert (begun / "checkpoint.pt").is_file()
    assert sum(t.result() is not None for t in trials) == 5
    told_missing = [shlex.split(command) for command in make_table(broken, trials).missing]
    left = [(words[words.index("--runs") + 1], words[words.index("--folds") + 1]) for words in told_missing[:1]]
    assert left == [("2", "2,3,4")]
    assert "--folds" not in told_missing[1]  # the third run of all
    assert len(told_missing) == 2
    stamps = {t.planned.run_dir.path: t.planned.run_dir.result_file.stat().st_mtime_ns for t in trials if t.result()}

    broken.train(broken.trials(), packed())
    for path, stamp in stamps.items():  # what was finished was not touched
        assert (path / "result.json").stat().st_mtime_ns == stamp
    assert not list(broken.folder.rglob("checkpoint.pt"))
    here, there = told(broken), told(whole)
    assert here[1:] == there[1:]
    assert here[0].replace("broken", "whole") == there[0]
    check_numbers(both)
    check_missing(both)


def check_numbers(task: Task) -> None:
    """The table's numbers against loops over the ensembles."""
    table = make_table(task, task.trials())
    cells = {(row.method, c.size, c.metric): c for row in table.rows for c in row.cells}
    assert {key[1] for key in cells} == {4, 16}
    joined: dict[str, dict[tuple[int, ...], float]] = {}
    for method in ("c2", "ms"):
        runs = [[RunDir(task.folder / method / f"fold{f}-run{r}") for r in (1, 2)] for f in range(1, 5)]
        tested = [[json.loads(run.result_file.read_text())["metrics"]["test"] for run in fold] for fold in runs]
        alone = [np.mean([fold[r]["P@1"] for fold, r in zip(tested, members, strict=True)])
                 for members in itertools.product(range(2), repeat=4)]  # fmt: skip
        assert cells[method, 4, "P@1"].value == pytest.approx(100 * np.mean(alone))
        assert cells[method, 4, "P@1"].spread.std == pytest.approx(100 * np.std(alone))
        joined[method] = {
            members: nearest_is_right([runs[f][r] for f, r in enumerate(members)])
            for members in itertools.product(range(2), repeat=4)
        }
        assert cells[method, 16, "P@1"].value == pytest.approx(100 * np.mean(list(joined[method].values())))
        assert cells[method, 16, "P@1"].spread.std == pytest.approx(100 * np.std(list(joined[method].values())))
    pair = next(p for p in table.pairs if (p.size, p.metric) == (16, "P@1"))
    assert (pair.method, pair.against, pair.models) == ("ms", "c2", 8)
    differences = [joined["ms"][members] - joined["c2"][members] for members in joined["c2"]]
    assert pair.difference.mean == pytest.approx(100 * np.mean(differences))


def nearest_is_right(members: list[RunDir]) -> float:
    """P@1 of the joined embeddings, image by image."""
    parts = []
    for run in members:
        embeddings, labels = run.read_embeddings()
        parts.append(embeddings.double() / embeddings.double().norm(dim=1, keepdim=True))
    together = torch.cat(parts, dim=1)
    together = together / together.norm(dim=1, keepdim=True)
    distances = torch.cdist(together, together).fill_diagonal_(torch.inf)
    return float((labels[distances.argmin(dim=1)] == labels).double().mean())


def check_missing(task: Task) -> None:
    """What is not finished is listed by a command that trains it."""
    table = make_table(task, task.trials())
    assert [row.finished for row in table.rows] == [8, 8]
    (command,) = table.missing  # one for both methods, or the table it makes would have one of them alone
    words = shlex.split(command)
    assert words[:6] == ["winnow", "protocol", "fair", task.target.path, "c2", "ms"]
    assert "--backbone" not in words  # a setting names another
    assert words[words.index("--runs") + 1] == "3"
    for word in WORDS:
        assert word in words


def test_tables_of_chapter_3_have_folders_and_commands_of_their_own(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    monkeypatch.chdir(tmp_path)
    base = ["protocol", "conventional", str(photos), "c2+ccp", "--only-finished"]
    for chapter, folder in ((5, "conventional"), (3, "conventional3")):
        assert CliRunner().invoke(app, [*base, "--chapter", str(chapter)]).exit_code == 0
        table = json.loads((tmp_path / "runs" / f"{folder}-{photos.name}-resnet50" / "table.json").read_text())
        assert ("--chapter 3" in table["missing"][0]) == ("of chapter 3" in table["title"]) == (chapter == 3)


def test_the_command_trains_what_is_missing_and_writes_all_tables(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    out = tmp_path / "out"
    base = ["protocol", "fair", str(photos), "c2", "-o", str(out), *WORDS]
    assert CliRunner().invoke(app, [*base, "--runs", "1", "--folds", "1,2"]).exit_code == 0
    partly = (out / "table.md").read_text()
    assert "| c2 | 2 of 12 |" in partly
    assert "A method has numbers once every fold has a run." in partly
    assert "± " not in partly.split("## Missing")[0].split("|---")[1]  # no ensemble while a fold has no run
    said = CliRunner().invoke(app, [*base, "--runs", "1"])
    assert said.exit_code == 0
    assert "fold=3,run=1: test MAP@R" in said.output
    assert "fold=1,run=1" not in said.output
    assert "half their size" not in (out / "table.md").read_text()
    assert CliRunner().invoke(app, [*base, "--only-finished", "--note", "Images of half their size."]).exit_code == 0
    noted = (out / "table.md").read_text()
    assert "Images of half their size." in noted.split("|")[0]
    assert "--note 'Images of half their size.'" in noted.split("## Missing")[1]
    rows = list(csv.DictReader((out / "table.csv").open()))
    assert (rows[0]["finished"], rows[0]["planned"]) == ("4", "12")
    assert rows[0]["16-D MAP@R std"] == ""
    assert rows[0]["16-D MAP@R low"] == ""  # a single run of each fold says nothing about how sure it is
    saved = json.loads((out / "table.json").read_text())
    assert saved["rows"][0]["finished"] == len(saved["runs"]) == 4
    went = saved["runs"][0]["validations"]
    logged = [json.loads(line) for line in (out / "c2" / "fold1-run1" / "log.jsonl").read_text().splitlines()]
    assert went["step"] == [entry["step"] for entry in logged]
    assert went["MAP@R"] == pytest.approx([entry["val/MAP@R"] for entry in logged], rel=1e-5)
    assert "lr" not in went  # it stays the same
    (out / "c2" / "fold1-run1" / "log.jsonl").unlink()
    assert CliRunner().invoke(app, [*base, "--only-finished"]).exit_code == 0
    again = json.loads((out / "table.json").read_text())
    assert again["runs"][0]["validations"] == {}
    assert again["rows"] == saved["rows"]
    assert len(saved["missing"]) == 1
    assert "--runs 2,3" in saved["missing"][0]
    assert {"commit", "machine", "command", "settings"} <= saved.keys()
    assert r"\begin{tabular}" in (out / "table.tex").read_text()
    assert r"\pm" not in (out / "table.tex").read_text()
    (shown,) = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| c2 | 4 of 12 |")]
    assert "." in shown
    assert "±" not in shown
    told = (out / "table.md").read_text().split("|")[0]
    assert "need two runs of every fold" in told
    assert "4 folds x 3 runs, of which those that are finished." in told
    assert "brackets" not in told  # nothing is explained that is not there
    assert "±" not in told
    assert CliRunner().invoke(app, [*base, "--runs", "2", "--folds", "1"]).exit_code == 0
    (shown,) = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| c2 | 5 of 12 |")]
    assert "±" not in shown  # of two ensembles that have three of their four models in common
    for words in (["train.lr=1e-3"], ["normalize=ball"]):
        error = CliRunner().invoke(app, [*base, *words]).exception
        assert isinstance(error, ConfigError)
        assert re.search(
            r"was made with another (train\.lr \(0\.01 there, 0\.001|normalize \(unit there, ball) here\)", str(error)
        )


def test_models_that_are_the_untrained_network_are_told(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    still = [*WORDS, "train.lr=1e-12"]
    for words, told in ((still, True), ([*WORDS, "train.lr=1e-2"], False)):
        task = make_task(photos, tmp_path / str(told), "c2", words=words, models=[1], runs=[1])
        task.train(task.trials(), packed())
        table = make_table(task, task.trials())
        assert (table.rows[0].steps == 0) == told
        assert any("Of the 1 run of c2 1 had its best validation before" in note for note in table.notes) == told


def test_a_network_of_ones_own_names_the_folder(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["protocol", "fair", str(photos), "c2", "--only-finished", *WORDS]).exit_code == 0
    (table,) = tmp_path.glob("runs/*/table.json")
    assert table.parent.name == f"fair-{photos.name}-resnet20"
    assert "--backbone" not in json.loads(table.read_text())["missing"][0]


def test_joined_numbers_are_kept_until_a_model_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(12) // 3
    runs = [[RunDir(tmp_path / f"fold{f}-run{r}") for r in (1, 2)] for f in (1, 2)]

    def fill(run: RunDir) -> None:
        run.path.mkdir(exist_ok=True)
        run.write_embeddings(torch.randn(12, 4, generator=rng), labels, list("abcdefghijkl"))

    for fold in runs:
        for run in fold:
            fill(run)
    judged: list[int] = []
    plain = joined_module.retrieval_metrics
    monkeypatch.setattr(joined_module, "retrieval_metrics", lambda *a, **k: judged.append(1) or plain(*a, **k))
    first = joined_module.joined_metrics(runs, normalize="unit", folder=tmp_path)
    assert first["MAP@R"].shape == (2, 2)
    assert len(judged) == 4
    again = joined_module.joined_metrics(runs, normalize="unit", folder=tmp_path)
    assert len(judged) == 4
    assert all(np.array_equal(first[name], again[name]) for name in first)
    joined_module.joined_metrics([runs[0][:1], runs[1][:1]], normalize="unit", folder=tmp_path)
    joined_module.joined_metrics(runs, normalize="unit", folder=tmp_path)
    assert len(judged) == 4  # asking for some forgets none
    fill(runs[0][0])
    changed = joined_module.joined_metrics(runs, normalize="unit", folder=tmp_path)
    assert len(judged) == 6
    assert np.array_equal(changed["MAP@R"][1], first["MAP@R"][1])
    gallery = joined_module.joined_metrics(runs, normalize="unit", folder=tmp_path, queries=5)
    assert len(judged) == 10
    one = join(
        [run.read_embeddings()[0] for run in (runs[0][0], runs[1][0])], lambda x: x / x.norm(dim=1, keepdim=True)
    )
    near = torch.cdist(one[:5], one[5:]).argmin(dim=1) + 5
    counted = torch.isin(labels[:5], labels[5:])
    assert gallery["P@1"][0, 0] == pytest.approx(float((labels[near] == labels[:5])[counted].double().mean()))


def test_joined_embeddings_are_of_unit_length_with_equal_shares() -> None:
    a, b = torch.randn(5, 3), 100 * torch.randn(5, 2)
    together = join([a, b], lambda x: x / x.norm(dim=1, keepdim=True))
    torch.testing.assert_close(together.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(together[:, :3].norm(dim=1), torch.full((5,), 0.5**0.5))


def test_the_conventional_table_has_the_best_run_and_says_what_it_is(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    task = make_task(photos, tmp_path / "out", "c2", protocol="conventional")
    trials = task.trials()
    assert [t.planned.run_dir.path.name for t in trials] == ["run1", "run2", "run3"]
    task.train(trials, packed())
    table = make_table(task, trials)
    tests = [t.result()["metrics"]["test"] for t in trials]  # type: ignore[index]
    best = max(tests, key=lambda metrics: metrics["P@1"])
    cells = {cell.metric: cell for cell in table.rows[0].cells}
    assert cells["P@1"].value == pytest.approx(100 * best["P@1"])
    assert cells["MAP@R"].value == pytest.approx(100 * best["MAP@R"])
    assert cells["P@1"].spread.mean == pytest.approx(100 * np.mean([metrics["P@1"] for metrics in tests]))
    told = markdown(task, table).split("|")[0]
    assert "chosen on the test classes" in told
    assert "the mean ± deviation of all; in brackets a 95% interval" in told
    mean, std = (getattr(cells["P@1"].spread, name) for name in ("mean", "std"))
    assert rf"${100 * best['P@1']:.2f}$ (${mean:.2f} \pm {std:.2f}$)" in latex(task, table)
    assert "The best of 3 runs by P@1" in told
    assert {path.name for path in write_table(task, table)} == {
        "table.md", "table.csv", "table.tex", "table.json", "pairs.csv",
    }  # fmt: skip


def test_tuning_reports_validation_classes(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=20, images=3, size=16)
    task = make_task(photos, tmp_path / "out", "c2", protocol="tuning", runs=[1, 2])
    trials = task.trials()
    task.train(trials, packed())
    table = make_table(task, trials)
    values = [t.result()["metrics"]["val"]["MAP@R"] for t in trials[:2]]  # type: ignore[index]
    assert table.rows[0].cells[0].value == pytest.approx(100 * np.mean(values))
    assert content(task, table)["rows"][0]["finished"] == 2


def test_a_run_that_fails_is_told_and_the_others_go_on(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    words = ["protocol", "conventional", str(photos), "c2", "ms", "--runs", "1", "-o", str(tmp_path / "out"), *WORDS]
    (tmp_path / "out" / "c2").mkdir(parents=True)
    (tmp_path / "out" / "c2" / "run1").write_text("a file in the way")
    said = CliRunner().invoke(app, words)
    assert "failed: method=c2,run=1" in said.output
    assert "method=ms,run=1: test MAP@R" in said.output
    assert said.exception is not None
    assert "1 run failed (method=c2,run=1)" in str(said.exception)


def test_what_is_not_there_is_told_before_anything_is_trained(make_folder: MakeFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["protocol", "fair", "cub200", "c2", "--data", str(tmp_path / "nowhere"), "-o", str(out), *WORDS]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, DataError)
    assert "folder of CUB-200-2011 not found" in str(error)
    photos = make_folder(classes=8, images=3, size=16)
    words = [
        "protocol",
        "conventional",
        str(photos),
        "c2",
        "-o",
        str(out),
        *WORDS,
        f"backbone.weights={tmp_path}/no.pth",
    ]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, ModelError)
    assert "no.pth: put the network's weights there" in str(error)
    assert not out.exists()


def test_prototypes_that_were_never_set_are_told(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.training.early_stopping.MIN_DELTA", -2.0)  # the best weights are those of the last step
    photos = make_folder(classes=8, images=3, size=16)
    words = [*WORDS, "train.freeze_backbone_steps=0", "pooling.memory_size=100000"]
    task = make_task(photos, tmp_path / "out", "c2+gsp", protocol="conventional", words=words, runs=[1])
    trials = task.trials()
    (outcome,) = task.train(trials, packed())
    assert outcome.result is not None
    assert not outcome.result.prototypes_ready
    table = make_table(task, trials)
    assert "Of the 1 run of c2+gsp 1 has its best weights from before the prototypes were set" in markdown(task, table)
    assert table.records[0]["prototypes_ready"] is False


def test_a_setting_that_is_dropped_is_noticed(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=4, size=16)
    first = make_task(
        photos, tmp_path, "c2", protocol="conventional", runs=[1], words=[*WORDS, "train.max_grad_norm=1.0"]
    )
    first.train(first.trials(), packed())
    later = make_task(photos, tmp_path, "c2", protocol="conventional", runs=[2])
    with pytest.raises(ConfigError, match=r"made with another train\.max_grad_norm \(1\.0 there, 10\.0 here\)"):
        later.trials()


def test_a_reason_that_runs_share_is_told_once(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    words = ["protocol", "conventional", str(photos), "c2", "ms", "-o", str(tmp_path / "out"), *WORDS]
    said = CliRunner().invoke(app, [*words, "backbone.weights=nowhere.pth"])
    told = [line for line in said.output.splitlines() if line.startswith("failed: ")]
    assert ["nowhere.pth" in line for line in told] == [True, *[False] * 5]
    assert all(line.endswith("for the same reason") for line in told[1:])
    assert "6 runs failed" in str(said.exception)


def test_the_command_lists_and_refuses(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["protocol", "--list"]).output
    for word in (
        "fair:",
        "conventional:",
        "cub200",
        "c1+xbm+gsp",
        "bn_inception",
        "  ccp-s:",
        "conventional --chapter 3:",
    ):
        assert word in listed
    for words, text in (
        (["protocol"], "name a protocol"), (["protocol", "fair", "cub"], "at least one method"),
        (["protocol", "fair", "cub", "c2", "--folds", "x"], "write numbers"),
        (["protocol", "fair", "cub", "c2", "--engine", "slurm", "-o", str(tmp_path)], "packed or ray"),
        (["protocol", "fair", "cub", "c2", "--gpus", "0.5"], "--gpus is for --engine ray, but packed trains"),
        (["protocol", "fair", "cub", "c2", "--address", "x:1"], "--address is for --engine ray"),
        (["protocol", "fair", "cub", "c2", "--engine", "ray", "--at-once", "2"], "--at-once is for --engine packed"),
        (["protocol", "fair", str(tmp_path), "c2", "--data", "x"], "named already"),
        (["protocol", "fair", "cub", "c2", "seed=5"], "seed=5: a protocol sets seed"),
        (["protocol", "fair", "cub", "c2", "train.run_test=false"], "sets train.run_test for every run itself"),
        (["protocol", "fair", "cub", "c2", "train={test: false}"], "set its parts one by one, as train.NAME=VALUE"),
        (["protocol", "fair", "cub", "c2", "data.val_classes=test"], "sets data.val_classes for every run itself"),
        (["protocol", "fair", "cub", "c2", "data.num_folds=2"], "sets data.num_folds for every run itself"),
        (["protocol", "fair", "cub", "c2", "loss=ms"], "loss=ms: that is another method"),
        (["protocol", "fair", "cub", "c2", "pooling=gsp"], "pooling=gsp: that is another method"),
        (["protocol", "fair", "cub", "c2", "c2+gsp", "pooling.mu=0.1"], "method 'c2': "),
    ):  # fmt: skip
        error = CliRunner().invoke(app, words).exception
        assert isinstance(error, ConfigError)
        assert text in str(error)
