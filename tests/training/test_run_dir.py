"""Run folders with damaged files: errors, or files written again without loss."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.conftest import TINY, MakeFolder
from tests.studies.grids import request, tiny_grid
from tests.training.test_trainer import StopAfter, small_config
from winnow.cli.train import draw_run
from winnow.errors import ConfigError, ModelError
from winnow.integrity import SUMS
from winnow.protocols.executors import RemoteRun, train_remotely
from winnow.studies import Variant
from winnow.studies.runner import plan_grid, train_grid
from winnow.training import Callback, RunDir, RunResult, load_config, train
from winnow.training.build import resolve_config
from winnow.training.overrides import Overrides, read_yaml
from winnow.training.parallel import train_in_parallel
from winnow.training.sweep import PlannedRun, check_same, first_run_difference, plan_runs, read_plan, write_plan

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

RESULTS = ["", "{", '{"metrics": {"test": {"MA', "[]", "null", '{"steps": 3}', "\0" * 64]


class StopAtOnce(Callback):
    def start(self, steps: int, done: int) -> None:
        raise KeyboardInterrupt


def cut(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])


@pytest.mark.parametrize("damage", ["", "data: {path: [", "just words", "\0" * 64])
def test_damaged_config_raises_model_error(tmp_path: Path, damage: str) -> None:
    folder = RunDir(tmp_path / "run")
    folder.create(small_config())
    folder.config_file.write_text(damage)
    (folder.path / SUMS).unlink()  # as in a run of version 0.1.0
    for read in (folder.read_config, lambda: check_same(small_config(), folder)):
        with pytest.raises(ModelError, match=r"config\.yaml: file empty or damaged"):
            read()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_truncated_config_is_not_filled_with_defaults(tmp_path: Path, share: float) -> None:
    folder = RunDir(tmp_path / "run")
    folder.create(small_config("seed=12345678"))
    cut(folder.config_file, share)
    (folder.path / SUMS).unlink()  # as in a run of version 0.1.0
    with pytest.raises(ModelError, match="empty or damaged"):
        folder.read_config()


@pytest.mark.parametrize("content", RESULTS)
def test_damaged_result_counts_as_missing_while_a_checkpoint_exists(tmp_path: Path, content: str) -> None:
    folder = RunDir(tmp_path)
    assert folder.read_result() is None
    folder.write_result(RunResult(metrics={"val": {}}))
    assert json.loads(folder.result_file.read_text()) == {"metrics": {"val": {}}}
    assert folder.read_result() == RunResult(metrics={"val": {}})
    for file in (folder.checkpoint_file, folder.best_file):
        folder.save(file, {})
    folder.result_file.write_text(content)
    assert folder.read_result() is None
    with pytest.raises(ModelError, match=r"result\.json: content does not match its checksum.*Resume the run"):
        folder.drop_checkpoint()
    assert folder.best_file.is_file()
    folder.checkpoint_file.unlink()
    with pytest.raises(ModelError, match=r"result\.json: file damaged or changed, and the run has no checkpoint"):
        folder.read_result()


@pytest.mark.slow
def test_concurrent_runs_repeat_damaged_results(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu"]
    runs = plan_runs(tmp_path / "pack", None, words, ["seed=0,1,2"])
    write_plan(tmp_path / "pack", runs)
    whole = train_in_parallel(runs)
    steps = [[entry["step"] for entry in run.run_dir.read_history()] for run in runs]
    cut(runs[0].run_dir.result_file, 0.5)
    cut(runs[0].run_dir.log_file, 0.5)
    cut(runs[1].run_dir.result_file, 0.0)
    runs[2].run_dir.drop_checkpoint()
    cut(runs[2].run_dir.result_file, 0.5)
    again = train_in_parallel(read_plan(tmp_path / "pack"))
    for before, after, run in zip(whole[:2], again[:2], runs[:2], strict=True):
        assert before.result is not None
        assert after.result is not None, after.error
        assert after.result.metrics == before.result.metrics
        assert run.run_dir.read_result() == after.result
    assert [entry["step"] for entry in runs[0].run_dir.read_history()] == steps[0]
    assert isinstance(again[2].error, ModelError)
    assert "train again" in str(again[2].error)
    told = train_remotely(RemoteRun.of(runs[2]))
    assert told.result is None
    assert told.error == str(again[2].error)
    cut(runs[1].run_dir.config_file, 0.0)
    with pytest.raises(ModelError, match="seed=1"):
        read_plan(tmp_path / "pack")


@pytest.mark.slow
def test_study_reads_intact_runs_and_trains_the_others(make_folder: MakeFolder, tmp_path: Path) -> None:
    study = tiny_grid(make_folder(), [Variant("GAP", Overrides.parse("pooling=gap"))])
    every, finished = (request(study, tmp_path / "runs", train=train) for train in (True, False))
    found = train_grid(study, every)
    _, (_, _, second) = plan_grid(study, every)
    cut(second.run_dir.result_file, 0.2)
    assert [run.seed for run in train_grid(study, finished)["GAP"]] == [0]
    again = train_grid(study, every)
    assert [run.result.metrics for run in again["GAP"]] == [run.result.metrics for run in found["GAP"]]
    second.run_dir.drop_checkpoint()
    cut(second.run_dir.result_file, 0.2)
    with pytest.raises(ModelError, match=r"-seed1/result\.json"):
        train_grid(study, finished)


@pytest.mark.slow
def test_run_without_a_newer_setting_resumes(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu"]
    runs = plan_runs(tmp_path / "pack", None, words, ["seed=0,1"])
    begun = train_in_parallel(runs, callback=lambda run: StopAfter(6))
    assert all(isinstance(outcome.error, RuntimeError) for outcome in begun)
    for run in runs:
        tree, state = read_yaml(run.run_dir.config_file), run.run_dir.load(run.run_dir.checkpoint_file)
        for settings in (tree, state["config"]):
            del settings["train"]["freeze_backbone_steps"], settings["plateau"]
        run.run_dir.config_file.write_text(yaml.safe_dump(tree, sort_keys=False))
        run.run_dir.save(run.run_dir.checkpoint_file, state)
        (run.run_dir.path / SUMS).unlink()  # which an earlier version did not write
        check_same(run.config, run.run_dir)
    for run, outcome in zip(runs, train_in_parallel(runs), strict=True):
        assert outcome.result is not None, outcome.error
        assert outcome.result.metrics == train(run.config, RunDir(tmp_path / run.name)).metrics
    tree = read_yaml(runs[0].run_dir.config_file)
    runs[0].run_dir.config_file.write_text(yaml.safe_dump({**tree, "gone": 1}))
    (runs[0].run_dir.path / SUMS).unlink()
    with pytest.raises(ConfigError, match=r"config\.yaml: gone: unknown config key"):
        check_same(runs[0].config, runs[0].run_dir)


def test_run_without_checkpoint_resumes_only_with_its_config(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    words = [f"data={photos}", *TINY, "train.max_steps=4", "train.eval_steps=2"]
    config, folder = load_config(None, words), RunDir(tmp_path / "run")
    with pytest.raises(ModelError, match="not a run folder"):
        train(config, folder, resume=True)
    with pytest.raises(KeyboardInterrupt):
        train(config, folder, callback=StopAtOnce())
    assert not folder.checkpoint_file.exists()
    before = folder.config_file.read_text()
    for other in ("train.max_steps=6", "loss=c1", "train.max_grad_norm=5"):
        with pytest.raises(ConfigError, match=rf"started with another {other.partition('=')[0]}"):
            train(load_config(None, [*words, other]), folder, resume=True)
    assert folder.config_file.read_text() == before
    old = yaml.safe_load(before)
    del old["train"]["max_grad_norm"], old["regularizer"]  # of before winnow had them
    folder.config_file.write_text(yaml.safe_dump(old))
    (folder.path / SUMS).unlink()
    result = train(config, folder, resume=True)
    assert result.config == folder.read_config().model_dump(mode="json")


@pytest.mark.slow
def test_batch_limited_by_the_number_of_classes_is_no_difference(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "backbone.train=auto", "train.eval_steps=null"]
    few, many, more = (load_config(None, [*words, f"train.classes_per_batch={count}"]) for count in (2, 50, 60))
    for config in (few, many):
        folder = RunDir(tmp_path / f"{config.train.classes_per_batch}")
        planned = PlannedRun({"seed": "0"}, config, folder)
        assert isinstance(train_in_parallel([planned], callback=lambda run: StopAfter(6))[0].error, RuntimeError)
        check_same(many, folder)
        (other,) = train_in_parallel([PlannedRun({"seed": "0"}, many, folder)])  # of a begun run the checkpoint tells
        if config is few:
            assert "with another train.classes_per_batch" in str(other.error)
            train_in_parallel([planned])
        assert folder.is_finished
    assert folder.read_config().train.classes_per_batch == 4
    for config in (many, more):
        check_same(config, folder)
    for config, place in ((few, folder), (many, RunDir(tmp_path / "2"))):
        with pytest.raises(ConfigError, match=r"another train\.classes_per_batch"):
            check_same(config, place)


def test_truncated_plan_is_not_filled_with_defaults(tmp_path: Path) -> None:
    runs = plan_runs(tmp_path, None, ["train.max_steps=7", "dim=8"], ["seed=10,11", "pooling=gap,gsp"])
    write_plan(tmp_path, runs)
    (tmp_path / SUMS).unlink()  # as in a sweep of version 0.1.0
    file = tmp_path / "plan.yaml"
    content = file.read_text()
    assert [(run.assignment, run.config) for run in read_plan(tmp_path)] == [
        (run.assignment, run.config) for run in runs
    ]
    file.write_text(content.partition("\n")[2])  # of before there was a first line
    assert len(read_plan(tmp_path)) == 4
    ends = {found.end() for found in re.finditer("\n", content)}
    for length in sorted({*range(0, len(content), 41), *ends} - {len(content)}):
        file.write_text(content[:length])
        with pytest.raises(ModelError, match=r"plan\.yaml: file missing or damaged"):
            read_plan(tmp_path)


def test_damaged_log_only_prevents_the_figure(
    make_folder: MakeFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunDir(tmp_path / "run")
    result = train(load_config(None, [f"data={make_folder()}", *TINY, "train.device=cpu"]), folder)
    cut(folder.log_file, 0.7)
    with pytest.raises(ModelError, match=r"log\.jsonl: content does not match its checksum"):
        folder.read_history()
    draw_run(folder, result)
    assert not (folder.path / "curves.png").exists()
    planned = PlannedRun({"seed": "0"}, folder.read_config(), folder)
    assert train_in_parallel([planned])[0].result == folder.read_result()


def test_config_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunDir(tmp_path / "run")

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("winnow.files.os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.create(small_config())
    assert not folder.config_file.exists()
    monkeypatch.undo()
    folder.create(small_config())  # what was left of it is in nobody's way
    assert folder.read_config() == small_config()


@pytest.mark.parametrize("train", ["full", "frozen"])
def test_settings_that_a_run_resolves_are_no_difference(train: str) -> None:
    requested = small_config("references=ccp", f"backbone.train={train}")
    made = resolve_config(requested)
    assert made.references.model_dump()["lr_multiplier"] is not None
    assert first_run_difference(requested, made, None) is None
    other = small_config("references=ccp", f"backbone.train={train}", "references.lr_multiplier=7")
    difference = first_run_difference(other, made, None)
    assert difference is not None
    assert difference.startswith("references.lr_multiplier")
