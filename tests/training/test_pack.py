"""Runs side by side: each exactly as it would be alone, and none ends another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.conftest import TINY, MakeFolder
from tests.training.test_trainer import StopAfter, same
from winnow.data import Crops, ImageStore
from winnow.errors import ConfigError, DataError, ModelError, OutputError, TrainingError, WinnowError
from winnow.training import Monitor, RunFolder, load_config, run_training
from winnow.training.opening import make_crops
from winnow.training.pack import Outcome, run_pack
from winnow.training.plan import Planned, is_plan, plan_runs, read_plan, write_plan
from winnow.training.prepare import load_data, prepare, resolve_config
from winnow.training.shared import Shared

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")


def planned(tmp_path: Path, data: Path, *each: str, words: tuple[str, ...] = ()) -> list[Planned]:
    return plan_runs(tmp_path / "pack", None, [f"data={data}", *TINY, "train.device=cpu", *words], each)


def untimed(folder: RunFolder) -> list[dict[str, Any]]:
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in folder.read_history()]


@pytest.mark.parametrize(
    ("each", "words"),
    [
        (["seed=0,1", "pooling=gap,gsp"], ("backbone.train=full",)),
        (["zsr=0,0.2", "loss=c2,ms"], ("backbone.train=full",)),
        (["seed=0,1,2"], ("backbone.train=frozen", "zsr=0.2")),
        (["seed=0,1"], ("backbone.train=full", "references=ccp", "references.per_class=2", "references.pool=3",
                        "references.patience=1")),
    ],
)  # fmt: skip
def test_runs_side_by_side_equal_runs_alone(
    make_folder: MakeFolder, tmp_path: Path, each: list[str], words: tuple[str, ...]
) -> None:
    runs = planned(tmp_path, make_folder(), *each, words=words)
    outcomes = run_pack(runs, at_once=3)
    assert [outcome.run for outcome in outcomes] == runs
    for run, outcome in zip(runs, outcomes, strict=True):
        alone = RunFolder(tmp_path / "alone" / run.folder.path.name)
        expected = run_training(run.config, alone)
        assert outcome.result is not None, outcome.error
        assert outcome.result["metrics"] == expected["metrics"]
        assert outcome.result["untrained"] == expected["untrained"]
        assert untimed(run.folder) == untimed(alone)
        for file in ("checkpoint_file", "best_file"):
            a, b = (folder.load(getattr(folder, file)) for folder in (run.folder, alone))
            assert same(a.get("learner", a), b.get("learner", b)), (run.name, file)


def test_images_are_decoded_once_for_all_runs(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winnow.data import FileSet

    read: list[str] = []
    plain = FileSet.read
    monkeypatch.setattr(FileSet, "read", lambda self, i: read.append(self.name(i)) or plain(self, i))
    words = ("backbone.train=full", "data.cache=ram", "train.steps=4")
    runs = planned(tmp_path, make_folder(), "seed=0,1,2", words=words)  # seeds deal the classes differently
    run_pack(runs, at_once=3)
    assert len(read) == 8 * 4


class Interrupted(Monitor):
    """Ends all runs at a step, as Ctrl-C does."""

    def step(self, step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt


class Broken(Monitor):
    """Breaks a run at a step by an error that no user has caused."""

    def step(self, step: int) -> None:
        if step == 3:
            raise ZeroDivisionError("oh")


def test_training_crops_of_larger_images(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [*TINY, f"data={make_folder()}", "train.device=cpu", "backbone.train=full", "augment.resize=40"]
    config = load_config(None, words)
    splits = load_data(config)
    for shared in (None, Shared()):
        made = prepare(resolve_config(config), splits, Monitor(), shared)
        expected = make_crops(config).train(
            ImageStore(splits.train, resize=40), [3, 1], torch.Generator().manual_seed(0)
        )
        assert torch.equal(made.train.train([3, 1], torch.Generator().manual_seed(0)), expected)
        middle = Crops(resize=config.image.resize, size=config.image.crop)
        for inputs, images in ((made.train, splits.train), (made.val, splits.val)):
            stored = ImageStore(images, resize=config.image.resize)
            assert torch.equal(inputs.test([0, 2]), middle.test(stored, [0, 2]))


def test_a_run_that_fails_ends_alone(make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    each = ("train.lr_multipliers={},{nothing: 2}", "train.lr=1e-3,1e30")
    runs = planned(tmp_path, data, *each, words=("backbone.train=full",))
    told: list[Outcome] = []
    outcomes = run_pack(runs, at_once=2, ended=told.append)
    good, infinite, *impossible = outcomes
    assert good.result is not None
    assert isinstance(infinite.error, TrainingError)
    assert "not finite" in str(infinite.error)
    assert all(isinstance(outcome.error, ConfigError) for outcome in impossible)
    assert {id(outcome) for outcome in told} == {id(outcome) for outcome in outcomes}


def test_a_run_that_never_began_leaves_its_folder_free(make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    folder = RunFolder(tmp_path / "run")
    for word in (f"backbone.weights={tmp_path}/nothing.pth", "train.lr_multipliers={nothing: 2}"):
        config = load_config(None, [f"data={data}", *TINY, "train.device=cpu", "backbone.train=full", word])
        with pytest.raises(WinnowError, match="nothing"):
            run_training(config, folder)
        assert not folder.path.exists()  # where it would refuse a setting that puts it right


def test_a_run_is_trained_by_one_process_at_a_time(make_folder: MakeFolder, tmp_path: Path) -> None:
    first, second = planned(tmp_path, make_folder(), "seed=0,1", words=("backbone.train=full",))
    first.folder.create(first.config)
    with first.folder.held():
        taken, free = run_pack([first, second])
    assert isinstance(taken.error, OutputError)
    assert f"another process is training {first.folder.path}" in str(taken.error)
    assert free.result is not None


def test_runs_that_are_broken_off_side_by_side_can_go_on_at_once(make_folder: MakeFolder, tmp_path: Path) -> None:
    runs = planned(tmp_path, make_folder(), "seed=0,1", words=("backbone.train=full",))
    with pytest.raises(KeyboardInterrupt) as kept:  # its frames hold both, as a notebook's last error does
        run_pack(runs, at_once=2, monitor=lambda run: Interrupted() if run is runs[0] else Monitor())
    assert all(outcome.error is None for outcome in run_pack(runs, at_once=2))
    assert kept.tb is not None


def test_an_unexpected_fault_is_told_with_its_place(make_folder: MakeFolder, tmp_path: Path) -> None:
    runs = planned(tmp_path, make_folder(), "seed=0,1")
    outcomes = run_pack(runs, at_once=2, monitor=lambda run: Broken() if run is runs[0] else Monitor())
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    assert outcomes[0].error.__traceback__ is None
    assert "in step" in outcomes[0].trace
    assert outcomes[1].result is not None


def test_a_broken_image_ends_the_runs_that_need_it(make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder(classes=12)
    Image.new("RGB", (9, 9)).save(data / "class_11" / "bad.png")
    (data / "class_11" / "bad.png").write_bytes(b"no image")
    splits = ("data.train_classes=1-4", "data.val_classes=5-7", "backbone.train=full")
    runs = planned(tmp_path, data, "data.test_classes=8-10,10-12", words=splits)
    first, second = run_pack(runs, at_once=2)
    assert first.result is not None, first.error
    assert isinstance(second.error, DataError)
    assert "bad.png cannot be read" in str(second.error)


def test_memory_that_runs_out_is_told(make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("winnow.training.trainer.Trainer.take_step", full)
    (outcome,) = run_pack(planned(tmp_path, make_folder(), "seed=0"))
    assert isinstance(outcome.error, TrainingError)
    assert "--at-once" in str(outcome.error)


def test_what_is_unfinished_is_resumed_and_what_is_finished_is_read(make_folder: MakeFolder, tmp_path: Path) -> None:
    runs = planned(tmp_path, make_folder(), "seed=0,1,2", words=("backbone.train=full",))
    write_plan(tmp_path / "pack", runs)
    assert is_plan(tmp_path / "pack")
    first = run_pack(runs[:2], at_once=2, monitor=lambda run: StopAfter(6) if run is runs[1] else Monitor())
    assert first[0].result is not None
    assert isinstance(first[1].error, RuntimeError)
    written = runs[0].folder.result_file.stat().st_mtime_ns
    again = read_plan(tmp_path / "pack")
    assert [run.name for run in again] == ["seed=0", "seed=1", "seed=2"]
    outcomes = run_pack(again, at_once=2)
    assert runs[0].folder.result_file.stat().st_mtime_ns == written
    for run, outcome in zip(runs, outcomes, strict=True):
        assert outcome.result == json.loads(run.folder.result_file.read_text())
        alone = RunFolder(tmp_path / "alone" / run.name)
        assert run_training(run.config, alone)["metrics"] == outcome.result["metrics"]


def test_plans_are_the_product_of_their_lists(tmp_path: Path) -> None:
    runs = plan_runs(tmp_path, None, ["dim=8"], ["augment.area=[0.2,1],[0.5,1]", "pooling=gap,gsp", "seed=3,4"])
    assert [run.name for run in runs][:3] == [
        "augment.area=[0.2,1],pooling=gap,seed=3", "augment.area=[0.2,1],pooling=gap,seed=4",
        "augment.area=[0.2,1],pooling=gsp,seed=3",
    ]  # fmt: skip
    assert len(runs) == 8
    assert {run.config.dim for run in runs} == {8}
    assert runs[-1].config.augment.area == (0.5, 1.0)
    assert runs[-1].config.seed == 4
    assert runs[-1].method() == "augment.area=[0.5,1],pooling=gsp"
    assert plan_runs(tmp_path, None, [], ["data=a/b,c"])[0].folder.path == tmp_path / "data=a_b"


@pytest.mark.parametrize(
    ("each", "message"),
    [
        (["seed"], "write it as KEY=VALUE"),
        (["sead=0,1"], "did you mean 'seed'"),
        (["seed=0,x"], "seed="),
        (["pooling=gap,gps"], "did you mean 'gsp'"),
        (["seed=0,1", "seed=2"], "given twice"),
        (["seed=1,1"], "makes the run seed=1 twice"),
        (["pooling=gsp,gap", "zsr=0.1"], "needs a pooling with attributes"),
        (["pooling.mu=0.2,7"], "must be in"),
        (["pooling.mu=0.2,0.3", "pooling=gap,gsp"], "pooling.mu: unknown setting of 'gap'"),
    ],
)
def test_plans_that_cannot_be_are_refused_before_anything_starts(tmp_path: Path, each: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_runs(tmp_path, None, [], each)


def test_runs_that_are_there_already_are_not_taken_for_those_of_a_new_plan(tmp_path: Path) -> None:
    runs = plan_runs(tmp_path, None, [], ["seed=0,1"])
    runs[1].folder.create(runs[0].config)
    with pytest.raises(ConfigError, match="seed=1 already holds runs"):
        write_plan(tmp_path, runs)
    assert not is_plan(tmp_path)


def test_a_plan_is_never_overwritten_and_a_damaged_one_refused(tmp_path: Path) -> None:
    runs = plan_runs(tmp_path, None, [], ["seed=0,1"])
    write_plan(tmp_path, runs)
    with pytest.raises(ConfigError, match="already holds runs"):
        write_plan(tmp_path, runs)
    (tmp_path / "plan.yaml").write_text("- [")
    with pytest.raises(ModelError, match="cannot be read"):
        read_plan(tmp_path)


class Hasty(Monitor):
    """Begins the run elsewhere while its data are read, and keeps what is told."""

    def __init__(self, run: Planned) -> None:
        self.run, self.told = run, list[str]()

    def note(self, text: str) -> None:
        self.told.append(text)
        if not self.run.folder.config_file.exists():
            config = self.run.config
            self.run.folder.create(resolve_config(config, load_data(config).train))


def test_a_run_that_is_begun_while_its_data_are_read_is_gone_on_with(make_folder: MakeFolder, tmp_path: Path) -> None:
    (run,) = planned(tmp_path, make_folder(), "seed=0")
    (outcome,) = run_pack([run], monitor=Hasty)
    assert outcome.error is None


def test_a_run_that_goes_on_says_from_where(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = ("train.steps=6", "train.eval_every=2")
    (run,) = planned(tmp_path, make_folder(), "seed=0", words=words)
    (outcome,) = run_pack([run], monitor=lambda run: StopAfter(5))
    assert outcome.error is not None
    again = Hasty(run)
    (outcome,) = run_pack([run], monitor=lambda run: again)
    assert outcome.error is None
    assert "goes on from step 4" in again.told
