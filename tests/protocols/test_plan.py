"""Protocols from the first run to the table, on small data: interrupted, resumed, compared, rejected."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tests.conftest import MakeFolder
from tests.protocols import finished
from winnow.cli.main import app
from winnow.errors import ConfigError, DataError, ModelError
from winnow.integrity import SUMS
from winnow.protocols import (
    BACKBONES,
    DATASETS,
    PROTOCOLS,
    MethodSpec,
    ProtocolRequest,
    find_dataset,
    local_executor,
    make_table,
    read_table,
    write_table,
)
from winnow.protocols.plan import run_seed
from winnow.protocols.render import render_csv, render_latex, render_markdown
from winnow.protocols.spec import CONVENTIONAL_3
from winnow.protocols.table import published_number
from winnow.training import Callback
from winnow.training.sweep import PlannedRun

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

SMALL = ["backbone=resnet20", "backbone.weights=random", "backbone.train=frozen", "image.resize=16", "image.crop=16",
         "dim=4", "train.classes_per_batch=3", "train.samples_per_class=2", "train.max_steps=6", "train.eval_steps=2",
         "train.lr=1e-2", "train.device=cpu"]  # fmt: skip


def make_request(
    photos: Path, folder: Path, *methods: str, protocol: str = "fair", **more: Any
) -> ProtocolRequest:  # fmt: skip
    dataset, overrides = find_dataset(str(photos)), more.pop("overrides", SMALL)
    return ProtocolRequest(
        PROTOCOLS[protocol], dataset, methods, folder, BACKBONES["resnet50"], overrides=overrides, **more
    )


class Killed(Callback):
    """Interrupts in the middle of a run, as Ctrl-C does."""

    def step(self, step: int) -> None:
        if step == 5:
            raise KeyboardInterrupt


def rendered(request: ProtocolRequest) -> tuple[str, str, str]:
    table = make_table(request, request.plan())
    return render_markdown(table), render_csv(table), render_latex(table)


@pytest.mark.slow
def test_an_interrupted_protocol_ends_in_the_table_of_an_uninterrupted_one(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    photos = make_folder(classes=16, images=4, size=16)
    whole = make_request(photos, tmp_path / "whole", "c2", runs=[1])
    whole.train(whole.plan(), local_executor())
    broken = make_request(photos, tmp_path / "broken", "c2", runs=[1])
    runs = broken.plan()

    def interrupt(run: PlannedRun) -> Callback:
        return Killed() if run.run_dir.path.parts[-2:] == ("c2", "fold2-run1") else Callback()

    with pytest.raises(KeyboardInterrupt):
        broken.train(runs, local_executor(callback=interrupt))
    first, second = (broken.folder / "c2" / f"fold{fold}-run1" for fold in (1, 2))
    assert (second / "checkpoint.pt").is_file()
    assert [run.planned.run_dir.path for run in runs if run.result() is not None] == [first]
    assert make_table(broken, runs).rows[0].finished == 1
    stamp = (first / "result.json").stat().st_mtime_ns

    broken.train(broken.plan(), local_executor())
    assert (first / "result.json").stat().st_mtime_ns == stamp  # the finished run was not touched
    assert not list(broken.folder.rglob("checkpoint.pt"))
    here, there = rendered(broken), rendered(whole)
    assert here[1:] == there[1:]
    assert here[0].replace("broken", "whole") == there[0]


def test_one_command_trains_all_missing_runs_of_all_methods(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=16, images=2, size=8)
    request = make_request(photos, tmp_path, "c2", "ms", folds=[1], runs=[2])
    (command,) = make_table(request, request.plan()).missing
    words = shlex.split(command)
    assert words[:6] == ["winnow", "protocol", "fair", request.dataset.path, "c2", "ms"]
    assert not {"--backbone", "--folds", "--runs"} & set(words)  # an override names the backbone
    assert words[words.index("-o") + 1] == str(tmp_path)
    assert set(SMALL) <= set(words)


def test_tables_of_chapter_3_have_their_own_folders_and_commands(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    monkeypatch.chdir(tmp_path)
    base = ["protocol", "conventional", str(photos), "c2+ccp", "--no-train"]
    words: list[str]
    for words, folder in (([], "conventional"), (["--paper", "ccp"], "conventional3")):
        assert CliRunner().invoke(app, [*base, *words]).exit_code == 0
        table = json.loads((tmp_path / "runs" / f"{folder}-{photos.name}-resnet50" / "table.json").read_text())
        assert ("--paper ccp" in table["missing"][0]) == ("of chapter 3" in table["title"]) == bool(words)


@pytest.mark.slow
def test_the_command_trains_what_is_missing_and_writes_all_tables(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    out = tmp_path / "out"
    base = ["protocol", "fair", str(photos), "c2", "-o", str(out), *SMALL]
    assert CliRunner().invoke(app, [*base, "--runs", "1", "--folds", "1,2"]).exit_code == 0
    partly = (out / "table.md").read_text()
    assert "| c2 | 2 of 12 |" in partly
    assert "A method has numbers once every fold has a finished run." in partly
    assert "±" not in partly  # no ensemble while a fold has no run
    said = CliRunner().invoke(app, [*base, "--runs", "1"])
    assert said.exit_code == 0
    assert "fold=3,run=1: test MAP@R" in said.output
    assert "fold=1,run=1" not in said.output
    assert "half their size" not in (out / "table.md").read_text()
    assert CliRunner().invoke(app, [*base, "--no-train", "--note", "Images of half their size."]).exit_code == 0
    noted = (out / "table.md").read_text()
    assert "- Images of half their size." in noted.splitlines()
    assert "--note 'Images of half their size.'" in noted.split("4 of 12 runs finished.")[1]
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
    assert CliRunner().invoke(app, [*base, "--no-train"]).exit_code == 0
    again = json.loads((out / "table.json").read_text())
    assert again["runs"][0]["validations"] == {}
    for row in saved["rows"]:  # the log has the means over the last third
        row["cells"] = [cell for cell in row["cells"] if not cell["metric"].startswith("last third")]
    assert again["rows"] == saved["rows"]
    assert len(saved["missing"]) == 1
    assert {"commit", "machine", "command", "settings"} <= saved.keys()
    assert r"\begin{tabular}" in (out / "table.tex").read_text()
    assert r"\pm" not in (out / "table.tex").read_text()
    (shown,) = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| c2 | 4 of 12 |")]
    assert "." in shown
    assert "±" not in shown
    page = (out / "table.md").read_text()
    assert "two finished runs of every fold" in page
    assert "bootstrap" not in page  # only what the table has is explained
    assert "Student's t" in page
    assert "±" not in page
    assert CliRunner().invoke(app, [*base, "--runs", "2", "--folds", "1"]).exit_code == 0
    (shown,) = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| c2 | 5 of 12 |")]
    assert "±" not in shown  # of two ensembles that have three of their four models in common
    for words in (["train.lr=1e-3"], ["normalize=ball"]):
        error = CliRunner().invoke(app, [*base, *words]).exception
        assert isinstance(error, ConfigError)
        assert re.search(
            r"was made with another (train\.lr \(0\.01 there, 0\.001|normalize \(unit there, ball) here\)", str(error)
        )


def test_runs_without_a_gain_are_counted(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    still = [*SMALL, "train.lr=1e-12"]
    for words, no_gain in ((still, True), ([*SMALL, "train.lr=1e-2"], False)):
        request = make_request(photos, tmp_path / str(no_gain), "c2", overrides=words, folds=[1], runs=[1])
        request.train(request.plan(), local_executor())
        table = make_table(request, request.plan())
        assert (table.rows[0].steps == 0) == no_gain
        assert ("c2: 1 of 1 runs have the best validation before the first step." in render_markdown(table)) == no_gain


def test_another_backbone_names_the_folder(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["protocol", "fair", str(photos), "c2", "--no-train", *SMALL]).exit_code == 0
    (table,) = tmp_path.glob("runs/*/table.json")
    assert table.parent.name == f"fair-{photos.name}-resnet20"
    assert "--backbone" not in json.loads(table.read_text())["missing"][0]


def test_the_conventional_table_reports_the_best_run(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    request = make_request(photos, tmp_path / "out", "c2", protocol="conventional")
    runs = request.plan()
    assert [run.planned.run_dir.path.name for run in runs] == ["run1", "run2", "run3"]
    request.train(runs, local_executor())
    table = make_table(request, runs)
    tests = [result.metrics["test"] for run in runs if (result := run.result()) is not None]
    best = max(tests, key=lambda metrics: metrics["P@1"])
    cells = {cell.metric: cell for cell in table.rows[0].cells}
    assert cells["P@1"].value == pytest.approx(100 * best["P@1"])
    assert cells["MAP@R"].value == pytest.approx(100 * best["MAP@R"])
    assert cells["P@1"].estimate.mean == pytest.approx(100 * np.mean([metrics["P@1"] for metrics in tests]))
    page = render_markdown(table)
    assert "selected on the test classes" in page
    assert "Brackets: 95% bootstrap interval" in page
    mean, std = (getattr(cells["P@1"].estimate, name) for name in ("mean", "std"))
    assert rf"{100 * best['P@1']:.2f} ({mean:.2f} $\pm$ {std:.2f})" in render_latex(table)
    assert f"{100 * best['P@1']:.2f} ({mean:.2f} ± {std:.2f})" in page
    assert {path.name for path in write_table(table, request.folder)} == {
        "table.md", "table.csv", "table.tex", "table.json", "paired_differences.csv", "curves.svg",
    }  # fmt: skip


def test_tuning_reports_validation_classes(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=20, images=3, size=16)
    request = make_request(photos, tmp_path / "out", "c2", protocol="tuning", runs=[1, 2])
    runs = request.plan()
    request.train(runs, local_executor())
    table = make_table(request, runs)
    values = [result.metrics["val"]["MAP@R"] for run in runs if (result := run.result()) is not None]
    assert len(values) == 2
    assert table.rows[0].cells[0].value == pytest.approx(100 * np.mean(values))
    assert table.rows[0].finished == 2


def test_a_run_that_fails_does_not_end_the_others(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    words = ["protocol", "conventional", str(photos), "c2", "ms", "--runs", "1", "-o", str(tmp_path / "out"), *SMALL]
    (tmp_path / "out" / "c2").mkdir(parents=True)
    (tmp_path / "out" / "c2" / "run1").write_text("a file in the way")
    said = CliRunner().invoke(app, words)
    assert "failed: method=c2,run=1" in said.output
    assert "method=ms,run=1: test MAP@R" in said.output
    assert said.exception is not None
    assert "1 run failed (method=c2,run=1)" in str(said.exception)


def test_missing_inputs_are_reported_before_training(make_folder: MakeFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["protocol", "fair", "cub200", "c2", "--data", str(tmp_path / "nowhere"), "-o", str(out), *SMALL]
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
        *SMALL,
        f"backbone.weights={tmp_path}/no.pth",
    ]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, ModelError)
    assert "no.pth: weight file does not exist" in str(error)
    assert "parameter names of" in str(error)
    assert not out.exists()


def test_prototypes_that_were_never_initialized_are_reported(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.training.early_stopping.MIN_DELTA", -2.0)  # the best weights are those of the last step
    photos = make_folder(classes=8, images=3, size=16)
    words = [*SMALL, "train.freeze_backbone_steps=0", "pooling.memory_size=100000"]
    request = make_request(photos, tmp_path / "out", "c2+gsp-zsr", protocol="conventional", overrides=words, runs=[1])
    runs = request.plan()
    (outcome,) = request.train(runs, local_executor())
    assert outcome.result is not None
    assert not outcome.result.prototypes_ready
    table = make_table(request, runs)
    note = "c2+gsp-zsr: 1 of 1 runs have the best validation before the prototypes were initialized"
    assert note in render_markdown(table)
    assert table.runs[0].prototypes_ready is False


def test_a_rerun_without_a_setting_is_rejected(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=4, size=16)
    first = make_request(
        photos, tmp_path, "c2", protocol="conventional", runs=[1], overrides=[*SMALL, "train.max_grad_norm=1.0"]
    )
    first.train(first.plan(), local_executor())
    later = make_request(photos, tmp_path, "c2", protocol="conventional", runs=[2])
    with pytest.raises(ConfigError, match=r"made with another train\.max_grad_norm \(1\.0 there, 10\.0 here\)"):
        later.plan()


def test_a_reason_that_runs_share_is_printed_once(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    words = ["protocol", "conventional", str(photos), "c2", "ms", "-o", str(tmp_path / "out"), *SMALL]
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    said = CliRunner().invoke(app, [*words, f"backbone.weights={tmp_path / 'broken.pth'}"])
    failed = [line for line in said.output.splitlines() if line.startswith("failed: ")]
    assert ["broken.pth" in line for line in failed] == [True, *[False] * 5]
    assert all(line.endswith("for the same reason") for line in failed[1:])
    assert "6 runs failed" in str(said.exception)


def test_missing_weights_end_a_protocol_before_its_runs(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    words = ["protocol", "conventional", str(photos), "c2", "-o", str(tmp_path / "out"), *SMALL]
    said = CliRunner().invoke(app, [*words, "backbone.weights=nowhere.pth"])
    assert "nowhere.pth: weight file does not exist" in str(said.exception)
    assert "failed: " not in said.output


def test_the_command_lists_names_and_rejects_wrong_ones(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["protocol", "--list"]).output
    for word in (
        "  fair ",
        "  conventional ",
        "cub200",
        "c1+xbm+gsp-zsr",
        "bn_inception",
        "  ccp-s ",
        "conventional --paper ccp",
    ):
        assert word in listed
    for words, text in (
        (["protocol"], "PROTOCOL: missing"), (["protocol", "fair"], "DATASET: missing"),
        (["protocol", "fair", "cub"], "methods: expected at least one"),
        (["protocol", "fair", "cub", "c2", "--folds", "x"], "--folds x: expected numbers"),
        (["protocol", "fair", "cub", "c2", "--paper", "gps"], "--paper gps: expected gsp or ccp"),
        (["protocol", "fair", "cub", "c2", "--executor", "slurm"], "expected local or ray"),
        (["protocol", "fair", "cub", "c2", "--gpus", "0.5"], "--gpus-per-run: only for --executor ray, got local"),
        (["protocol", "fair", "cub", "c2", "--ray-address", "x:1"], "--ray-address: only for --executor ray"),
        (["protocol", "fair", "cub", "c2", "--executor", "ray", "-j", "2"], "--jobs: only for --executor local"),
        (["protocol", "fair", str(tmp_path), "c2", "--data", "x"], "only for a benchmark dataset"),
        (["protocol", "fair", "cub", "c2", "seed=5"], "seed=5: the protocol sets seed"),
        (["protocol", "fair", "cub", "c2", "train.run_test=false"], "sets train.run_test for every run"),
        (["protocol", "fair", "cub", "c2", "train={test: false}"], "Set each as train.NAME=VALUE"),
        (["protocol", "fair", "cub", "c2", "data.val_classes=test"], "sets data.val_classes for every run"),
        (["protocol", "fair", "cub", "c2", "data.num_folds=2"], "sets data.num_folds for every run"),
        (["protocol", "fair", "cub", "c2", "loss=ms"], "loss=ms: the override changes the method"),
        (["protocol", "fair", "cub", "c2", "pooling=gsp"], "pooling=gsp: the override changes the method"),
        (["protocol", "fair", "cub", "c2", "c2+gsp-zsr", "pooling.mu=0.1"], "method 'c2': "),
    ):  # fmt: skip
        error = CliRunner().invoke(app, words).exception
        assert isinstance(error, ConfigError)
        assert text in str(error)


def test_seeds_differ_between_folds_and_not_between_methods(tmp_path: Path) -> None:
    request = ProtocolRequest(
        PROTOCOLS["fair"], DATASETS["cub200"], ["c2", "ms"], tmp_path, BACKBONES["resnet50"], overrides=SMALL[:1]
    )
    runs = request.plan()
    assert len(runs) == 24
    seeds = {method: [run.planned.config.seed for run in runs if run.method == method] for method in ("c2", "ms")}
    assert seeds["c2"] == seeds["ms"]
    assert len(set(seeds["c2"])) == 12
    assert [run_seed(2, run) for run in range(1, 10)] == list(range(21, 30))  # as in published runs
    every = [run_seed(fold, run) for fold in range(1, 10) for run in range(1, 1001)]
    assert len(set(every)) == len(every)
    assert [(run.fold, run.run) for run in runs[:5]] == [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2)]


@pytest.mark.parametrize(
    ("protocol", "wrong", "text"),
    [("fair", {"folds": [5]}, "folds: expected 1 to 4, got 5"),
     ("conventional", {"folds": [2]}, "folds: expected 1, the only fold of the conventional protocol, got 2"),
     ("fair", {"runs": [0]}, "runs: expected 1 to 1000, got 0")],
)  # fmt: skip
def test_numbers_that_a_protocol_does_not_have(tmp_path: Path, protocol: str, wrong: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_request(tmp_path, tmp_path, "c2", protocol=protocol, **wrong).numbers()


def test_folders_of_version_0_1_0_are_found(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    methods = ("c2+gsp-zsr,pooling.eps=20", "pa")
    request = make_request(photos, tmp_path, *methods, protocol="conventional", runs=[1])
    named = [run.planned.run_dir.path.parent.name for run in request.plan() if run.run == 1]
    assert named == list(methods)
    for old in ("c2+gsp,pooling.eps=20", "proxy_anchor"):
        (tmp_path / old).mkdir()
    found = [run.planned.run_dir.path.parent.name for run in request.plan() if run.run == 1]
    assert found == ["c2+gsp,pooling.eps=20", "proxy_anchor"]
    (tmp_path / methods[0]).mkdir()  # a folder of the present name precedes
    assert request.plan()[0].planned.run_dir.path.parent.name == methods[0]


def test_one_table_compares_a_method_with_its_own_settings(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    base = ["protocol", "conventional", str(photos), "c2", "c2,train.lr=1e-4", "-o", str(tmp_path), *SMALL]
    assert CliRunner().invoke(app, [*base, "--runs", "1"]).exit_code == 0
    table = json.loads((tmp_path / "table.json").read_text())
    assert [row["method"] for row in table["rows"]] == ["c2", "c2,train.lr=1e-4"]
    assert [run["config"]["train"]["lr"] for run in table["runs"]] == [1e-2, 1e-4]  # its own setting precedes
    assert {(pair["method"], pair["against"]) for pair in table["pairs"]} == {("c2,train.lr=1e-4", "c2")}
    assert (tmp_path / "c2,train.lr=1e-4" / "run1" / "result.json").is_file()
    (missing,) = table["missing"]
    assert CliRunner().invoke(app, [*shlex.split(missing)[1:], "--no-train"]).exit_code == 0
    assert json.loads((tmp_path / "table.json").read_text())["rows"] == table["rows"]


def test_ensembles_and_tables_of_a_method_with_special_characters(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    method = "c2,train.lr_multipliers={'*[p|q]rojection.weight': 2}"
    base = ["protocol", "fair", str(photos), method, "-o", str(tmp_path), *SMALL, "train.max_steps=2"]
    assert CliRunner().invoke(app, [*base, "--runs", "1"]).exit_code == 0
    folder = tmp_path / MethodSpec.parse(method).folder
    assert (folder / "ensembles.json").is_file()
    assert not (tmp_path / method).exists()
    table = (tmp_path / "table.md").read_text()
    assert r"| c2,train.lr_multipliers={'*[p\|q]rojection.weight': 2} | 4 of 12 |" in table
    assert r"lr\_multipliers=\{'*[p|q]rojection.weight': 2\} &" in (tmp_path / "table.tex").read_text()


def test_ccp_of_version_0_1_0_is_the_literal_one(tmp_path: Path) -> None:
    """Its runs record no rate of their proxies; they are neither refused nor mixed with runs whose proxies move."""
    first = finished.make_request("conventional", tmp_path / "first", "c2+ccp-literal")
    for run in first.plan():
        config = run.planned.config.model_dump(mode="json")
        del config["references"]["lr_multiplier"], config["train"]["average"]
        finished.finish(run, 0.2, config=config, steps=100)
        file = run.planned.run_dir.config_file
        file.write_text(yaml.safe_dump(config, sort_keys=False))
        (run.planned.run_dir.path / SUMS).unlink()
    (tmp_path / "first" / "c2+ccp-literal").rename(tmp_path / "first" / "c2+ccp")
    for name in ("c2+ccp", "c2+ccp-literal"):
        request = finished.make_request("conventional", tmp_path / "first", name)
        table = make_table(request, request.plan())
        assert [(row.method, row.finished) for row in table.rows] == [("c2+ccp-literal", 3)]
        write_table(table, tmp_path / "first")
    names = ("c2+ccp", "c2+ccp-literal")
    both = [published_number(CONVENTIONAL_3, "cub200", name, "resnet50", 512, "P@1") for name in names]
    assert both[0] == both[1] is not None
    file = tmp_path / "first" / "table.json"
    file.write_text(file.read_text().replace("c2+ccp-literal", "c2+ccp"))  # as version 0.1.0 wrote it
    (tmp_path / "first" / SUMS).unlink()
    assert [row.method for row in read_table(file).rows] == ["c2+ccp-literal"]
    for name in ("c2+ccp", "c2+ccp-literal"):
        request = finished.make_request("conventional", tmp_path / f"from {name}", name, results=[file])
        runs = request.plan()
        assert request.import_results(runs, file) == 3
        assert {run.method for run in runs if run.result()} == {"c2+ccp-literal"}


def test_a_folder_of_ccp_with_moving_proxies_is_no_literal_one(tmp_path: Path) -> None:
    request = finished.make_request("conventional", tmp_path, "c2+ccp")
    for run in request.plan():
        finished.finish(run, 0.3, config=run.planned.config.model_dump(mode="json"))
    again = finished.make_request("conventional", tmp_path, "c2+ccp", "c2+ccp-literal")
    assert {run.method for run in again.plan() if run.result()} == {"c2+ccp"}
    table = make_table(again, again.plan())
    write_table(table, tmp_path)
    assert [row.method for row in read_table(tmp_path / "table.json").rows] == ["c2+ccp", "c2+ccp-literal"]
