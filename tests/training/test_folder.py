"""Run folders with files that were cut off or emptied: told, or made anew where that loses nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.conftest import TINY, MakeFolder
from tests.training.test_trainer import StopAfter, small_config
from winnow.cli.pack import draw_run
from winnow.errors import ConfigError, ModelError
from winnow.protocols.engines import Order, train_one
from winnow.studies.base import Task
from winnow.studies.methods import Comparison, Method
from winnow.training import Monitor, RunFolder, load_config, run_training
from winnow.training.pack import run_pack
from winnow.training.plan import Planned, check_same, plan_runs, read_plan, write_plan
from winnow.training.words import read_yaml

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")

RESULTS = ["", "{", '{"metrics": {"test": {"MA', "[]", "null", '{"steps": 3}', "\0" * 64]


class StopAtOnce(Monitor):
    def start(self, steps: int, done: int) -> None:
        raise KeyboardInterrupt


def cut(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])


@pytest.mark.parametrize("damage", ["", "data: {path: [", "just words", "\0" * 64])
def test_a_damaged_config_is_told(tmp_path: Path, damage: str) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(small_config())
    folder.config_file.write_text(damage)
    for read in (folder.read_config, lambda: check_same(small_config(), folder)):
        with pytest.raises(ModelError, match=r"config\.yaml is empty or damaged: put a copy in its place, or remove"):
            read()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_config_that_is_cut_off_is_never_filled_with_defaults(tmp_path: Path, share: float) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(small_config("seed=12345678"))
    cut(folder.config_file, share)
    with pytest.raises(ModelError, match="empty or damaged"):
        folder.read_config()


@pytest.mark.parametrize("content", RESULTS)
def test_a_damaged_result_is_none_while_there_is_a_checkpoint(tmp_path: Path, content: str) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_result() is None
    folder.write_result({"metrics": {"val": {}}})
    assert folder.read_result() == {"metrics": {"val": {}}}
    for file in (folder.checkpoint_file, folder.best_file):
        folder.save(file, {})
    folder.result_file.write_text(content)
    assert folder.read_result() is None
    with pytest.raises(ModelError, match="not finished"):
        folder.drop_checkpoint()
    assert folder.best_file.is_file()
    folder.checkpoint_file.unlink()
    with pytest.raises(ModelError, match=r"result\.json is empty or damaged, and the run's checkpoint is gone"):
        folder.read_result()


def test_a_pack_measures_again_where_a_result_is_damaged(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu"]
    runs = plan_runs(tmp_path / "pack", None, words, ["seed=0,1,2"])
    write_plan(tmp_path / "pack", runs)
    whole = run_pack(runs)
    steps = [[entry["step"] for entry in run.folder.read_history()] for run in runs]
    cut(runs[0].folder.result_file, 0.5)
    cut(runs[0].folder.log_file, 0.5)
    cut(runs[1].folder.result_file, 0.0)
    runs[2].folder.drop_checkpoint()
    cut(runs[2].folder.result_file, 0.5)
    again = run_pack(read_plan(tmp_path / "pack"))
    for before, after, run in zip(whole[:2], again[:2], runs[:2], strict=True):
        assert before.result is not None
        assert after.result is not None, after.error
        assert after.result["metrics"] == before.result["metrics"]
        assert run.folder.read_result() == json.loads(json.dumps(after.result))
    assert [entry["step"] for entry in runs[0].folder.read_history()] == steps[0]
    assert isinstance(again[2].error, ModelError)
    assert "train the run anew" in str(again[2].error)
    told = train_one(Order.of(runs[2]))
    assert told.result is None
    assert told.error == str(again[2].error)
    cut(runs[1].folder.config_file, 0.0)
    with pytest.raises(ModelError, match="seed=1"):
        read_plan(tmp_path / "pack")


def test_a_comparison_reads_what_is_whole_and_trains_the_rest(make_folder: MakeFolder, tmp_path: Path) -> None:
    compared = Comparison([Method("GAP", ["pooling=gap"])], seeds=(0, 1),
                          words=[f"data={make_folder()}", *TINY, "train.device=cpu"])  # fmt: skip
    found = compared.train(Task(True, runs=tmp_path / "runs"))
    one = compared.plan(compared.methods[0], 1, Task(True, runs=tmp_path / "runs"))
    cut(one.folder.result_file, 0.2)
    there = compared.train(Task(True, runs=tmp_path / "runs", only_finished=True))
    assert [run["config"]["seed"] for run in there["GAP"]] == [0]
    again = compared.train(Task(True, runs=tmp_path / "runs"))
    assert [run["metrics"] for run in again["GAP"]] == [run["metrics"] for run in found["GAP"]]
    one.folder.drop_checkpoint()
    cut(one.folder.result_file, 0.2)
    with pytest.raises(ModelError, match=r"-seed1/result\.json"):
        compared.train(Task(True, runs=tmp_path / "runs", only_finished=True))


def test_a_run_begun_before_a_setting_goes_on(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu"]
    runs = plan_runs(tmp_path / "pack", None, words, ["seed=0,1"])
    begun = run_pack(runs, monitor=lambda run: StopAfter(6))
    assert all(isinstance(outcome.error, RuntimeError) for outcome in begun)
    for run in runs:
        tree, state = read_yaml(run.folder.config_file), run.folder.load(run.folder.checkpoint_file)
        for settings in (tree, state["config"]):
            del settings["train"]["warm_up"], settings["plateau"]
        run.folder.config_file.write_text(yaml.safe_dump(tree, sort_keys=False))
        run.folder.save(run.folder.checkpoint_file, state)
        check_same(run.config, run.folder)
    for run, outcome in zip(runs, run_pack(runs), strict=True):
        assert outcome.result is not None, outcome.error
        assert outcome.result["metrics"] == run_training(run.config, RunFolder(tmp_path / run.name))["metrics"]
    tree = read_yaml(runs[0].folder.config_file)
    runs[0].folder.config_file.write_text(yaml.safe_dump({**tree, "gone": 1}))
    with pytest.raises(ConfigError, match=r"config\.yaml: gone: unknown config key"):
        check_same(runs[0].config, runs[0].folder)


def test_a_run_killed_before_its_first_checkpoint_goes_on_with_its_own_settings_alone(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    words = [f"data={photos}", *TINY, "train.steps=4", "train.eval_every=2"]
    config, folder = load_config(None, words), RunFolder(tmp_path / "run")
    with pytest.raises(ModelError, match="not a run folder"):
        run_training(config, folder, resume=True)
    with pytest.raises(KeyboardInterrupt):
        run_training(config, folder, monitor=StopAtOnce())
    assert not folder.checkpoint_file.exists()
    before = folder.config_file.read_text()
    for other in ("train.steps=6", "loss=c1", "train.clip=5"):
        with pytest.raises(ConfigError, match=rf"was begun with another {other.partition('=')[0]}.*resume it with"):
            run_training(load_config(None, [*words, other]), folder, resume=True)
    assert folder.config_file.read_text() == before
    old = yaml.safe_load(before)
    del old["train"]["clip"], old["centres"]  # of before winnow had them
    folder.config_file.write_text(yaml.safe_dump(old))
    result = run_training(config, folder, resume=True)
    assert result["config"] == folder.read_config().model_dump(mode="json")


def test_a_batch_of_all_the_classes_there_are_is_what_was_asked_for(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "backbone.train=auto", "train.eval_every=null"]
    few, many, more = (load_config(None, [*words, f"train.classes_per_batch={count}"]) for count in (2, 50, 60))
    for config in (few, many):
        folder = RunFolder(tmp_path / f"{config.train.classes_per_batch}")
        planned = Planned({"seed": "0"}, config, folder)
        assert isinstance(run_pack([planned], monitor=lambda run: StopAfter(6))[0].error, RuntimeError)
        check_same(many, folder)
        (other,) = run_pack([Planned({"seed": "0"}, many, folder)])  # of a begun run the checkpoint tells
        if config is few:
            assert "with another train.classes_per_batch" in str(other.error)
            run_pack([planned])
        assert folder.is_finished
    assert folder.read_config().train.classes_per_batch == 4
    for config in (many, more):
        check_same(config, folder)
    for config, place in ((few, folder), (many, RunFolder(tmp_path / "2"))):
        with pytest.raises(ConfigError, match=r"another train\.classes_per_batch"):
            check_same(config, place)


def test_a_plan_that_is_cut_off_is_never_filled_with_defaults(tmp_path: Path) -> None:
    runs = plan_runs(tmp_path, None, ["train.steps=7", "dim=8"], ["seed=10,11", "pooling=gap,gsp"])
    write_plan(tmp_path, runs)
    file = tmp_path / "plan.yaml"
    content = file.read_text()
    assert [(run.choices, run.config) for run in read_plan(tmp_path)] == [(run.choices, run.config) for run in runs]
    file.write_text(content.partition("\n")[2])  # of before there was a first line
    assert len(read_plan(tmp_path)) == 4
    ends = {found.end() for found in re.finditer("\n", content)}
    for length in sorted({*range(0, len(content), 41), *ends} - {len(content)}):
        file.write_text(content[:length])
        with pytest.raises(ModelError, match="damaged or cannot be read"):
            read_plan(tmp_path)


def test_a_damaged_log_costs_the_curves_alone(
    make_folder: MakeFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    result = run_training(load_config(None, [f"data={make_folder()}", *TINY, "train.device=cpu"]), folder)
    cut(folder.log_file, 0.7)
    with pytest.raises(ModelError, match=r"log\.jsonl is missing or damaged"):
        folder.read_history()
    draw_run(folder, result)
    assert not (folder.path / "curves.png").exists()
    planned = Planned({"seed": "0"}, folder.read_config(), folder)
    assert run_pack([planned])[0].result == folder.read_result()


def test_a_config_is_either_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run")

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("winnow.files.os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.create(small_config())
    assert not folder.config_file.exists()
    monkeypatch.undo()
    folder.create(small_config())  # what was left of it is in nobody's way
    assert folder.read_config() == small_config()
